"""``ipex_llm.transformers.convert``, as far as scripts ask for it."""

from typing import Any

from ipex_lookahead.hf.ipex_llm_names.absent import refuse_name


def get_enable_ipex() -> bool:
    """Whether Intel's extension of torch runs every model (ipex-llm's BIGDL_OPT_IPEX): never, it is requested by name.

    ``AutoModelForCausalLM.from_pretrained(..., ipex=True)`` applies it. ipex-llm's scripts ask this to know whether a
    generation has statistics; here each has.
    """
    return False


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name)
