"""No ``ipex_llm.vllm`` here: importing it says what to use."""

from ipex_lookahead.hf.ipex_llm_names.absent import refuse_module

refuse_module("ipex_lookahead.vllm")
