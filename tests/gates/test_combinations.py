"""Random models, random options: lookahead changes no token, no logit, no score and no order of callbacks, by bytes.

Each model is of a shape drawn at random (heads of 8 to 256, 1 to 21 of them, ragged widths, vocabularies from 7 on),
with switches drawn at random (norms, ropes, windows, caps, sinks, multipliers, experts), in a format and with keys and
values drawn at random. A pair is one generation without and one with lookahead, of options drawn at random; some
generations are aborted half-way by an exception, and the next ones must not notice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting import PROPOSERS, SECOND_MODEL
from ipex_lookahead.engines.low_bit_copy import low_bit_copy
from ipex_lookahead.engines.native.engine import NativeEngine
from tests.gates import cases, seed
from tests.support.generate import generate
from tests.support.specs import make_spec, random_switches

PAIRS = cases(600, 30_000)
PAIRS_A_MODEL = 40

FORMATS = ("sym_int4", "asym_int4", "sym_int8", "bf16", "fp16", "fp32")
VOCABULARIES = (7, 33, 64, 105, 257, 1000, 4099)
LARGE_VOCABULARIES = (32_003, 49_152, 128_257)
"""One model in twenty has one of these: most of its time is the lm_head's."""


class Aborted(Exception):
    """What a caller's own code may raise in the middle of a generation."""


@dataclass
class Watcher:
    """A stop criterion that writes down what it is shown, and at one place stops or raises."""

    stop: int | None = None
    abort: int | None = None
    seen: list[Any] = field(default_factory=list)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        self.seen.append(input_ids.tolist())
        if self.abort is not None and len(self.seen) >= self.abort:
            raise Aborted
        done = self.stop is not None and len(self.seen) >= self.stop
        return torch.full((len(input_ids),), done)


class Streamer:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def put(self, value: Any) -> None:
        self.told.append(value.tolist())

    def end(self) -> None:
        self.told.append("end")


def random_engine(chance: random.Random) -> NativeEngine:
    vocab = chance.choice(LARGE_VOCABULARIES) if chance.random() < 0.05 else chance.choice(VOCABULARIES)
    spec = make_spec(**{**random_switches(chance), "vocab": vocab, "context": 160})
    name = chance.choice(FORMATS)
    return NativeEngine.random(
        spec,
        name,
        group_size=chance.choice((32, 64)) if name not in ("bf16", "fp16", "fp32") else 32,
        head_low_bit=chance.choice((None, None, "sym_int8", "sym_int4")),
        threads=chance.choice((1, 1, 2, 3)),
        kv_cache=chance.choice(("fp16", "int8")),
        seed=chance.randrange(1 << 30),
    )


def random_options(chance: random.Random, vocab: int) -> dict[str, Any]:
    longest = chance.choice((1, 2, 5, 9, 30))
    count = chance.choice((1, 1, 1, 2, 3, 5))
    lengths = [longest, *(chance.randint(1, longest) for _ in range(count - 1))]
    repeated = [chance.randrange(vocab) for _ in range(4)]  # so that there is something to look up
    prompts = [
        [chance.choice(repeated) if chance.random() < 0.7 else chance.randrange(vocab) for _ in range(length)]
        for length in lengths
    ]
    options: dict[str, Any] = {
        "input_ids": torch.tensor([[0] * (longest - len(p)) + p for p in prompts]),
        "attention_mask": torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
        "max_new_tokens": chance.choice((1, 2, 6, 14, 24)),
        "eos_token_id": chance.choice((None, chance.randrange(vocab), [chance.randrange(vocab), 1])),
        "pad_token_id": 0,
        "return_dict_in_generate": True,
        "output_logits": True,
        "output_scores": chance.random() < 0.5,
    }
    if chance.random() < 0.5:
        options |= {"do_sample": True, "seed": chance.randrange(1 << 64)}
        options |= chance.choice(({}, {"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.8, "temperature": 1.4}))
        options |= chance.choice(({}, {}, {"min_p": 0.05}, {"typical_p": 0.9}))
    options |= chance.choice(({}, {}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 3}, {"min_new_tokens": 4}))
    return options


def random_lookahead(chance: random.Random, engine: NativeEngine, copy: NativeEngine | None) -> dict[str, Any]:
    names = [name for name in PROPOSERS if name not in SECOND_MODEL or copy is not None]
    strategy = chance.choice(names)
    fields: dict[str, Any] = {"num_draft_tokens": chance.choice((1, 2, 3, 5, 8, 16, 31, 64, 128))}
    fields["adaptive"] = chance.random() < 0.3
    if strategy == "jacobi":
        fields |= {"window": chance.randint(1, 6), "ngram": chance.randint(2, 5), "guesses": chance.randint(1, 6)}
    if strategy == "prompt_lookup":
        fields |= {"occurrence": chance.choice(("first", "last")), "max_matching_ngram_size": chance.randint(1, 5)}
    return {
        "lookahead": LookaheadConfig(strategy, **fields),
        "draft_engine": copy if strategy in SECOND_MODEL else None,
    }


def outcome(engine: NativeEngine, options: dict[str, Any], watch: dict[str, Any] | None, streamed: bool) -> Any:
    """Everything that a caller can see of a generation, as bytes where it is numbers."""
    watcher = None if watch is None else Watcher(**watch)
    streamer = Streamer() if streamed else None
    try:
        found = generate(engine, **options, stopping_criteria=None if watcher is None else [watcher], streamer=streamer)
        logits = [step.numpy().tobytes() for step in found.logits]
        scores = None if found.scores is None else [step.numpy().tobytes() for step in found.scores]
        result: Any = (found.sequences.tolist(), logits, scores, found.stats.finish_reasons)
    except Aborted:
        result = "aborted"
    return result, watcher and watcher.seen, streamer and streamer.told


def test_lookahead_changes_nothing_that_can_be_seen() -> None:
    chance = random.Random(seed())
    counted = {"pairs": 0, "drafted": 0, "aborted": 0, "batches": 0, "sampled": 0}
    while counted["pairs"] < PAIRS:
        engine = random_engine(chance)
        copy = low_bit_copy(engine) if engine.low_bit in ("sym_int8", "bf16", "fp16") else None
        large = engine.vocab_size in LARGE_VOCABULARIES
        for _ in range(4 if large else PAIRS_A_MODEL):
            options = random_options(chance, engine.vocab_size)
            watch = chance.choice((None, None, {}, {"stop": chance.randint(1, 20)}, {"abort": chance.randint(1, 9)}))
            streamed = len(options["input_ids"]) == 1 and chance.random() < 0.5
            how = random_lookahead(chance, engine, copy)
            plain = outcome(engine, options, watch, streamed)
            ahead = outcome(engine, {**options, **how}, watch, streamed)
            assert ahead == plain, (counted, engine.spec, engine.describe(), options, how, watch)
            counted["pairs"] += 1
            counted["aborted"] += plain[0] == "aborted"
            counted["batches"] += len(options["input_ids"]) > 1
            counted["sampled"] += "seed" in options
            if counted["pairs"] >= PAIRS:
                break
    counted["drafted"] = drafts_accepted(chance)
    print(counted)
    assert min(counted.values()) > 0, counted


def drafts_accepted(chance: random.Random) -> int:
    """That drafts are made and accepted at all on such models: else nothing above was tried."""
    accepted = 0
    for _ in range(20):
        engine = random_engine(chance)
        ids = torch.tensor([[1, 2, 3, 1, 2, 3]])
        how = LookaheadConfig("auto", 16, adaptive=False)
        found = generate(engine, ids, max_new_tokens=40, eos_token_id=None, lookahead=how, return_dict_in_generate=True)
        accepted += found.stats.accepted
    return accepted


@pytest.mark.rotating(0)
def test_the_gate_would_see_one_bit() -> None:
    """An engine whose logits depend on the number of rows in one bit of one row is found out."""
    chance = random.Random(seed())
    engine = random_engine(chance)
    forward = engine.forward

    def with_one_bit_more(batch: Any) -> Any:
        found = forward(batch)
        if found.logits is not None and len(batch.tokens) > 4 and len(found.logits) > 1:
            found.logits[0, 0] = np.nextafter(found.logits[0, 0], np.float32(np.inf))
        return found

    engine.forward = with_one_bit_more  # type: ignore[method-assign]
    how = {"lookahead": LookaheadConfig("recycling", 8, adaptive=False)}
    different = 0
    for _ in range(20):
        options = random_options(chance, engine.vocab_size) | {"max_new_tokens": 24, "eos_token_id": None}
        different += outcome(engine, options, None, False) != outcome(engine, {**options, **how}, None, False)
    assert different
