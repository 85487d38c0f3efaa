"""``generate`` without a model around its engine: what a model has for its generations are arguments of its own."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.loop import decode as decode_group
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.hf.generation import generate as module
from ipex_lookahead.runtime.run import RunOptions

_OPTIONS = ("stats", "make", "costs", "draft_engine", "stores", "forwards", "prefill_rows")


def generate(engine: Engine, *args: Any, **kwargs: Any) -> Any:
    """As ``generation.generate.generate``, the options of the run by name."""
    options = RunOptions(**{name: kwargs.pop(name) for name in _OPTIONS if kwargs.get(name) is not None})
    return module.generate(engine, *args, options=options, **kwargs)


def decode(
    engine: Engine, sequences: list[Sequence], controller: Controller, stats: GenerationStats, **options: Any
) -> None:
    """Sequences that have their proposers, from end to end."""
    for _ in decode_group(engine, SequenceGroup(sequences, stats, controller), **options):
        pass
