"""Ways of writing calls of tools, one file each kind: how they are found in an answer, forced, and written again."""
