"""Hugging Face conventions over ``runtime``: Auto classes, ``generate``, caches, ipex-llm's names."""
