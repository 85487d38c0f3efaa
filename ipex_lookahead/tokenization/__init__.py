"""Tokenizers and chat templates.

Import from the modules: ``gguf`` and ``folder`` build tokenizers, ``text`` defines them, ``chat_template`` and
``prompts`` make prompts. Only ``tokenizers``, which has the classes for transformers, imports transformers.
"""
