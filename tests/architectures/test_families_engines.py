"""Every family on the engines: right against transformers in float32, and on the native one exact by bytes, however its
rows are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.architectures import family, model_types
from ipex_lookahead.checkpoints import GgufCheckpoint, open_checkpoint
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting import PROPOSERS, SECOND_MODEL
from ipex_lookahead.engines.native.core import available_isas
from ipex_lookahead.errors import UnsupportedModelError
from tests.gates import cases, large, rotating
from tests.support.family_engines import each, every_state, in_chunks, load, on, some, step
from tests.support.family_table import CONTEXT, VOCAB, Variant, variants
from tests.support.generate import generate
from tests.support.gguf_families import as_in_file, write_gguf
from tests.support.native import chain
from tests.support.pairs import pairwise
from tests.support.reference_models import MODELS
from tests.support.tiny_families import (
    NOT_ON_TORCH,
    build,
    distance,
    logits,
    refused_by_torch,
    rename_text_part,
    rounded,
    text,
    write_folder,
)

EVERY = [(model_type, variant) for model_type in model_types() for variant in variants(model_type)]
EACH = each(some())
FLOATS = 1e-2
"""Of the logits' standard deviation: keys and values are float16, and some sums are in another order."""


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("old_words", [False, True], ids=["", "old"])
@each(EVERY)
@pytest.mark.rotating(36)
def test_logits_and_hidden_states_agree_with_transformers(
    tmp_path: Path, model_type: str, variant: Variant, old_words: bool, engine: str
) -> None:
    """The last states spread less evenly than logits: a final norm's weights are of many sizes."""
    if engine == "torch" and refused_by_torch(model_type, variant):
        return  # refused, see the next test
    model = build(model_type, variant)
    ids = torch.from_numpy(text(model)[None]).long()
    with torch.no_grad():
        expected = model(ids, output_hidden_states=True, use_cache=False)
    write_folder(tmp_path, model, old_words=old_words)
    options: dict[str, Any] = {"max_context": CONTEXT} if engine == "native" else {}
    options |= {"engine": engine, "dtype": "float32", "threads": 1, "progress": False}
    found = AutoModelForCausalLM.from_pretrained(tmp_path, **options)(ids, output_hidden_states=True)
    close = FLOATS if engine == "native" else 1e-4
    assert distance(found.logits, expected.logits.numpy()) < close
    assert [each.shape for each in found.hidden_states] == [each.shape for each in expected.hidden_states]
    for layer, (one, other) in enumerate(zip(found.hidden_states, expected.hidden_states, strict=True)):
        assert one.dtype == torch.float32
        assert distance(one, other.numpy()) < (2 * FLOATS if engine == "native" else 1e-4), layer
    checkpoint = open_checkpoint(tmp_path)
    checkpoint.close()
    if engine == "native" and (most := checkpoint.spec.max_context) < ids.shape[1]:  # longrope has other frequencies
        short = AutoModelForCausalLM.from_pretrained(tmp_path, **{**options, "max_context": most})(ids[:, :most]).logits
        assert distance(short, logits(model, ids[0, :most].numpy())) < FLOATS
        assert distance(short, found.logits[:, :most].numpy()) > 0.02


@each([one for one in EVERY if one[1].gguf])
@pytest.mark.rotating(24)
def test_a_gguf_file_is_the_folder(tmp_path: Path, model_type: str, variant: Variant) -> None:
    """The same weights bit for bit, and the logits of transformers."""
    model = build(model_type, variant)
    folder = open_checkpoint(write_folder(tmp_path / "folder", model))
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", model))
    theirs = [tensor.name for tensor in file.spec.tensors()]
    assert theirs == [tensor.name for tensor in folder.spec.tensors()] == list(file.names()) == list(folder.names())
    for name in theirs:
        one, two = folder.read(name), file.read(name)
        assert (one.format, one.shape) == (two.format, two.shape) == ("fp32", file.info(name).shape)
        values = as_in_file(name, one.codes, model.config)
        if name.endswith(".A_log"):  # a file has -e^x, which loses the last bit
            np.testing.assert_allclose(two.codes, values, rtol=3e-7, atol=1e-7)
        else:
            assert values.tobytes() == two.codes.tobytes(), name
    folder.close()
    file.close()
    ids = text(model)
    assert distance(in_chunks(load(file.path), ids, [len(ids)]), logits(model, ids)) < FLOATS


@pytest.mark.parametrize("model_type", [one for one in model_types() if refused_by_torch(one, variants(one)[0])])
def test_the_torch_engine_refuses_what_it_cannot_take_back(tmp_path: Path, model_type: str) -> None:
    """Transformers' caches of recurrent states cannot go back to before a rejected draft.

    A text part has no class in transformers, and a folder's experts are not in one tensor.
    """
    write_folder(tmp_path, build(model_type, variants(model_type)[0]))
    with pytest.raises(UnsupportedModelError, match=NOT_ON_TORCH):
        AutoModelForCausalLM.from_pretrained(tmp_path, engine="torch", dtype="float32", threads=1, progress=False)


@pytest.mark.parametrize("model_type", MODELS)
def test_a_family_that_transformers_lacks_has_a_plain_config(tmp_path: Path, model_type: str) -> None:
    write_folder(tmp_path, build(model_type, variants(model_type)[0]))
    config = AutoModelForCausalLM.from_pretrained(tmp_path, threads=1, progress=False).config
    assert (config.model_type, config.to_dict()["model_type"], config.hidden_size) == (model_type, model_type, 64)


CHUNKS: dict[str, tuple[list[int], int]] = {
    "whole": ([1000], 0),
    "one by one": ([1], 0),
    "uneven": ([7, 1, 16, 2], 0),
    "among others": ([5, 1, 9], 2),
    "one by one among others": ([1], 3),
}
WAYS = pairwise(
    {
        "isa": available_isas(),
        "threads": (1, 2, 3),
        "chunks": tuple(CHUNKS),
        "weights": ((None, "fp16"), ("sym_int4", "fp16"), ("sym_int8", "int8")),
    }
)


@EACH
@pytest.mark.rotating(12)
def test_every_way_of_serving_rows_gives_the_same_bytes(tmp_path: Path, model_type: str, variant: Variant) -> None:
    write_folder(tmp_path, build(model_type, variant))
    chance = np.random.default_rng(5)
    ids, *neighbours = chance.integers(3, VOCAB, (4, 57)).astype(np.int32)
    expected: dict[Any, bytes] = {}
    for way in rotating(WAYS, 4, lambda one: one, lambda one: f"{model_type} {variant.name} {one}"):
        low_bit, kv_cache = way["weights"]
        if way["weights"] not in expected:
            with on("scalar"):
                engine = load(tmp_path, low_bit, kv_cache=kv_cache)
                expected[way["weights"]] = in_chunks(engine, ids, [1], (), every_state(engine)).tobytes()
        with on(way["isa"]):
            engine = load(tmp_path, low_bit, threads=way["threads"], kv_cache=kv_cache)
        assert engine.describe()["isa"] == way["isa"]
        sizes, beside = CHUNKS[way["chunks"]]
        got = in_chunks(engine, ids, sizes, neighbours[:beside], every_state(engine))
        assert got.tobytes() == expected[way["weights"]], way


@EACH
@pytest.mark.rotating(12)
def test_a_row_of_a_tree_is_that_of_its_path(tmp_path: Path, model_type: str, variant: Variant) -> None:
    """Trees whose branches reach over the edge of a window, in two sequences at once, at several lengths."""
    engine = load(write_folder(tmp_path, build(model_type, variant)), "sym_int4", threads=2)
    chance = np.random.default_rng(6)
    prefix = chance.integers(3, VOCAB, 40).astype(np.int32)
    cache, rows = engine.new_cache(), 13
    for length in (3, 9, 28):
        step(engine, [cache], [prefix[:length]], [chain(length)])
        cache.keep(list(range(length)))
        tokens = chance.integers(3, VOCAB, rows).astype(np.int32)
        parents = np.array([int(chance.integers(-1, row)) if chance.random() < 0.5 else row - 1 for row in range(rows)])
        other = chance.integers(3, VOCAB, 5).astype(np.int32)
        trees = [parents.astype(np.int32), chain(5)]
        states = every_state(engine)
        found = step(engine, [cache, engine.new_cache()], [tokens, other], trees, states)[0]
        for row in range(rows):
            path = [row]
            while parents[path[0]] >= 0:
                path.insert(0, int(parents[path[0]]))
            alone = step(engine, [cache.fork()], [tokens[path]], [chain(len(path))], states)[0]
            assert found[row].tobytes() == alone[-1].tobytes(), (length, row, path)
        prefix = prefix[length:]


@EACH
@pytest.mark.rotating(12)
def test_what_was_cropped_or_dropped_leaves_no_trace(tmp_path: Path, model_type: str, variant: Variant) -> None:
    """Back to before a window's length, after drafts longer than it, and on a fork."""
    engine = load(write_folder(tmp_path, build(model_type, variant)))
    chance = np.random.default_rng(7)
    ids, other = chance.integers(3, VOCAB, (2, 48)).astype(np.int32)
    expected = in_chunks(engine, ids, [1])
    cache = engine.new_cache()
    step(engine, [cache], [ids[:30]], [chain(30)])
    cache.keep(list(range(30)))
    step(engine, [cache], [other[:17]], [chain(17)])
    cache.keep([0, 1])  # then back to where both agree
    for length in (30, 21, 4, 0):
        length = cache.crop(length)  # a recurrent state may only go back further
        twin = cache.fork()
        for one in (cache, twin):
            rest = ids[length:]
            found = step(engine, [one], [rest], [chain(len(rest))])[0]
            assert found.tobytes() == expected[length:].tobytes(), length
            one.keep(list(range(len(rest) - 3)))


STRATEGIES = [name for name in PROPOSERS if name not in SECOND_MODEL]
WEIGHTS = ((None, "fp16"), ("sym_int4", "int8"))
GENERATIONS = pairwise(
    {
        "strategy": STRATEGIES,
        "budget": (1, 3, 8, 31),
        "batch": (1, 3),
        "sampled": (False, True),
        "weights": WEIGHTS,
    }
)


@pytest.mark.rotating(1)
def test_lookahead_changes_no_token_and_no_logit(tmp_path: Path) -> None:
    """Every proposer, budget and batch, greedy and sampled. With all of them each family accepts drafted tokens."""
    accepted, numbered = dict.fromkeys(model_types(), 0), list(enumerate(GENERATIONS))
    for model_type, variant in rotating(some(), 20, lambda one: {"model_type": one[0]}):
        folder = write_folder(tmp_path / model_type / variant.name, build(model_type, variant))
        engines = {weights: load(folder, weights[0], kv_cache=weights[1]) for weights in WEIGHTS}
        taken = rotating(numbered, 5, lambda one: one[1], lambda one, family=model_type: f"{family} {one[0]}")
        for number, row in taken:
            accepted[model_type] += _same_with_lookahead(engines[row["weights"]], row, seed=number)
    assert (all if large() else any)(accepted.values()), accepted


def _same_with_lookahead(engine: Any, row: dict[str, Any], seed: int) -> int:
    chance = np.random.default_rng(seed)
    period = chance.integers(3, VOCAB, 5)
    ids = torch.from_numpy(np.stack([np.roll(np.tile(period, 3), shift) for shift in range(row["batch"])]))
    options: dict[str, Any] = {
        "max_new_tokens": 36, "eos_token_id": None, "pad_token_id": 0, "return_dict_in_generate": True,
        "output_logits": True,
    }  # fmt: skip
    if row["sampled"]:
        options |= {"do_sample": True, "temperature": 0.3, "seed": seed}
    plain = generate(engine, ids, **options)
    config = LookaheadConfig(row["strategy"], row["budget"], adaptive=False)
    ahead = generate(engine, ids, lookahead=config, **options)
    assert plain.sequences.tolist() == ahead.sequences.tolist(), row
    for one, two in zip(plain.logits, ahead.logits, strict=True):
        assert one.numpy().tobytes() == two.numpy().tobytes(), row
    return int(ahead.stats.accepted)


@pytest.mark.parametrize("low_bit", ["sym_int4", "asym_int4", "sym_int8", "bf16"])
@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.rotating(9)
def test_what_is_saved_is_loaded_by_bytes(tmp_path: Path, model_type: str, low_bit: str) -> None:
    for variant in variants(model_type)[: cases(1, 100)]:
        folder = write_folder(tmp_path / variant.name / "folder", build(model_type, variant))
        model = AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit=low_bit, threads=1, progress=False)
        saved = tmp_path / variant.name / "saved"
        model.save_low_bit(saved)
        again = AutoModelForCausalLM.load_low_bit(saved, threads=1, progress=False)
        ids = torch.from_numpy(text(build(model_type, variant))[None, : model.engine.max_context - 1]).long()
        assert again(ids).logits.numpy().tobytes() == model(ids).logits.numpy().tobytes()
        ours, theirs = dict(model.engine.weights()), dict(again.engine.weights())
        assert list(ours) == list(theirs)
        for name, weight in ours.items():
            other = theirs[name]
            assert (weight.format, weight.shape, weight.group_size) == (other.format, other.shape, other.group_size)
            assert weight.codes.tobytes() == other.codes.tobytes(), name


@pytest.mark.parametrize("model_type", [one for one in model_types() if not refused_by_torch(one, variants(one)[0])])
@pytest.mark.rotating(6)
def test_the_torch_engines_low_bit_folder_runs_on_the_native_engine(tmp_path: Path, model_type: str) -> None:
    """It saves a family's tensors as transformers has them, which may be several weights in one."""
    variant = variants(model_type)[0]
    folder = write_folder(tmp_path / "folder", build(model_type, variant))
    model = AutoModelForCausalLM.from_pretrained(
        folder, load_in_low_bit="sym_int8", engine="torch", threads=1, progress=False, dtype="float32"
    )
    model.save_low_bit(tmp_path / "saved")
    ids = torch.from_numpy(text(build(model_type, variant))[None]).long()
    expected = model(ids).logits[0].float().numpy()
    again = AutoModelForCausalLM.load_low_bit(
        tmp_path / "saved", engine="torch", threads=1, progress=False, dtype="float32"
    )
    assert again(ids).logits[0].float().numpy().tobytes() == expected.tobytes()
    native = AutoModelForCausalLM.load_low_bit(tmp_path / "saved", threads=1, progress=False)
    got = native(ids).logits[0].numpy()
    # Activations have 8 bits there, which may send a row of a mixture to another expert.
    apart = [distance(*rows) for rows in zip(got, expected, strict=True)]
    assert sorted(apart)[len(apart) // 2 if "experts" in native.engine.describe() else -1] < 0.25


@pytest.mark.parametrize("model_type", [one for one in model_types() if family(one).KEYS.inside])
@pytest.mark.rotating(6)
def test_a_text_part_has_either_of_its_names(tmp_path: Path, model_type: str) -> None:
    write_folder(tmp_path, build(model_type, variants(model_type)[0]))
    ids = np.arange(3, 20, dtype=np.int32)
    expected = in_chunks(load(tmp_path), ids, [17])
    rename_text_part(tmp_path)
    assert in_chunks(load(tmp_path), ids, [17]).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.rotating(9)
def test_halves_are_read_as_they_are(tmp_path: Path, model_type: str, dtype: str) -> None:
    """Norms with 1 added, parts and transposed entries of 2-byte tensors: the values that torch has."""
    model = build(model_type, variants(model_type)[0])
    full = open_checkpoint(write_folder(tmp_path / "full", rounded(model, dtype)))
    half = open_checkpoint(write_folder(tmp_path / "half", model, dtype=dtype))
    for tensor in half.spec.tensors():
        one, two = full.read(tensor.name), half.read(tensor.name)
        assert two.format in ({"float16": "fp16", "bfloat16": "bf16"}[dtype], "fp32")
        values = torch.from_numpy(np.ascontiguousarray(two.codes))
        if two.format != "fp32":
            values = values.view(getattr(torch, dtype)).float()
        assert values.numpy().tobytes() == one.codes.tobytes(), tensor.name
    full.close()
    half.close()
