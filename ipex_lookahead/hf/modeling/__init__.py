"""WHAT TRANSFORMERS ASKS OF A MODEL beside ``generate``: logits with caches, weights, places, copies, statistics."""
