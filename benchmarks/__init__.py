"""Comparisons with other programs; not part of the package."""
