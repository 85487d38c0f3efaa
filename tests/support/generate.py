"""``generate`` without a model around its engine: what a model's runtime holds are arguments of its own."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller import Controller
from ipex_lookahead.controller.cost import EngineCosts
from ipex_lookahead.decoding.loop import decode as decode_group
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.store import Stores
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.engines.prefill import PREFILL_ROWS
from ipex_lookahead.hf.generation import generate as module
from ipex_lookahead.runtime.runtime import Runtime


def generate(
    engine: Engine,
    *args: Any,
    costs: EngineCosts | None = None,
    stores: Stores | None = None,
    draft_engine: Engine | None = None,
    prefill_rows: int = PREFILL_ROWS,
    make: Any = None,
    **kwargs: Any,
) -> Any:
    """As ``hf.generation.generate.generate``, with the parts of the runtime by name."""
    runtime = Runtime(engine, costs, stores)
    runtime.draft_engine = runtime.copy = draft_engine
    runtime.prefill_rows = prefill_rows
    found = module.generate(runtime, *args, own_proposer=make, **kwargs)
    if stores is None:
        runtime.stores.close()
    return found


def generated(
    engine: Engine, sequences: list[Sequence], config: LookaheadConfig | None = None, **options: Any
) -> list[Sequence]:
    """Generate sequences from end to end; ``options`` are those of ``Runtime.stepwise``."""
    for _ in Runtime(engine).stepwise(sequences, config, **options):
        pass
    return sequences


def decode(
    engine: Engine, sequences: list[Sequence], controller: Controller, stats: GenerationStats, **options: Any
) -> None:
    """Sequences that have their proposers, from end to end."""
    for _ in decode_group(engine, SequenceGroup(sequences, stats, controller), **options):
        pass
