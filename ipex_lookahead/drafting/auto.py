"""Auto: all sources without drafting cost, in one tree."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.drafting.partial_matching import LONGEST_CONTEXT, SUCCESSORS, PartialMatching


class Auto(PartialMatching):
    """Suffixes of the text and of the store, and recycled successors, mixed into one tree without duplicate siblings.

    The suffixes' longest contexts give the long copies of prompt lookup. A token from several sources has one row, the
    name of the source with the longest context, and a probability from all sources.

    Example: after ``[9, 1, 2]`` the target emitted 3, with 4 as the second most likely token. When ``9 1 2`` occurs
        again,
    3 and 4 both follow the last 2, each once: 3 from ``suffix`` (and ``recycling``), 4 from ``recycling`` alone.

    Args:
        store: counted suffixes of earlier texts (``Store.suffixes``), or None.
    """

    def __init__(self, store: Any = None) -> None:
        super().__init__(depth=LONGEST_CONTEXT, width=SUCCESSORS, store=store)
