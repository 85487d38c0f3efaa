"""Making heads for drafting, on the CPU, of a model's own answers. Needs torch, which only these files import."""
