"""The model interface of transformers except ``generate``: logits with caches, weights, devices, copies, statistics."""
