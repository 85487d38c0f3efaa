"""The options of lookahead, and what they mean to ``generate``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from ipex_lookahead.cli.names import NEEDS_A_COPY, NEEDS_DRAFT_MODEL, STRATEGIES
from ipex_lookahead.cli.options import Decorator, option
from ipex_lookahead.cli.types import Store, Strategy, Tokens

NO_COPY = {NEEDS_A_COPY: "the copy is made in Python: from_pretrained(..., speculative=True)"}
"""What commands that load no second copy of a model cannot use, and why."""


def lookahead_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--lookahead``, ``--strategy`` and ``--draft-min-prob`` for one generation, and all of ``strategy_options``."""
    for decorate in (
        strategy_options,
        option(
            "--draft-min-prob",
            type=click.FloatRange(0, 1),
            metavar="X",
            help="A second model ends its draft with a token that it gives a lower probability.",
        ),
        option("--strategy", type=Strategy(), help=f"Where drafts come from: {', '.join(STRATEGIES)}."),
        option(
            "--lookahead",
            type=Tokens(),
            default=3,
            help="Most drafted tokens a step, or 'auto'; 0 is off. Never changes the text.",
        ),
    ):
        command = decorate(command)
    return command


def strategy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--no-adaptive --store --window --ngram --guesses``."""
    decorators: tuple[Decorator, ...] = (
        option("--guesses", type=click.IntRange(1, 60), help="jacobi: n-grams verified at a time (the paper's G)."),
        option("--ngram", type=click.IntRange(2, 16), help="jacobi: tokens of an n-gram (the paper's N)."),
        option("--window", type=click.IntRange(1, 60), help="jacobi: columns of the window (the paper's W)."),
        option(
            "--store",
            type=Store(),
            metavar="FILE|memory|none",
            help="suffix, auto: remember outputs in this file; 'memory': until the program ends (auto's own); 'none'.",
        ),
        option("--no-adaptive", is_flag=True, help="Always draft as much as allowed, whether or not it pays."),
    )
    for decorate in decorators:
        command = decorate(command)
    return command


@dataclass(slots=True)
class Lookahead:
    """The options of ``lookahead_options``."""

    lookahead: int | str = 3
    strategy: str | None = None
    no_adaptive: bool = False
    store: str | None = None
    window: int | None = None
    ngram: int | None = None
    guesses: int | None = None
    draft_min_prob: float | None = None

    def check(self) -> None:
        """Raise UsageError for an option that would have no effect."""
        for name in ("window", "ngram", "guesses"):
            if getattr(self, name) is not None and self.strategy != "jacobi":
                raise click.UsageError(f"--{name} is for --strategy jacobi; add that, or leave it out")
        if self.draft_min_prob is not None and self.strategy not in (None, NEEDS_DRAFT_MODEL, NEEDS_A_COPY):
            raise click.UsageError(
                f"--draft-min-prob is for --strategy {NEEDS_DRAFT_MODEL} and {NEEDS_A_COPY}; add one, or leave it out"
            )
        stores = self.strategy in ("suffix", "auto") or (self.strategy is None and self.lookahead == "auto")
        if self.store is not None and not (stores and self.lookahead != 0):
            raise click.UsageError("--store is for --lookahead auto and --strategy suffix; add one, or leave it out")

    def arguments(self) -> dict[str, Any]:
        """As keyword arguments of ``generate``: as given where no strategy is said, else a LookaheadConfig."""
        adaptive = {"adaptive": False} if self.no_adaptive else {}
        fields = {name: getattr(self, name) for name in ("store", "window", "ngram", "guesses", "draft_min_prob")}
        if self.strategy is None and all(value is None for value in fields.values()):
            return {"lookahead": self.lookahead, **adaptive}
        from ipex_lookahead.generation.lookahead import strategy_config

        strategy = NEEDS_DRAFT_MODEL if self.draft_min_prob is not None and self.strategy is None else self.strategy
        return {"lookahead": strategy_config(strategy, self.lookahead, **fields), **adaptive}
