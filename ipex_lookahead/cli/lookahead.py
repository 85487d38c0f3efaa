"""The options of lookahead, and their translation to arguments of ``generate``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import click
from click.core import ParameterSource

from ipex_lookahead.cli.names import NEEDS_A_COPY, NEEDS_A_HEAD, NEEDS_DRAFT_MODEL, STRATEGIES
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.types import Store, Strategy, Tokens
from ipex_lookahead.config import LookaheadConfig

NO_COPY = {NEEDS_A_COPY: "the copy is made in Python: from_pretrained(..., speculative=True)"}
"""Strategies that need a second copy of the model -> the reason why a command does not support them."""


def choose_strategy(ctx: click.Context) -> None:
    """Choose a strategy for ``--drafter`` if none is given: "auto", or the head with a fixed number of tokens.

    A benchmark of several modes also measures the head alone, and uses ``--draft-model``.
    """
    given = ctx.params
    if given.get("strategy") or "lookahead" not in given:
        return
    several, numbers = isinstance(given["lookahead"], tuple), given["lookahead"]
    if several and given.get("draft_model") is not None:
        given["strategy"] = (NEEDS_DRAFT_MODEL,)
    if given.get("drafter") is None:
        return
    if ctx.get_parameter_source("lookahead") is ParameterSource.DEFAULT:
        given |= {"strategy": ("auto", NEEDS_A_HEAD)} if several else {"lookahead": "auto"}
    elif any(number not in (0, "auto") for number in (numbers if several else (numbers,))):
        given["strategy"] = (NEEDS_A_HEAD,) if several else NEEDS_A_HEAD


@dataclass
class StrategyOptions:
    """The options of strategies; None keeps the default of ``LookaheadConfig``."""

    no_adaptive: bool = option("Always draft the maximum number of tokens, even if that is slower.", False)
    store: str | None = option(
        "Store of earlier outputs to draft from (suffix, auto): a file, 'memory' or 'none'.",
        type=Store(),
        metavar="FILE|memory|none",
    )
    window: int | None = option("jacobi: width of the window, W in the paper.", like=LookaheadConfig)
    ngram: int | None = option("jacobi: tokens per n-gram, N in the paper.", like=LookaheadConfig)
    guesses: int | None = option("jacobi: n-grams to verify per step, G in the paper.", like=LookaheadConfig)


@dataclass
class ServedLookahead:
    """The options of lookahead of a server."""

    lookahead: int | str = option(
        "Maximum tokens to draft per step, or 'auto'; 0 turns lookahead off. Requests can override it.",
        "auto",
        type=Tokens(),
    )
    strategy: str | None = option(
        f"Draft source: {', '.join(name for name in STRATEGIES if name not in NO_COPY)}.",
        type=Strategy(NO_COPY),
    )
    options: StrategyOptions = field(default_factory=StrategyOptions)

    def check(self) -> None:
        """Raise UsageError for an option that would have no effect."""
        for name in ("window", "ngram", "guesses"):
            if getattr(self.options, name) is not None and self.strategy != "jacobi":
                raise click.UsageError(f"--{name} is for --strategy jacobi; add that, or leave it out")
        stores = self.strategy in ("suffix", "auto") or (self.strategy is None and self.lookahead == "auto")
        if self.options.store is not None and not (stores and self.lookahead != 0):
            raise click.UsageError("--store is for --lookahead auto and --strategy suffix; add one, or leave it out")

    def arguments(self) -> dict[str, Any]:
        """Return keyword arguments of ``generate``: the number of tokens, or a LookaheadConfig for a strategy."""
        adaptive = {"adaptive": False} if self.options.no_adaptive else {}
        given = {name: value for name, value in self._fields().items() if value is not None}
        if self.strategy is None and not given:
            return {"lookahead": self.lookahead, **adaptive}
        from ipex_lookahead.runtime.lookahead import strategy_config

        strategy = NEEDS_DRAFT_MODEL if "draft_min_prob" in given and self.strategy is None else self.strategy
        return {"lookahead": strategy_config(strategy, self.lookahead, **given), **adaptive}

    def _fields(self) -> dict[str, Any]:
        """Return the given fields of ``LookaheadConfig``."""
        return {name: value for name, value in vars(self.options).items() if name != "no_adaptive"}


@dataclass
class Lookahead(ServedLookahead):
    """The options of lookahead for one generation."""

    lookahead: int | str = option(
        "Maximum tokens to draft per step, or 'auto'; 0 turns lookahead off. Never changes the text.", 3, type=Tokens()
    )
    strategy: str | None = option(f"Draft source: {', '.join(STRATEGIES)}.", type=Strategy())
    draft_min_prob: float | None = option(
        "Stop drafting after a token with a lower probability (draft model, head).", like=LookaheadConfig
    )

    def check(self) -> None:
        super().check()
        takes = (NEEDS_DRAFT_MODEL, NEEDS_A_COPY, NEEDS_A_HEAD)
        if self.draft_min_prob is not None and self.strategy not in (None, *takes):
            raise click.UsageError(f"--draft-min-prob is for --strategy {', '.join(takes)}; add one, or leave it out")

    def _fields(self) -> dict[str, Any]:
        return {**super()._fields(), "draft_min_prob": self.draft_min_prob}
