"""From text to token ids and back, and from a conversation to a prompt.

Import what you need from the modules: ``gguf`` and ``folder`` build tokenizers, ``text`` says what those are,
``chat_template`` and ``prompts`` make prompts. Only ``tokenizers``, where they become transformers' own, imports
transformers, which is slow.
"""
