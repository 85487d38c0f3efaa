"""How many rows a step spends on drafts: one acceptance table, one cost curve, one objective, one back-off."""

from ipex_lookahead.controller.adaptive import AdaptiveController
from ipex_lookahead.controller.base import Controller

__all__ = ["AdaptiveController", "Controller"]
