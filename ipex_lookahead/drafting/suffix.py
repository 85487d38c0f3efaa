"""Suffix matching: the followers of the longest matching suffix, ranked by count and mixed with shorter suffixes."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.drafting.partial_matching import LONGEST_CONTEXT, PartialMatching


class Suffix(PartialMatching):
    """A small tree from counted suffixes of prompt and output, and of a store of earlier outputs if there is one.

    Example: in ``[1, 2, 3, 8, 2, 4, 5, 2]`` the suffix 2 was followed by 3, then by 4. ``propose(3)`` returns the tree
        of
    4, its sibling 3, and 5 below 4: both may follow, and the more recent one is likelier. Prompt lookup drafts the
        single
    chain ``4 5 2``. After ``[3, 2, 9, 3, 2, 9, 1, 2, 7, 3, 2]`` the longer suffix ``3 2`` predicts 9, although 7 came
    later: ``propose(1)`` returns 9.

    Args:
        store: counted suffixes of earlier texts (``Store.suffixes``), or None.
        depth: longest suffix, 1 to 16. Longer copies continue by matching the tokens just copied.
    """

    def __init__(self, store: Any = None, depth: int = LONGEST_CONTEXT) -> None:
        super().__init__(depth=depth, width=0, store=store)
