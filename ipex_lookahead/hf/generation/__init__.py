"""Hugging Face's words: the arguments of ``generate``, checked, and its results; the loop does the work."""
