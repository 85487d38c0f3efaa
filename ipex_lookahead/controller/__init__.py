"""How many rows a step may spend on drafts: the controller, one idea a file, and R(D), which joins them."""

from ipex_lookahead.controller.adaptive import AdaptiveBudget
from ipex_lookahead.controller.base import Controller, FixedBudget, Selection

__all__ = ["AdaptiveBudget", "Controller", "FixedBudget", "Selection"]
