"""What every proposer can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import Hidden, OutputRequest


class Proposer(Protocol):
    """Puts drafts forward for one sequence. It sees committed tokens only, so it has nothing to roll back.

    The order of calls is ``begin``, then any number of ``propose`` and ``observe`` in turn. A proposer is
    deterministic: the same calls give the same drafts. Steps without ``propose`` are observed too, but only before the
    next ``propose``, and those of which nothing but the tokens is shown as one: ``emitted`` are those of all of them.

    Attributes:
        wants: what of the target's step at every row of the sequence the proposer wants in its outcomes, beside the
            argmax; mostly nothing (``ARGMAX``). It takes time, so of steps that the controller leaves alone there are
            hidden states only. Its ``rows`` and ``hidden_rows`` are None.
    """

    @property
    def wants(self) -> OutputRequest:
        """What ``observe`` is to find in its outcomes."""
        ...

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Start a sequence: the prompt and whatever has been emitted before the first draft, token ids.

        ``hidden``, given where ``wants`` has layers, are the hidden states of the tokens before the last one, by layer;
        of the latest ones only, where keys and values of the first ones were kept from an earlier text, or the prompt
        has more than 4,096 tokens.
        """
        ...

    def propose(self, budget: int) -> Draft:
        """At most ``budget`` tokens (scratch rows included) that may follow the committed ones; may be empty."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """What verification made of the last draft. ``outcome.emitted`` are the newly committed tokens."""
        ...
