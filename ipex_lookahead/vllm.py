"""No ``ipex_llm.vllm`` here: importing it names the replacement."""

from ipex_lookahead.hf.ipex_llm_names.absent import refuse_module

refuse_module("ipex_lookahead.vllm")
