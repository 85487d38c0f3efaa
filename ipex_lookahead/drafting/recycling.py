"""Token Recycling (Luo et al., arXiv 2408.08696): what the target itself thought likely the last time.

A verification computes the likeliest ids after every row, rejected ones included, and throws them away. Kept, they are
a table of successors: for each token those that were likely when it was last a row. The paper fills a fixed tree of 80
nodes from it, which a CPU could not verify in time; here the tree is as large as the budget and grows best first, by
how often successors of each rank have been right so far. Successors are kept for pairs of tokens, too.
"""

from __future__ import annotations

from ipex_lookahead.drafting.partial_matching import SUCCESSORS, PartialMatching


class Recycling(PartialMatching):
    """A small tree from the successors last seen.

    Before anything was verified the prompt's own pairs stand in: after ``begin([5, 6, 7, 5])`` the token 5 has the
    successor 6, and ``propose(2)`` is the chain ``6 7``.

    Example: a step verifies the draft 6 and sees the likeliest ids ``[6, 8]`` after 5 and ``[9, 7]`` after 6, so 6 and
    9 are emitted, then 5. Now ``propose(4)`` is the tree of 6 and 8 after 5, and 9 and 7 below 6.
    """

    def __init__(self, successors: int = SUCCESSORS) -> None:
        super().__init__(depth=0, width=successors)
