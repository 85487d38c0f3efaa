"""EAGLE-3 heads: what they compute, beside the formulas, and that what does not fit is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5", reason="the targets are transformers 5's")
import torch
from safetensors.torch import load_file, save_file

from ipex_lookahead.checkpoints.drafters import open_drafter
from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.core import ISA_VARIABLE, native_core
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.engines.native.load import load
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import InputError, UnsupportedModelError
from tests.support.eagle3_folders import LLAMA3, Head, Shape
from tests.support.family_table import VOCAB, Variant
from tests.support.quantized_folders import Kind, gptq
from tests.support.tiny_families import config_of, with_weights, write_folder

LAYERS = 6
EIGHT_BITS = 0.1
"""How near a head is whose matrices read rows of eight bits, five drafted rows on."""
SHAPES = {
    "plain": Shape(),
    "norm before residual": Shape(norm_before_residual=True),
    "norm before fc": Shape(norm_before_fc=True, norm_before_residual=True),
    "norms of states, fed back after the norm": Shape(fc_norm=True, norm_output=True),
    "norms over heads": Shape(head_norms=True, head_dim=32),
    "biases": Shape(biases=True),
    "own embedding, narrower": Shape(hidden=40, own_embedding=True, heads=5, kv_heads=1, head_dim=24),
    "wider than the target, two layers": Shape(hidden=96, own_embedding=True, layers=2, norm_before_residual=True),
    "the target's lm_head": Shape(own_head=False),
    "the whole vocabulary": Shape(outputs=VOCAB),
    "rope scaling": Shape(scaling=LLAMA3),
    "a window": Shape(window=7, layers=2),
    "four states, the last layer's among them": Shape(states=(0, 2, 4, LAYERS)),
    "one state twice": Shape(states=(2, 2, 3)),
}


class Target:
    """A model, in transformers' hands and in ours."""

    def __init__(self, folder: Path) -> None:
        self.model = with_weights(config_of("llama", Variant("six layers", {"num_hidden_layers": LAYERS})))
        write_folder(folder, self.model)
        self.engine: NativeEngine = load(LoadRequest(folder, threads=2)).engine

    def states(self, tokens: np.ndarray, layers: tuple[int, ...]) -> torch.Tensor:
        """Theirs [n, layers * hidden]; of the last layer before the norm."""
        found: list[torch.Tensor] = []
        handle = self.model.model.layers[-1].register_forward_hook(
            lambda module, given, out: found.append(out[0] if isinstance(out, tuple) else out)
        )
        with torch.no_grad():
            ids = torch.from_numpy(tokens).long()[None]
            hidden = self.model(ids, output_hidden_states=True).hidden_states
        handle.remove()
        return torch.cat([(found[0] if one == LAYERS else hidden[one]).reshape(len(tokens), -1) for one in layers], -1)

    def features(self, tokens: np.ndarray, head: NativeHead) -> np.ndarray:
        """Ours, as the head asks for them."""
        layers = head.spec.features.layers
        wants = OutputRequest(hidden=tuple({*layers}))
        hidden = self.engine.forward(chain(self.engine.new_cache(), tokens, wants)).hidden
        return np.concatenate([hidden[one] for one in layers], axis=1)

    def head(self, path: Path, plan: WeightPlan | None = None, threads: int = 1) -> NativeHead:
        drafter = open_drafter(path, self.engine.spec)
        try:
            return NativeHead.load(
                drafter.checkpoint, drafter.spec, plan or WeightPlan(), self.engine, threads=threads, ids=drafter.ids
            )
        finally:
            drafter.checkpoint.close()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tmp_path_factory.mktemp("eagle3") / "target")


def text(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCAB, length).astype(np.int32)


def check(target: Target, oracle: Head, head: NativeHead, near: float = 0.02) -> None:
    """Rows of a text one by one, then a chain of the head's own."""
    tokens, ids = text(24), oracle.ids.numpy()
    assert head.ids.tolist() == ids.tolist()
    mine = target.features(tokens, head)
    with torch.no_grad():
        g = oracle.projected(target.states(tokens, oracle.shape.states)[:-1])
    rows, cache = torch.from_numpy(tokens[1:]).long(), head.new_cache()
    fed, own = mine[:1], False
    for row in range(23 + 5):
        logits, state = head.run(cache, rows[row : row + 1].numpy().astype(np.int32), fed, own=own)
        with torch.no_grad():
            expected, back = oracle.run(rows[: row + 1], g[: row + 1])
        assert np.abs(logits[ids] - expected[row].numpy()).max() < near * expected.std(), row
        assert np.isneginf(np.delete(logits, ids)).all()
        assert np.abs(state[0] - back[row].numpy()).max() < near * back.std(), row
        own = row >= 22
        fed = state if own else mine[row + 1 : row + 2]
        if own:
            g = torch.cat([g, back[row:]])
            rows = torch.cat([rows, oracle.ids[expected[row].argmax()][None]])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.rotating(7)
def test_it_computes_what_the_formulas_say(tmp_path: Path, target: Target, shape: Shape) -> None:
    oracle = Head(shape, target.model)
    if shape.states[0] > 0:  # no layer's output is the embedding
        check(target, oracle, target.head(oracle.write_flat(tmp_path / "flat")))
    check(target, oracle, target.head(oracle.write_speculators(tmp_path / "speculators")))
    if not (shape.fc_norm or shape.head_norms or shape.biases or shape.window):  # which GGUF files have no words for
        check(target, oracle, target.head(oracle.write_gguf(tmp_path / "head.gguf")))


@pytest.fixture(scope="module")
def folder(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Head(Shape(norm_before_residual=True), target.model).write_flat(tmp_path_factory.mktemp("head") / "head")


@pytest.mark.parametrize("ids", [[0, 1, 3], [2, 3, 5]], ids=["one low", "one high"])
def test_other_layers_are_other_drafts(tmp_path: Path, target: Target, ids: list[int]) -> None:
    oracle = Head(Shape(), target.model)
    head = target.head(oracle.write_flat(tmp_path, eagle_config={"eagle_aux_hidden_state_layer_ids": ids}))
    assert head.spec.features.layers == tuple(one + 1 for one in ids)
    with pytest.raises(AssertionError):
        check(target, oracle, head)


def test_layers_go_up_whatever_their_order_in_the_file(tmp_path: Path, target: Target) -> None:
    oracle = Head(Shape(), target.model)
    check(target, oracle, target.head(oracle.write_speculators(tmp_path, eagle_aux_hidden_state_layer_ids=[5, 2, 3])))


def test_a_head_that_names_no_layers_reads_the_usual_ones(tmp_path: Path, target: Target) -> None:
    oracle = Head(Shape(states=(2, 3, 3)), target.model)
    assert target.head(oracle.write_flat(tmp_path, eagle_config=None)).spec.features.layers == (2, 3, 3)


@pytest.mark.parametrize("states", [(1, 2, 4), (2, 3, 3)], ids=str)
def test_a_chain_in_the_targets_cache_is_what_rows_of_its_states_are(
    tmp_path: Path, target: Target, states: tuple[int, ...]
) -> None:
    path = Head(Shape(states=states), target.model).write_speculators(tmp_path)
    head, tokens = target.head(path, threads=2), text(40, seed=1)
    cache = target.engine.new_cache()
    head.follow(cache)
    for first in range(0, 39, 13):
        target.engine.forward(chain(cache, tokens[first : first + 13]))
        cache.keep(list(range(13)))
    found, probs = head.draft(cache, int(tokens[-1]), 5)
    other, row, fed = head.new_cache(), tokens[1:], target.features(tokens, head)[:-1]
    for index, (token, prob) in enumerate(zip(found, probs, strict=True)):
        logits, fed = head.run(other, row, fed, own=index > 0)
        assert int(logits.argmax()) == token
        assert prob == pytest.approx(torch.softmax(torch.from_numpy(logits).double(), 0)[token].item(), rel=1e-5)
        row = np.array([token], np.int32)
    assert len(found) == 5


@pytest.mark.parametrize("low_bit", [None, "sym_int8"])
def test_of_a_whole_lm_head_of_its_own_a_part_is_drafted_and_the_texts_tokens(
    tmp_path: Path, target: Target, low_bit: str | None
) -> None:
    path, ids = Head(Shape(outputs=VOCAB), target.model).write_flat(tmp_path / "head"), np.array([3, 20, 70], np.int32)
    plan = WeightPlan(low_bit)
    whole, tokens = target.head(path, plan), np.tile(np.array([5, 9, 40], np.int32), 8)
    drafter = open_drafter(path, target.engine.spec)
    cut = NativeHead.load(drafter.checkpoint, drafter.spec, plan, target.engine, ids=ids)
    drafter.checkpoint.close()
    full, _ = whole.run(whole.new_cache(), tokens[1:], target.features(tokens, whole)[:-1])
    part, _ = cut.run(cut.new_cache(), tokens[1:], target.features(tokens, cut)[:-1])
    assert part[ids].tobytes() == full[ids].tobytes()
    cache = target.engine.new_cache()
    cut.follow(cache)
    target.engine.forward(chain(cache, tokens[:-1]))
    cache.keep(list(range(len(tokens) - 1)))
    cut.allow_tokens(cache, np.array([33], np.int32))
    more = cut.next_logits(cache, int(tokens[-1]), first=True)
    cut.end_draft(cache)
    seen = np.array(sorted({*ids.tolist(), *range(16), *range(32, 48)}))  # tiles of 16 that tokens of the text are in
    assert more[seen].tobytes() == full[seen].tobytes()
    assert np.isneginf(np.delete(more, seen)).all()
    assert cut.describe()["weight_bytes"] > whole.describe()["weight_bytes"]


def test_a_text_that_goes_on_as_before_a_crop_loses_no_row(folder: Path, target: Target) -> None:
    """As a prompt that is found again does: what the head read of it is read."""
    head, tokens = target.head(folder, threads=2), text(60, seed=6)
    last = int(tokens[-1])

    def read(cache: Any, rows: np.ndarray) -> None:
        target.engine.forward(chain(cache, rows))
        cache.keep(list(range(len(rows))))

    def draft(rows: np.ndarray) -> Any:
        cache = target.engine.new_cache()
        head.follow(cache)
        read(cache, rows[:-1])
        return cache, head.draft(cache, int(rows[-1]), 4)

    cache, expected = draft(tokens)
    assert len(expected[0]) == 4
    for length in (58, 57, 30, 1, 0):
        assert cache.crop(length) == length
        read(cache, tokens[length:-1])
        assert head.draft(cache, last, 4) == expected
    other = np.concatenate([tokens[:30], text(30, seed=7)])
    cache.crop(30)
    read(cache, other[30:-1])
    assert len(head.draft(cache, int(other[-1]), 4)[0]) == 4  # without the row before, whose features are gone
    cache.crop(0)
    read(cache, other[:-1])
    assert head.draft(cache, int(other[-1]), 4) == draft(other)[1]


@pytest.mark.parametrize("isa", native_core().available_isas())
def test_rows_cuts_threads_and_instruction_sets_do_not_show(
    target: Target, folder: Path, monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    """Of each instruction set the bits are its own, whatever the rows of a step, and the threads."""
    monkeypatch.setenv(ISA_VARIABLE, isa)
    tokens = text(60, seed=2)
    whole = target.head(folder)
    features = target.features(tokens, whole)[:-1]
    logits, state = whole.run(whole.new_cache(), tokens[1:], features)
    for threads in (1, 3):
        head = target.head(folder, threads=threads)
        for cut in (1, 7, 25):
            cache = head.new_cache()
            for first in range(0, 59, cut):
                rows = slice(first, first + cut)
                found = head.run(cache, tokens[1:][rows], features[rows])
            assert found[0].tobytes() == logits.tobytes()
            assert found[1].tobytes() == state.tobytes()


@pytest.mark.parametrize("low_bit", ["sym_int8", "sym_int4", "q4_k"])
def test_a_head_may_be_in_a_low_bit_format(target: Target, tmp_path: Path, low_bit: str) -> None:
    """Its drafts are nearly those of floats."""
    shape = Shape(target=64, hidden=256, inner=256, head_dim=64, own_embedding=True, states=(1, 2, 3, 5))
    path = Head(shape, target.model).write_flat(tmp_path)
    tokens = text(30, seed=3)
    floats, low = target.head(path), target.head(path, WeightPlan(low_bit))
    features = target.features(tokens, floats)[:-1]
    one, other = (head.run(head.new_cache(), tokens[1:], features)[0][floats.ids] for head in (floats, low))
    assert 0 < np.abs(one - other).max() < 0.5 * one.std()
    assert low.describe()["weight_bytes"] < 0.6 * floats.describe()["weight_bytes"]


def test_a_quantised_file_is_read_as_it_is(target: Target, tmp_path: Path) -> None:
    oracle = Head(Shape(inner=128, own_embedding=True), target.model)
    head = target.head(oracle.write_gguf(tmp_path / "head.gguf", gguf.GGMLQuantizationType.Q8_0))
    for name, values in oracle.weights.items():
        if values.dim() == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            stored = gguf.quants.dequantize(gguf.quants.quantize(values.numpy(), kind), kind)
            oracle.weights[name] = torch.from_numpy(stored)
    check(target, oracle, head, EIGHT_BITS)


@pytest.mark.parametrize("kind", [gptq(8, 32, True), gptq(8, 32, True, ordered="apart")], ids=lambda kind: kind.name)
def test_a_quantised_folder_is_read_as_it_is(target: Target, tmp_path: Path, kind: Kind) -> None:
    """Matrices of its own format, fc among them; with inputs in an order of their own too."""
    oracle, rng = Head(Shape(), target.model), np.random.default_rng(0)
    parts: dict[str, torch.Tensor] = {}
    for name, values in [*oracle.weights.items()]:
        if "_proj" not in name and name != "fc.weight":
            continue
        made = kind.pack(values.numpy(), rng)
        oracle.weights[name] = torch.from_numpy(np.ascontiguousarray(made.values, np.float32))
        named = name.replace("layers.0.", "midlayer.").removesuffix("weight")
        parts |= {named + part: torch.from_numpy(np.ascontiguousarray(one)) for part, one in made.tensors.items()}
    folder = oracle.write_flat(tmp_path, quantization_config=dict(kind.settings))
    file = folder / "model.safetensors"
    floats = {name: one for name, one in load_file(file).items() if "_proj" not in name and name != "fc.weight"}
    save_file({**floats, **parts}, file, {"format": "pt"})
    check(target, oracle, target.head(folder), EIGHT_BITS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": (3, 2, 5)}, "a hidden state that is a feature is 2; it must be from 3"),
        ({"layers": (-2, 2, 5)}, "a hidden state that is a feature is -2"),
        ({"layers": ()}, "the number of hidden states that are features is 0"),
        ({"layers": (2, 3, 4, 5, 6)}, "features of 192 values are not 5 hidden states"),
        ({"feeds_back": 2}, "the hidden state that is fed back is 2; it must be from -1 to 1"),
        ({"width": 1 << 25}, "the width of a row's features is 33554432"),
        ({"keep_embedding": False}, "a head's own features of 64 values cannot stand for the target's 192"),
        ({"norms": "half"}, "the norms of features are over 64 values of 192"),
    ],
    ids=str,
)
def test_a_shape_that_no_head_has_is_refused(target: Target, folder: Path, change: dict[str, Any], said: str) -> None:
    spec = target.head(folder).spec
    if change.get("norms") == "half":
        change = {"norms": (spec.features.embedding_norm,)}
    with pytest.raises(UnsupportedModelError, match=said):
        NativeHead.random(replace(spec, features=replace(spec.features, **change)), "fp32", target.engine, threads=1)


def test_features_are_as_wide_as_they_must_be(target: Target, folder: Path) -> None:
    head, tokens = target.head(folder), text(3)
    for width, own in ((191, False), (64, False), (192, True), (65, True)):
        with pytest.raises(InputError, match=rf"features must have shape \[rows, {64 if own else 192}\]"):
            head.run(head.new_cache(), tokens, np.zeros((3, width), np.float32), own=own)
