"""The protocol of proposers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import Hidden, OutputRequest


class Proposer(Protocol):
    """Drafts tokens for one sequence. It sees committed tokens only, so it has nothing to roll back.

    The order of calls is ``begin``, then any number of ``propose`` and ``observe``, alternating. A proposer is
    deterministic: the same calls return the same drafts. Steps without ``propose`` are observed before the next
    ``propose``; consecutive ones without further outputs are merged into one outcome with all ``emitted`` tokens.

    Attributes:
        wants: outputs of the target at every row that the proposer needs in its outcomes, in addition to the argmax;
            mostly none (``ARGMAX``). They cost time, so steps without a draft provide hidden states only. Its ``rows``
            and ``hidden_rows`` are None.
    """

    @property
    def wants(self) -> OutputRequest:
        """Outputs of the target that ``observe`` needs."""
        ...

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Start a sequence with the prompt and all tokens emitted before the first draft.

        ``hidden``, given if ``wants`` has layers, are the hidden states of the tokens before the last one, by layer.
        They cover the last tokens only if the cache was reused for the first ones or the prompt has more than 4,096
        tokens.
        """
        ...

    def propose(self, budget: int) -> Draft:
        """Return a draft of at most ``budget`` tokens (including scratch rows); may be empty."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Process the verification of the last draft. ``outcome.emitted`` are the newly committed tokens."""
        ...
