"""Drop-in for ``ipex_llm.transformers``: change the import, keep the rest of the script."""

from ipex_lookahead.auto import AutoModelForCausalLM

__all__ = ["AutoModelForCausalLM"]
