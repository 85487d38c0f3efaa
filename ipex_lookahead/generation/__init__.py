"""Hugging Face's words: what ``generate`` is asked for, checked, and what it answers; the loop does the work."""
