"""No ``ipex_llm.transformers.streamer`` here: importing it names the replacement."""

from ipex_lookahead.hf.ipex_llm_names.absent import refuse_module

refuse_module(__name__)
