"""The families of text encoders: their rows and scores are transformers' in float32, and no part of a description can
change without a difference."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ipex_lookahead.architectures import encoder_families
from ipex_lookahead.architectures.encoder import EncoderSpec
from ipex_lookahead.architectures.keys import GIVEN
from ipex_lookahead.architectures.spec import Activation, Attention, Block, GatedMlp, Norm
from ipex_lookahead.checkpoints.encoders import open_encoder
from ipex_lookahead.embedding.checkpoint import open_text_encoder
from ipex_lookahead.engines.native.encoder import NativeTextEncoder
from tests.support.text_encoders import CASES, VOCAB, build, write_folder

transformers = pytest.importorskip("transformers", minversion="5.23")

Floats = npt.NDArray[np.float32]
CLOSE = 5e-5
"""Of the rows' standard deviation, in float32; the cosine of two such rows is above 1 - 1e-8."""
RNG = np.random.default_rng(7)
IDS = [RNG.integers(5, VOCAB, n) for n in (1, 2, 17, 41)]


def types_of(model: Any) -> list[npt.NDArray[np.int64]] | None:
    """Token types of ``IDS`` that have every value of the model."""
    kinds = getattr(model.config, "type_vocab_size", 0)
    return None if kinds < 2 else [np.arange(len(ids)) * 7 // 5 % kinds for ids in IDS]


def expected(model: Any, number: int) -> tuple[Floats, Any]:
    """Return transformers' rows of a text, and its logits if it is a cross-encoder."""
    base = getattr(model, model.base_model_prefix, model)
    types = types_of(model)
    given = {} if types is None else {"token_type_ids": torch.tensor(types[number])[None]}
    ids = torch.tensor(IDS[number])[None]
    with torch.no_grad():
        rows = base(ids, **given).last_hidden_state[0].numpy()
        return rows, model(ids, **given).logits[0].numpy() if hasattr(model, "classifier") else None


def distance(rows: list[Floats], model: Any) -> float:
    """Return the largest difference from transformers' rows, in standard deviations."""
    wanted = (expected(model, number)[0] for number in range(len(IDS)))
    return max(float(np.abs(one - want).max() / want.std()) for one, want in zip(rows, wanted, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_rows_and_scores_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = build(name)
    loaded = open_text_encoder(write_folder(tmp_path, name, model), threads=1)
    rows = loaded.encoder.rows(IDS, types_of(model))
    assert distance(rows, model) < CLOSE
    assert (loaded.head is not None) == CASES[name].scores
    if loaded.head is not None:
        pooled = [one[:1] if loaded.head.pooling == "cls" else one.mean(0, keepdims=True) for one in rows]
        scores = loaded.head(np.concatenate(pooled))
        assert scores.shape == (len(IDS), loaded.head.outputs)
        for number, score in enumerate(scores):
            np.testing.assert_allclose(score, expected(model, number)[1], atol=CLOSE, rtol=0)


# ---- mutants ---------------------------------------------------------------------------------------------------------


def each_block(change: Callable[[Block], Block]) -> Callable[[EncoderSpec], EncoderSpec]:
    return lambda spec: replace(spec, layers=tuple(map(change, spec.layers)))


def each_mixer(change: Callable[[Attention], dict[str, Any]]) -> Callable[[EncoderSpec], EncoderSpec]:
    def changed(block: Block) -> Block:
        assert isinstance(block.mixer, Attention)
        return replace(block, mixer=replace(block.mixer, **change(block.mixer)))

    return each_block(changed)


def each_mlp(change: Callable[[GatedMlp], dict[str, Any]]) -> Callable[[EncoderSpec], EncoderSpec]:
    def changed(block: Block) -> Block:
        assert isinstance(block.feed_forward, GatedMlp)
        return replace(block, feed_forward=replace(block.feed_forward, **change(block.feed_forward)))

    return each_block(changed)


def epsilon(field: str, value: float) -> Callable[[EncoderSpec], EncoderSpec]:
    def changed(spec: EncoderSpec) -> EncoderSpec:
        norm = getattr(spec, field)
        assert isinstance(norm, Norm)
        return replace(spec, **{field: replace(norm, epsilon=value)})

    return changed


def other_rope(mixer: Attention, spec: EncoderSpec) -> Any:
    """Return the rope of layers of the other kind."""
    ropes = [block.mixer.rope for block in spec.layers if isinstance(block.mixer, Attention)]
    assert mixer.rope is not None
    return next(one for one in ropes if one is not None and not np.array_equal(one.frequencies, mixer.rope.frequencies))


def swapped_ropes(spec: EncoderSpec) -> EncoderSpec:
    return each_mixer(lambda mixer: {"rope": other_rope(mixer, spec)})(spec)


def shifted_positions(spec: EncoderSpec) -> EncoderSpec:
    """The table's rows from the next one on."""
    table = spec.positions
    assert table is not None
    first = (table.hf.rows or (0, 1))[0]
    shape = (table.shape[0] - 1, table.shape[1])
    return replace(spec, positions=replace(table, shape=shape, hf=replace(table.hf, rows=(first - 1, 1))))


def tanh(spec: EncoderSpec) -> EncoderSpec:
    return each_mlp(lambda mlp: {"activation": Activation("gelu_tanh")})(spec)


def gate_last(spec: EncoderSpec) -> EncoderSpec:
    return each_mlp(lambda mlp: {"gate": mlp.up, "up": mlp.gate})(spec)


def window(more: int) -> Callable[[EncoderSpec], EncoderSpec]:
    return each_mixer(lambda mixer: {"window": None if mixer.window is None else mixer.window + more})


MUTANTS: dict[str, tuple[str, Callable[[EncoderSpec], EncoderSpec]]] = {
    "no types": ("bert", lambda spec: replace(spec, types=None)),
    "no positions": ("bert", lambda spec: replace(spec, positions=None)),
    "positions from the row before": ("xlm-roberta", shifted_positions),
    "epsilon of the embedding": ("bert", epsilon("embedding_norm", 1e-5)),
    "tanh instead of the error function": ("bert", tanh),
    "norms of the branches": ("bert", lambda spec: replace(spec, post_norm=False)),
    "scale of the scores": ("bert", each_mixer(lambda mixer: {"scale": mixer.scale * 1.01})),
    "no bias of v": ("bert", each_mixer(lambda mixer: {"v": replace(mixer.v, bias=None)})),  # type: ignore[type-var]
    "gate and up swapped": ("nomic", gate_last),
    "no ALiBi": ("jina-v2", lambda spec: replace(spec, slopes=())),
    "slopes of other heads": ("jina-v2-heads", lambda spec: replace(spec, slopes=spec.slopes[::-1])),
    "gate and up of one matrix swapped": ("modernbert", gate_last),
    "a wider window": ("modernbert", window(1)),
    "a narrower window": ("modernbert", window(-1)),
    "ropes swapped": ("modernbert", swapped_ropes),
    "tanh in a gated MLP": ("modernbert", tanh),
    "no final norm": ("modernbert", lambda spec: replace(spec, final_norm=None)),
    "epsilon of the final norm": ("modernbert-biases", epsilon("final_norm", 1e-5)),
    "a wider window of Gemma": ("gemma", window(1)),
    "a narrower window of Gemma": ("gemma", window(-1)),
    "ropes of Gemma swapped": ("gemma", swapped_ropes),
    "an embedding without factor": ("gemma", lambda spec: replace(spec, embedding_multiplier=1.0)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_changed_description_changes_the_rows(tmp_path: Path, mutant: str) -> None:
    name, change = MUTANTS[mutant]
    model = build(name)
    checkpoint = open_encoder(write_folder(tmp_path, name, model))
    spec: Any = checkpoint.spec
    changed = change(spec)
    own = {*spec.tensors()}
    for tensor in {*changed.tensors()} - own:  # a mutant may read other rows of a tensor
        checkpoint._weights[tensor.name] = tensor  # type: ignore[union-attr]
    encoder = NativeTextEncoder(changed, lambda tensor: checkpoint.read(tensor.name), threads=1)
    types = None if changed.types is None else types_of(model)
    assert distance(encoder.rows(IDS, types), model) > 3 * CLOSE


# ---- keys ------------------------------------------------------------------------------------------------------------


IN_TRANSFORMERS = {case.model_type: name for name, case in CASES.items() if case.class_name != "JinaBertModel"}


@pytest.mark.parametrize("name", sorted(IN_TRANSFORMERS.values()))
def test_every_key_of_transformers_is_in_one_list(name: str) -> None:
    config = build(name).config
    family = "gemma_embedding" if CASES[name].model_type == "gemma3_text" else CASES[name].model_type
    keys = encoder_families()[family].KEYS
    neutral, refused = keys.all_neutral(), keys.all_refused()
    assert not {*keys.used} & {*neutral, *refused}
    assert not {*neutral} & {*refused}
    names = {*inspect.signature(type(config)).parameters, *config.to_dict()} - {"self", "kwargs"}
    names -= {*transformers.GenerationConfig().to_dict()}
    known = {*GIVEN, *keys.used, *neutral, *refused}
    assert {one for one in names if not one.startswith("_")} - known == set()
