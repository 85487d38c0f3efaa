"""Prediction by partial matching: counted continuations of the current context as a tree of drafts, best first.

The distributions of short contexts are mixed into those of longer ones (Cleary and Witten, 1984). The weight of each is
how often the next token was among the tokens seen there. Contexts come from up to three sources: counted suffixes of
the text itself, those of a store of earlier texts (both as in SuffixDecoding, arXiv 2411.04975), and the target's own
most likely successors of a token and of a pair of tokens, as last seen (Token Recycling, arXiv 2408.08696). Every
committed token updates these weights, drafted or not, so they are not censored by an earlier miss.

The implementation is native (csrc/drafting/predictor.cc); tests/support/partial_matching.py is the same in Python.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import Hidden, OutputRequest
from ipex_lookahead.errors import EngineError, InputError

SOURCES = ("recycling", "store", "suffix")
"""Names of the sources, by their number in the core."""

LONGEST_CONTEXT = 8
"""Tokens of a context; 5 to 12 gave the same acceptance, within 0.3 %, on recorded answers."""

SUCCESSORS = 8
"""Number of most likely ids stored per token, as in the paper."""


def native_core() -> Any:
    """Return the compiled module. Raises EngineError if it is not built."""
    try:
        return importlib.import_module("ipex_lookahead._native")
    except ImportError as error:
        raise EngineError(
            f"this lookahead strategy needs the native core, which is not built for this Python: {error}",
            hint="pip install . (needs a C++17 compiler), or use strategy prompt_lookup",
        ) from None


class PartialMatching:
    """The proposer of the strategies ``suffix``, ``recycling`` and ``auto``, which differ in their sources.

    A token costs O(``depth``), a draft O(rows x followers): 8 to 27 microseconds for 16 rows (CPython 3.11, one Zen 4
    core).

    Args:
        depth: longest context in the text itself, 0 (none) to 16.
        width: number of successors stored per token, 0 (none) to 8.
        store: counted suffixes of earlier texts (``Store.suffixes``), or None.

    Raises:
        InputError: depth or width is out of range, or ``store`` is not a store.

    Attributes:
        wants: the ``width`` most likely ids of every row.
    """

    def __init__(self, *, depth: int, width: int, store: Any = None) -> None:
        self.wants = OutputRequest(top=width)
        try:
            self._predictor = native_core().Predictor(depth, width, store)
        except (ValueError, TypeError) as error:
            raise InputError(str(error)) from None

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Reset, then index the prompt. Raises InputError for ids that are not int32 >= 0."""
        try:
            self._predictor.begin(np.array(prompt, np.int32))
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"the prompt holds an invalid token id: {error}") from None

    def propose(self, budget: int) -> Draft:
        """Return a tree of at most ``budget`` tokens, most likely paths first, with ``probs`` and ``sources``.

        Raises InputError for a budget above 65,536.
        """
        try:
            tokens, parents, probs, sources = self._predictor.propose(budget)
        except (ValueError, TypeError) as error:
            raise InputError(str(error)) from None
        return Draft(tokens, parents, 0, probs, list(map(SOURCES.__getitem__, sources)))

    def observe(self, outcome: Outcome) -> None:
        """Index the newly committed tokens and store the most likely ids after every row of the step."""
        draft: Draft = outcome.draft
        top: Any = outcome.top if self.wants.top else None
        if top is not None and type(top) is not np.ndarray:
            top = np.array(top, np.int32)
        try:
            self._predictor.observe(draft.tokens, draft.parents, outcome.emitted, top)
        except (ValueError, TypeError) as error:
            raise InputError(f"invalid outcome of a draft: {error}") from None


def suffix(store: Any = None, depth: int = LONGEST_CONTEXT) -> PartialMatching:
    """Return a proposer of small trees from counted suffixes of prompt and output, and of a store of earlier outputs.

    The longest matching suffix comes first; where it has few continuations, shorter ones add theirs.

    Example: in ``[1, 2, 3, 8, 2, 4, 5, 2]`` the suffix 2 was followed by 3, then by 4. ``propose(3)`` is the tree of 4,
    its sibling 3, and 5 below 4: both may follow, the more recent one being the likelier. Prompt lookup drafts the one
    chain ``4 5 2``. After ``[3, 2, 9, 3, 2, 9, 1, 2, 7, 3, 2]`` the longer suffix ``3 2`` speaks for 9, though 7 came
    later: ``propose(1)`` is 9.

    Args:
        store: counted suffixes of earlier texts (``Store.suffixes``), or None.
        depth: longest suffix, 1 to 16. A longer copy continues by matching the tokens just copied.
    """
    return PartialMatching(depth=depth, width=0, store=store)


def recycling(successors: int = SUCCESSORS) -> PartialMatching:
    """Return a proposer of small trees from the most likely successors last seen (Luo et al., arXiv 2408.08696).

    A verification computes the most likely ids after every row, rejected ones included. They become a table: for each
    token, and each pair of tokens, its likely successors when it was last a row. The paper fills a fixed tree of 80
    nodes, which a CPU cannot verify in time; here the tree is as large as the budget and grows best first, by how often
    successors of each rank have been right so far.

    Before anything was verified the prompt's own pairs are used: after ``begin([5, 6, 7, 5])`` the token 5 has the
    successor 6, and ``propose(2)`` is the chain ``6 7``.

    Example: a step verifies the draft 6 and sees the top ids ``[6, 8]`` after 5 and ``[9, 7]`` after 6, so 6 and
    9 are emitted, then 5. Now ``propose(4)`` is the tree of 6 and 8 after 5, and 9 and 7 below 6.
    """
    return PartialMatching(depth=0, width=successors)


def auto(store: Any = None) -> PartialMatching:
    """Return a proposer with every source that costs no forward: suffixes of the text and of the store, and successors.

    Prompt lookup's long copies are the suffixes' longest contexts. A token that several sources name gets one row, the
    name of the source with the longest context, and a probability from all of them.

    Example: after ``[9, 1, 2]`` the target emitted 3 and thought 4 likely too. When ``9 1 2`` comes again, 3 and 4 both
    follow the last 2, each once: 3 from ``suffix`` (``recycling`` agrees), 4 from ``recycling`` alone.

    Args:
        store: counted suffixes of earlier texts (``Store.suffixes``), or None.
    """
    return PartialMatching(depth=LONGEST_CONTEXT, width=SUCCESSORS, store=store)
