"""From text to token ids and back, and from a conversation to a prompt.

Import what you need from the modules: ``gguf`` and ``folder`` build tokenizers (and import transformers, which is
slow), ``chat_template`` and ``prompts`` make prompts (and import neither transformers nor torch).
"""
