"""Promise 1 on a real model: the embedded SmolLM2, our own prompts, by bytes.

The tiny models of the other folders reach every shape; this one has real logits, real ties and real repetitions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.core import available_isas
from ipex_lookahead.errors import DownloadError
from ipex_lookahead.tokenization.prompts import build_prompt
from tests.gates import cases, rotating

NEW_TOKENS = cases(24, 64)
PROMPTS = cases(3, 12)
"""Prompts of each test, of those that the package has."""


def load(**kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained("default", progress=False, **kwargs)


@pytest.fixture(scope="module")
def model() -> Any:
    try:
        return load(threads=2)
    except DownloadError as error:
        pytest.skip(f"the embedded model is not there and cannot be fetched: {error}")


@pytest.fixture(scope="module")
def prompts(model: Any) -> list[list[int]]:
    lines = (files("ipex_lookahead.bench") / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [build_prompt(model.tokenizer, model.config.to_dict(), json.loads(line)["prompt"]) for line in lines]


@pytest.fixture
def forced_isa() -> Iterator[Any]:
    before = os.environ.get("IPEX_LOOKAHEAD_ISA")

    def force(isa: str) -> None:
        os.environ["IPEX_LOOKAHEAD_ISA"] = isa

    yield force
    if before is None:
        os.environ.pop("IPEX_LOOKAHEAD_ISA", None)
    else:
        os.environ["IPEX_LOOKAHEAD_ISA"] = before


def generate(model: Any, ids: list[int], **kwargs: Any) -> list[int]:
    out = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, **kwargs)
    return [int(t) for t in out[0]]


SAMPLED = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 1234}


@pytest.mark.parametrize("how", [{"do_sample": False}, SAMPLED], ids=["greedy", "sampled"])
def test_lookahead_never_changes_a_token(model: Any, prompts: list[list[int]], how: dict[str, Any]) -> None:
    drafted = accepted = 0
    for number in rotating(range(len(prompts)), PROMPTS):
        ids = prompts[number]
        plain = generate(model, ids, **how)
        for lookahead in (1, 3, 7):
            # The last one drafts in every step, whatever the steps cost on this machine.
            assert generate(model, ids, lookahead=lookahead, adaptive=lookahead < 7, **how) == plain
            drafted, accepted = drafted + model.stats.drafted, accepted + model.stats.accepted
    assert 0 < accepted < drafted


def test_lookahead_never_changes_a_logit(model: Any, prompts: list[list[int]]) -> None:
    ids = torch.tensor([prompts[0]])
    settings = {"max_new_tokens": 40, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    plain, drafted = model.generate(ids, **settings), model.generate(ids, lookahead=7, **settings)
    assert torch.equal(plain.sequences, drafted.sequences)
    for a, b in zip(plain.logits, drafted.logits, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_a_batch_gives_each_sequence_what_it_gets_alone(model: Any, prompts: list[list[int]]) -> None:
    some = sorted(prompts, key=len)[:3]
    longest = max(map(len, some))
    padded = torch.tensor([[0] * (longest - len(p)) + p for p in some])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in some])
    for how in ({"do_sample": False}, SAMPLED):
        together = model.generate(padded, attention_mask=mask, max_new_tokens=24, lookahead=3, **how)
        for row, prompt in enumerate(some):
            alone = model.generate(torch.tensor([prompt]), max_new_tokens=24, sequence_ids=[row], **how)[0][
                len(prompt) :
            ]
            assert together[row][longest : longest + len(alone)].tolist() == alone.tolist()


def step_logits(model: Any, ids: np.ndarray, chunks: list[int]) -> bytes:
    """The logits of every position, the prompt served in chunks."""
    cache, rows, at = model.engine.new_cache(), [], 0
    for size in chunks:
        part = ids[at : at + size]
        out = model.engine.forward(
            Batch([cache], [len(part)], part, np.arange(-1, len(part) - 1, dtype=np.int32), OutputRequest(logits=True))
        )
        cache.keep(list(range(len(part))))
        rows.append(out.logits)
        at += size
    return np.concatenate(rows).tobytes()


def test_threads_chunks_and_instruction_sets_give_the_same_logits(
    model: Any, prompts: list[list[int]], forced_isa: Any
) -> None:
    ids = np.array(prompts[1][: cases(10, 20)], dtype=np.int32)
    oracle = step_logits(model, ids, [len(ids)])
    best = available_isas()[0]
    for isa in available_isas():
        forced_isa(isa)
        for threads in (1, 2) if isa == best else (2,):
            engine = load(threads=threads)
            assert engine.engine.describe()["isa"] == isa
            for chunks in ([len(ids)], [7, len(ids) - 7], *([[1] * len(ids)] if isa == best else [])):
                assert step_logits(engine, ids, chunks) == oracle, (isa, threads, chunks)
