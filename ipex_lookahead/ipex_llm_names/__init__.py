"""ipex-llm's names: the arguments of its loaders, and its modules that are not here.

``ipex_lookahead`` has this folder on its ``__path__``: ``import ipex_lookahead.vllm`` finds ``vllm.py`` here.
"""
