"""Auto: every source that costs nothing, in one tree."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.drafting.partial_matching import LONGEST_CONTEXT, SUCCESSORS, PartialMatching


class Auto(PartialMatching):
    """Suffixes of the own text and of the store, and recycled successors, mixed into one tree without double siblings.

    Prompt lookup's long copies are the suffixes' longest contexts. A token that several sources name gets one row, the
    name of the source with the longest context, and a probability from all of them.

    Example: after ``[9, 1, 2]`` the target emitted 3 and thought 4 likely too. When ``9 1 2`` comes again, 3 and 4 both
    follow the last 2, each once: 3 from ``suffix`` (``recycling`` agrees), 4 from ``recycling`` alone.

    Args:
        store: counted suffixes of earlier texts (``Store.suffixes``), or None.
    """

    def __init__(self, store: Any = None) -> None:
        super().__init__(depth=LONGEST_CONTEXT, width=SUCCESSORS, store=store)
