"""C(D): what drafting itself takes, and the back-off of a proposer that brings less than it takes.

A cheap proposer makes a draft in microseconds: what its drafts have brought, less their cost, is a moving average, and
where that is below zero a pause follows. An expensive one, such as a second model, takes so long for each token that
their number is chosen with R(D) before there is a draft, and where none promises a gain a pause follows.
"""

from __future__ import annotations

from ipex_lookahead.controller.gain import MovingAverage

OVERHEAD = 2.5
"""What a cheap proposer costs, in units of its own time: its outcome is observed, and all of that leaves the next
forward colder caches (SmolLM2-135M, two cores of a Xeon: 31 to 45 microseconds of 103)."""
EXPENSIVE = 0.06
"""A proposer whose time for a token is above this share of a forward is expensive, as a second model is: its drafts are
as long as their own cost allows."""
FOLLOW_TIME, OUTLIER = 0.2, 3.0
"""Weight of a new time for a token, and by what factor it is believed above the mean: once in a while another process
has the core."""

NET_PRIOR, FOLLOW = 0.04, 0.1
"""What drafting is thought to bring a step, less what it costs, in forwards without drafts, before it was tried; and
the weight of a new step."""
FIRST_SHARE, SHRINK, LEAST_SHARE = 0.1, 0.7, 0.003
"""Drafting in vain may take this share of the time at first, so much of it after each step that brings nothing, and at
least the third; pauses are as long as that needs."""
LONGEST_PAUSE = 64
"""Steps of a pause at most."""
PROBE = 2
"""Tokens that are requested of an expensive proposer where no number of them promises a gain, to learn."""
LEAST_TOKENS, MOST_TOKENS = 4, 16
"""Tokens that are requested at least, and where fewer begin after a long draft."""

NEVER_IDLE = ("recycling",)
"""Sources that learn from the target's rows alone: in steps that are left alone they would learn nothing."""


class DraftCost:
    """What a proposer takes, what its drafts bring for that, and how many tokens are therefore requested of it.

    Args:
        most: tokens that may be requested.

    Attributes:
        tokens: to request of a cheap proposer: twice as many as lately were worth their rows.
        token_seconds: for a token; 0 before any was timed.
        pause: steps from now on in which nothing is drafted. Two tokens in a row that would have been right end it.
    """

    def __init__(self, most: int) -> None:
        self.tokens = self._most = most
        self.token_seconds = 0.0
        self.pause = 0
        self._net = MovingAverage(NET_PRIOR, FOLLOW)
        self._cost = 0.0
        self._share = FIRST_SHARE

    def selected(self, tokens: int) -> None:
        """So many of a draft, likeliest first, were worth their rows."""
        self.tokens = min(self._most, max(LEAST_TOKENS, 2 * tokens, min(self.tokens - 1, MOST_TOKENS)))

    def seconds(self, proposing: float, proposed: int, alone: float) -> float:
        """C(D) of a step that took so long to propose so many tokens; a forward without drafts takes ``alone``."""
        if not proposing > 0.0:  # an odd clock
            return 0.0
        if proposed:
            each, known = proposing / proposed, self.token_seconds
            self.token_seconds += FOLLOW_TIME * (min(each, OUTLIER * known) - known) if known else each
        return max(self.token_seconds * proposed, OVERHEAD * min(proposing, EXPENSIVE * alone))

    def weigh(self, gain: float, cost: float) -> None:
        """A step with cheap drafting has brought and cost so much, in forwards without drafts."""
        self._cost += FOLLOW * (cost - self._cost) if self._cost else cost
        self._net.add(gain - cost)
        self.judge(self._net.value >= 0.0, self._cost)

    def judge(self, pays: bool, cost: float) -> None:
        """Whether drafting pays; where it does not, a pause begins. ``cost`` is that of a step, in forwards."""
        if pays:
            self._share = FIRST_SHARE
            return
        self.pause = min(round(cost / self._share), LONGEST_PAUSE)
        self._share = max(self._share * SHRINK, LEAST_SHARE)

    def begin(self) -> None:
        """A sequence has come, of which nothing is known."""
        self.resume()
        self._net.value = max(self._net.value, NET_PRIOR)

    def resume(self) -> None:
        """The text is being repeated: tokens that were not requested would have been right."""
        self.pause = 0
        self._share = FIRST_SHARE
        self._net.value = max(self._net.value, 0.0)
