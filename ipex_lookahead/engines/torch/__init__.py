"""The torch engine: any causal language model of transformers, with our linear layers where they serve."""
