"""Heads of every kind under random options: lookahead by them changes nothing that a caller can see, by bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5", reason="the models are made of transformers 5's layers")

from ipex_lookahead.config import LookaheadConfig
from tests.gates import cases, seed
from tests.gates.test_combinations import outcome, random_options
from tests.support.generate import generate
from tests.support.heads import KINDS, opened, write
from tests.support.pairs import pairwise

PAIRS_A_MODEL = cases(8, 400)
MODELS = pairwise(
    {
        "kind": KINDS,
        "low_bit": (None, "sym_int4", "asym_int4", "sym_int8", "q4_k"),
        "kv_cache": ("fp16", "int8"),
        "threads": (1, 2, 3),
    }
)
Paths = dict[str, tuple[Path, Path | None]]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return {kind: write(kind, tmp_path_factory.mktemp("head")) for kind in KINDS}


def random_head_lookahead(chance: random.Random) -> LookaheadConfig:
    strategy = chance.choice(("auto", "head"))
    fields: dict[str, Any] = {"num_draft_tokens": chance.choice((1, 2, 3, 5, 8, 16))}
    fields["adaptive"] = chance.random() < 0.5
    if strategy == "head":
        fields["draft_min_prob"] = chance.choice((0.0, 0.0, 0.2))
    return LookaheadConfig(strategy, **fields)


@pytest.mark.parametrize("model", MODELS, ids=lambda row: " ".join(str(value) for value in row.values()))
@pytest.mark.rotating(7)
def test_a_head_changes_nothing_that_can_be_seen(paths: Paths, model: dict[str, Any]) -> None:
    """Tokens, logits, scores, callbacks: of one engine without lookahead, and with it."""
    chance = random.Random(f"{seed()} {model}")
    options = {name: model[name] for name in ("low_bit", "kv_cache", "threads")}
    engine = opened(paths[model["kind"]], **options)
    for _ in range(PAIRS_A_MODEL):
        asked = random_options(chance, engine.vocab_size)
        watch = chance.choice((None, None, {}, {"stop": chance.randint(1, 20)}, {"abort": chance.randint(1, 9)}))
        streamed = len(asked["input_ids"]) == 1 and chance.random() < 0.5
        how = random_head_lookahead(chance)
        plain = outcome(engine, asked, watch, streamed)
        assert outcome(engine, {**asked, "lookahead": how}, watch, streamed) == plain, (model, asked, how, watch)
    for strategy in ("head", "auto"):  # that the head drafts at all: else nothing above was tried
        asked = random_options(chance, engine.vocab_size) | {"max_new_tokens": 24, "eos_token_id": None}
        found = generate(engine, **asked, lookahead=LookaheadConfig(strategy, 4, adaptive=False))
        assert found.stats.drafted_by_source["head"]
