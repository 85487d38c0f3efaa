"""Trained drafting heads, which are shipped with a model and read its features."""
