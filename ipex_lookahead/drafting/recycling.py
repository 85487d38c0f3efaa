"""Token Recycling (Luo et al., arXiv 2408.08696): the target's own most likely tokens from earlier steps.

Verification computes the most likely ids after every row, including rejected ones. This proposer stores them in a table
of successors: for each token, the ids that were likely when it was last a row. The paper fills a fixed tree of 80
nodes, which is too slow to verify on a CPU; here the tree has the size of the budget and grows best first, by the
measured acceptance of each rank. The table also has successors of pairs of tokens.
"""

from __future__ import annotations

from ipex_lookahead.drafting.partial_matching import SUCCESSORS, PartialMatching


class Recycling(PartialMatching):
    """A small tree from the successors last seen.

    Before the first verification, the prompt's own pairs are used: after ``begin([5, 6, 7, 5])`` the token 5 has the
    successor 6, and ``propose(2)`` returns the chain ``6 7``.

    Example: a step verifies the draft 6; the most likely ids are ``[6, 8]`` after 5 and ``[9, 7]`` after 6. So it emits
        6
    and 9, and the next step 5. Then ``propose(4)`` returns the tree of 6 and 8 after 5, with 9 and 7 below 6.
    """

    def __init__(self, successors: int = SUCCESSORS) -> None:
        super().__init__(depth=0, width=successors)
