"""Measuring: speed, and that lookahead changed nothing."""
