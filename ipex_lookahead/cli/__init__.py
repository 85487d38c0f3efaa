"""The command ``ipex-lookahead``: one command a file, on click."""
