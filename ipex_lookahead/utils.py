"""No ``ipex_llm.utils`` here: importing it names the replacement."""

from ipex_lookahead.hf.ipex_llm_names.absent import refuse_module

refuse_module("ipex_lookahead.utils")
