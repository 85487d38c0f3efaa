"""ipex-llm's names: the arguments of its loaders, and the names that this package does not have."""
