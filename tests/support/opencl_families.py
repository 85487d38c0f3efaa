"""Families' tiny models on an OpenCL device, whole and divided, compared with the native engine by bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ipex_lookahead.architectures import ModelSpec, model_types, spec_for
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.config_json import checked_config
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.engines.api import HELD, state_bytes
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.engines.opencl.supported import may_divide
from ipex_lookahead.files.safe_json import parse
from tests.support.family_engines import every_state, in_chunks, step
from tests.support.family_table import CONTEXT, Variant, variants
from tests.support.generate import generate
from tests.support.native import chain
from tests.support.tiny_families import build, config_of, text, write_folder

FORMATS = ("sym_int4", "asym_int4", "sym_int8", "nf4", "fp8_e4m3", "fp16")
"""Codes with a scale, with a minimum, of a byte, from a table, as floats of a byte, and floats."""
KV_CACHES = ("fp16", "int8")
REFUSED = {
    "nemotron_h": "experts that read a projection of the rows", "falcon_h1": "two mixers in a layer",
    "kimi_linear": "KimiDeltaAttention layers", "bailing_hybrid": "KimiDeltaAttention layers",
}  # fmt: skip
"""Features that have no kernels, by families with models that have them."""
EVERY = [(model_type, variant) for model_type in model_types() for variant in variants(model_type)]
MODELS = [
    (model_type, variant)
    for model_type, variant in EVERY
    if model_type not in REFUSED or (model_type == "nemotron_h" and variant.name != "experts on a projection")
]
NAMES = [f"{model_type}-{variant.name}" for model_type, variant in MODELS]
ROWS = (1, 1, 2, 3, 5, 9, 17, 24)
"""Rows of a sequence's part of a step: of decoding, of drafts and of prompts."""
MOST_SEQUENCES, LONGEST = 3, 120
NEW_TOKENS = 24


def spec_of(model_type: str, variant: Variant) -> ModelSpec:
    """The description that loading makes of a variant's config, without a checkpoint."""
    written = config_of(model_type, variant).to_json_string().encode()
    return spec_for(checked_config(parse(written, Path(model_type)), model_type), CONTEXT)


def opened(
    folder: Path, device: Device, low_bit: str, kv_cache: str, divisions: Sequence[int] = ()
) -> tuple[NativeEngine, list[OpenClEngine | SplitEngine]]:
    """The checkpoint on the native engine, and on the device: whole, and with that number of its last layers."""
    checkpoint = open_checkpoint(folder)
    try:
        spec = spec_for(checkpoint.config, CONTEXT)
        _, plan, _ = LoadRequest(folder, low_bit=low_bit).planned(checkpoint, spec)
        options: dict[str, Any] = {"threads": 1, "kv_cache": kv_cache}
        native = NativeEngine.load(checkpoint, spec, plan, **options)
        whole = OpenClEngine.load(checkpoint, spec, plan, device, **options)
        divided = [
            SplitEngine.load(checkpoint, spec, plan, device, layers, **options)
            for layers in divisions
            if layers < len(spec.layers) and may_divide(spec, layers)
        ]
        return native, [whole, *divided]
    finally:
        checkpoint.close()


def compare(
    folder: Path, model_type: str, variant: Variant, device: Device, low_bit: str, kv_cache: str, seed: int, walks: int
) -> None:
    """Everything that an engine gives for a family's model, the device's bytes against the native engine's."""
    model = build(model_type, variant)
    layers = len(spec_of(model_type, variant).layers)
    rng = np.random.default_rng(seed)
    divisions = rng.permutation(np.arange(1, layers))[: max(1, walks - 1)].tolist()
    native, engines = opened(write_folder(folder, model), device, low_bit, kv_cache, divisions)
    ids = text(model)
    states = every_state(native)
    expected = in_chunks(native, ids, [len(ids)], hidden=states)
    plain = answer(native, ids, None)
    for engine in engines:
        where = f"{type(engine).__name__} {engine.describe().get('gpu_layers', 'whole')}"
        for sizes, neighbors in (([len(ids)], []), ([1, 16, 3, 17], []), ([9, 1], [ids[::-1], ids[7:]])):
            got = in_chunks(engine, ids, sizes, neighbors, states)  # type: ignore[arg-type]
            assert got.tobytes() == expected.tobytes(), (where, sizes, len(neighbors))
        for number in range(walks):
            walk_together(native, engine, seed + number)
        for lookahead in (None, *LOOKAHEADS):
            assert answer(engine, ids, lookahead) == plain, (where, lookahead)
        assert sorted(stored(engine)) == sorted(stored(native)), where


LOOKAHEADS = (LookaheadConfig("prompt_lookup", 5, adaptive=False), LookaheadConfig("auto", 7, adaptive=False))
"""Chains of drafts, and trees."""


def answer(engine: Any, ids: Any, lookahead: LookaheadConfig | None) -> list[int]:
    """Greedy tokens after a prompt that repeats itself, so that drafts are found."""
    prompt = torch.from_numpy(np.concatenate([ids, ids[:20]]).astype(np.int64))[None]
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
    made = generate(engine, prompt, lookahead=lookahead, pad_token_id=0, **options)
    found: list[int] = made[0, prompt.shape[1] :].tolist()
    return found


def stored(engine: Any) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Each weight as ``save_low_bit`` writes it."""
    for name, weight in engine.weights():
        yield name, [(stream, array.tobytes()) for stream, array in weight.arrays()]


def walk_together(one: Any, other: Any, seed: int, steps: int = 32) -> None:
    """Take the same random steps on two engines: logits, lengths, and the lengths that crops reach are equal.

    Steps are prompts with and without settled rows, trees of which a path or a part of it is kept, and batches of them;
    between them sequences are cropped, forked, dropped, and recurrent states are checkpointed.
    """
    rng = np.random.default_rng(seed)
    stateful = state_bytes(one) > 0
    assert state_bytes(other) == state_bytes(one)
    pairs: list[tuple[Any, Any]] = [(one.new_cache(), other.new_cache())]
    for number in range(steps):
        action = rng.choice(["grow"] * 6 + ["crop"] * 2 + ["fork", "new", "drop", "checkpoint"])
        place = int(rng.integers(len(pairs)))
        mine, theirs = pairs[place]
        if action == "grow":
            chosen = rng.permutation(len(pairs))[: int(rng.integers(1, len(pairs) + 1))]
            _grow(one, other, [pairs[int(i)] for i in chosen], rng, f"seed {seed}, step {number}")
        elif action == "crop":
            length = int(rng.integers(0, mine.length + 1))
            assert mine.crop(length) == theirs.crop(length), f"seed {seed}, step {number}: crop({length})"
        elif action == "fork" and len(pairs) < MOST_SEQUENCES:
            pairs.append((mine.fork(), theirs.fork()))
        elif action == "new" and len(pairs) < MOST_SEQUENCES:
            pairs.append((one.new_cache(), other.new_cache()))
        elif action == "drop" and len(pairs) > 1:
            del pairs[place]
        elif action == "checkpoint" and stateful:
            mine.checkpoint()
            theirs.checkpoint()
        assert [len_of(pair[0]) for pair in pairs] == [len_of(pair[1]) for pair in pairs], (seed, number, action)


def len_of(cache: Any) -> int:
    """The committed positions of a cache."""
    return int(cache.length)


def _grow(one: Any, other: Any, pairs: Sequence[tuple[Any, Any]], rng: np.random.Generator, where: str) -> None:
    pairs = [pair for pair in pairs if len_of(pair[0]) + max(ROWS) <= LONGEST]
    if not pairs:
        return
    tokens, parents, settled = [], [], []
    for _ in pairs:
        count = int(rng.choice(ROWS))
        tokens.append(rng.integers(0, one.vocab_size, count).astype(np.int32))
        tree = count < 16 and rng.random() < 0.6
        above = [int(rng.integers(-1, i)) for i in range(count)] if tree else chain(count)
        parents.append(np.asarray(above, np.int32))
        settled.append(0 if tree else int(rng.choice((HELD, 0, 1, count))))
    rows, others = (
        step(engine, [pair[i] for pair in pairs], tokens, parents, settled=settled)
        for i, engine in enumerate((one, other))
    )
    for i, (mine, theirs) in enumerate(zip(rows, others, strict=True)):
        assert mine.tobytes() == theirs.tobytes(), f"{where}: sequence {i} of {len(pairs)}, parents {parents[i]}"
    for (mine, theirs), above, certain in zip(pairs, parents, settled, strict=True):
        path = [int(rng.integers(len(above)))]
        while above[path[0]] >= 0:
            path.insert(0, int(above[path[0]]))
        path = path[: int(rng.integers(0, len(path) + 1))]
        if path and len(path) >= certain:  # else the whole step is dropped
            mine.keep(path)
            theirs.keep(path)
