"""Trained heads: drafters that ship with a model and read what it makes of the text. One kind a file."""
