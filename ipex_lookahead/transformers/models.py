"""No ``ipex_llm.transformers.models`` here: importing it says what to use."""

from ipex_lookahead.hf.ipex_llm_names.absent import refuse_module

refuse_module(__name__)
