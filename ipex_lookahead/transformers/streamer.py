"""No ``ipex_llm.transformers.streamer`` here: importing it says what to use."""

from ipex_lookahead.absent import refuse_module

refuse_module(__name__)
