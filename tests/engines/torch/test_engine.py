"""The torch engine on tiny models of many families: caches, trees, blocks of one shape, and what it refuses."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, T5Config, T5ForConditionalGeneration

from ipex_lookahead.engines.api import FINAL_NORM, Batch, OutputRequest
from ipex_lookahead.engines.torch.cache import ModelSequence
from ipex_lookahead.engines.torch.device import check_device, device_facts
from ipex_lookahead.engines.torch.engine import TorchEngine, most_likely
from ipex_lookahead.errors import ContextLengthError, EngineError, InputError, NonFiniteError, UnsupportedModelError
from tests.support.cache_walk import forward
from tests.support.families import CHAINS, CONTEXT, FAMILIES, STATEFUL, VOCAB, build

CLOSE = 2e-3
"""Largest difference of logits (of size 10) between two ways to compute them in float32."""


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return TorchEngine(build("llama"))


def chain(count: int) -> list[int]:
    return list(range(-1, count - 1))


class Tuples(torch.nn.Module):
    """A model as they were before transformers had caches: tuples in, tuples out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model
        self.config = model.config
        self.fuller = False

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None, past_key_values: Any = None,
                use_cache: bool = True) -> Any:  # fmt: skip
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(past_key_values or ()):
            cache.update(keys, values, layer)
        given = {"attention_mask": attention_mask, "position_ids": position_ids, "past_key_values": cache}
        output = self.inner(input_ids, **given, use_cache=True)
        pairs = tuple((layer.keys, layer.values) for layer in output.past_key_values.layers)
        if self.fuller:
            pairs = tuple((keys[:, :, 1:], values[:, :, 1:]) for keys, values in pairs)
        return types.SimpleNamespace(logits=output.logits, past_key_values=pairs)


@pytest.fixture(scope="module")
def tuples() -> TorchEngine:
    return TorchEngine(Tuples(build("llama")), new_sequence=ModelSequence)


class Plain:
    """The model's own logits, reading everything at once without any cache."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def logits(self, tokens: list[int]) -> Any:
        with torch.no_grad():
            return self.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float().numpy()


def walk(engine: TorchEngine, plain: Plain, seed: int, *, trees: bool) -> None:
    """Grow by trees or chains, keep paths, crop and fork at random; every row's logits are the model's own."""
    rng = np.random.default_rng(seed)
    live: list[tuple[Any, list[int]]] = [(engine.new_cache(), [])]
    for _ in range(14):
        action = rng.choice(["grow", "grow", "grow", "crop", "fork", "drop"])
        cache, tokens = live[int(rng.integers(len(live)))]
        if action == "crop":
            length = int(rng.integers(0, len(tokens) + 1))
            cache.crop(length)
            del tokens[length:]
        elif action == "fork" and len(live) < 3:
            live.append((cache.fork(), list(tokens)))
        elif action in ("grow", "drop"):
            chosen = [live[int(i)] for i in rng.choice(len(live), int(rng.integers(1, len(live) + 1)), replace=False)]
            rows = [int(rng.integers(1, 7)) for _ in chosen]
            new = [rng.integers(0, VOCAB, n).tolist() for n in rows]
            parents = [[int(rng.integers(-1, i)) for i in range(n)] if trees else chain(n) for n in rows]
            got = forward(engine, [c for c, _ in chosen], new, parents)
            first = 0
            for (cache, tokens), ids, links in zip(chosen, new, parents, strict=True):
                paths = []
                for row in range(len(ids)):
                    paths.append([*(paths[links[row]] if links[row] >= 0 else []), row])
                    expected = plain.logits([*tokens, *(ids[at] for at in paths[row])])
                    np.testing.assert_allclose(got[first + row], expected, atol=CLOSE)
                if action == "grow":
                    path = paths[int(rng.integers(len(ids)))]
                    cache.keep(path)
                    tokens.extend(ids[at] for at in path)
                first += len(ids)
        for held, known in live:
            assert held.length == len(known)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["llama", "gpt2", "falcon", "bloom", "mistral", "gemma2"])
@pytest.mark.rotating(9)
def test_whatever_is_kept_cropped_and_forked_logits_are_the_models_own(name: str, seed: int) -> None:
    engine = TorchEngine(build(name))
    walk(engine, Plain(engine.model), seed, trees=engine.supports_tree)


@pytest.mark.parametrize("seed", range(3))
def test_a_model_with_tuples_of_its_own_walks_too(tuples: TorchEngine, seed: int) -> None:
    assert tuples.supports_tree
    walk(tuples, Plain(tuples.model.inner), seed, trees=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_family_can_do_is_found_out(name: str) -> None:
    engine = TorchEngine(build(name))
    assert engine.supports_tree is (name not in CHAINS)
    facts = engine.describe()
    assert bool(facts["why_chains"]) is (name in CHAINS)
    assert engine.vocab_size == VOCAB
    assert engine.max_context == (CONTEXT if name != "bloom" else 1 << 17)
    assert facts["kv_bytes_per_token"] > 0
    assert facts["weight_bytes"] == sum(t.numel() * t.element_size() for t in tensors(engine.model))
    assert facts["family"] == name.split()[0]


def tensors(model: Any) -> Iterator[Any]:
    yield from model.parameters()
    yield from model.buffers()


@pytest.mark.parametrize("name", STATEFUL)
def test_recurrent_states_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{name}.*recurrent state"):
        TorchEngine(build(name))


def test_other_models_are_refused_with_the_reason() -> None:
    t5 = T5Config(vocab_size=VOCAB, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedModelError, match="encoder"):
        TorchEngine(T5ForConditionalGeneration(t5))
    with pytest.raises(UnsupportedModelError, match="not a transformers model"):
        TorchEngine(torch.nn.Linear(2, 2))
    forgetful = Tuples(build("llama"))
    forgetful.fuller = True
    with pytest.raises(UnsupportedModelError, match="should hold 6 positions"):
        TorchEngine(forgetful, new_sequence=ModelSequence)


def test_a_mask_that_the_model_ignores_is_noticed() -> None:
    class Deaf(Tuples):
        def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any) -> Any:
            return super().forward(input_ids, None, position_ids, **kwargs)

    engine = TorchEngine(Deaf(build("llama")), new_sequence=ModelSequence)
    assert not engine.supports_tree
    assert "do not follow a mask" in engine.describe()["why_chains"]
    with pytest.raises(InputError, match=r"chains only.*do not follow"):
        forward(engine, [engine.new_cache()], [[1, 2, 3]], [[-1, 0, 0]])


# ---- deterministic ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "qwen2"])
def test_rows_are_the_same_bits_however_they_come(name: str) -> None:
    """One prompt; then 140 more tokens one at a time, and in chains of 1 to 37: every block and boundary is passed."""
    engine = TorchEngine(build(name), deterministic=True)
    rng = np.random.default_rng(4)
    prompt, text = rng.integers(0, VOCAB, 101).tolist(), rng.integers(0, VOCAB, 140).tolist()
    first = engine.new_cache()
    forward(engine, [first], [prompt], [chain(101)])
    first.keep(chain(102)[1:])
    second = first.fork()
    expected = []
    for token in text:
        expected.append(forward(engine, [first], [[token]], [[-1]])[0])
        first.keep([0])
    at = 0
    while at < len(text):
        accepted = min(int(rng.integers(1, 38)), len(text) - at)
        wrong = rng.integers(0, VOCAB, int(rng.integers(0, 9))).tolist()[: CONTEXT - 101 - at - accepted]
        ids = text[at : at + accepted] + wrong
        got = forward(engine, [second], [ids], [chain(len(ids))])
        for row in range(accepted):
            assert got[row].tobytes() == expected[at + row].tobytes(), at + row
        second.keep(list(range(accepted)))
        at += accepted
    plain = Plain(engine.model).logits([*prompt, *text])
    np.testing.assert_allclose(expected[-1], plain, atol=CLOSE)


def test_long_prompts_are_read_in_whole_blocks_and_right() -> None:
    engine = TorchEngine(build("llama", max_position_embeddings=700), deterministic=True)
    ids = np.random.default_rng(1).integers(0, VOCAB, 600).tolist()
    cache = engine.new_cache()
    got = forward(engine, [cache], [ids], [chain(600)])
    with torch.no_grad():
        expected = engine.model(torch.tensor([ids])).logits[0].float().numpy()
    np.testing.assert_allclose(got, expected, atol=CLOSE)


def test_who_cannot_be_deterministic_is_told_why() -> None:
    for name, why in (("bloom", "position_ids"), ("mistral", "slides over 8"), ("mixtral", "mixture of experts")):
        with pytest.raises(UnsupportedModelError, match=f"deterministically.*{why}"):
            TorchEngine(build(name), deterministic=True)
    engine = TorchEngine(build("llama"), deterministic=True)
    assert not engine.supports_tree
    assert engine.describe()["why_chains"] == "deterministic"


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_neighbours_never_matter(engine: TorchEngine) -> None:
    alone = forward(engine, [engine.new_cache()], [[5, 6, 7]], [[-1, 0, 0]])
    beside = forward(engine, [engine.new_cache() for _ in range(2)], [[9, 1], [5, 6, 7]], [[-1, 0], [-1, 0, 0]])
    assert beside[2:].tobytes() == alone.tobytes()


@pytest.mark.parametrize("want", [[], [0], [4], [1, 3], [2, 4], [0, 1, 2, 3, 4]])
def test_only_wanted_rows_come_back(engine: TorchEngine, want: list[int]) -> None:
    ids, parents = np.array([5, 6, 7, 8, 9], np.int32), np.array([-1, 0, -1, 0, 1], np.int32)
    caches = [engine.new_cache(), engine.new_cache()]
    every = engine.forward(Batch(caches, [2, 3], ids, parents, OutputRequest(logits=True)))
    some = engine.forward(
        Batch(caches, [2, 3], ids, parents, OutputRequest(np.array(want, np.int32), logits=True, top=5))
    )
    assert every.logits is not None
    assert some.logits is not None
    assert some.top is not None
    np.testing.assert_allclose(some.logits, every.logits[want], atol=CLOSE)
    assert some.argmax.tolist() == every.argmax[want].tolist()
    assert some.top.shape == (len(want), 5)
    assert some.top[:, 0].tolist() == some.argmax.tolist()


@pytest.mark.parametrize("deterministic", [False, True])
def test_hidden_states_are_those_of_each_sequence(deterministic: bool) -> None:
    model = build("llama")
    engine = TorchEngine(model, deterministic=deterministic)
    layers = model.config.num_hidden_layers
    sequences = [[5, 6, 7], [9, 8, 3, 1] * 5, [4]]
    with torch.no_grad():
        expected = [model(torch.tensor([one]), output_hidden_states=True).hidden_states for one in sequences]
    wants = OutputRequest(np.zeros(0, np.int32), hidden=(*range(layers), FINAL_NORM))
    caches = [engine.new_cache() for _ in sequences]
    ids = np.concatenate([np.array(one, np.int32) for one in sequences])
    parents = np.concatenate([chain(len(one)) for one in sequences])
    batch = Batch(caches, [len(one) for one in sequences], ids, parents, wants)
    every = engine.forward(batch).hidden
    assert every is not None
    for layer, states in every.items():
        whole = torch.cat([one[layer][0] for one in expected]).numpy()
        np.testing.assert_allclose(states, whole, atol=CLOSE)
    batch.wants = replace(wants, hidden_rows=np.array([1, 5, 23], np.int32))
    some = engine.forward(batch).hidden
    assert some is not None
    for layer, states in some.items():
        assert states.tobytes() == every[layer][[1, 5, 23]].tobytes()
    for wrong, said in (
        (OutputRequest(hidden=(layers,)), "after the final norm"),
        (OutputRequest(hidden=(-2,)), "are not available"),
        (OutputRequest(hidden=(0,), hidden_rows=np.array([24], np.int32)), "hidden_rows must be rows of the step"),
        (OutputRequest(timings=True), "returns no timings"),
    ):
        batch.wants = wrong
        with pytest.raises(InputError, match=said):
            engine.forward(batch)


def test_a_model_without_hidden_states_says_so(tuples: TorchEngine) -> None:
    forward_of = tuples.model.forward
    tuples.model.forward = lambda *args, output_hidden_states=None, **kwargs: forward_of(*args, **kwargs)
    try:
        with pytest.raises(UnsupportedModelError, match="returns no hidden states"):
            tuples.forward(
                Batch(
                    [tuples.new_cache()],
                    [1],
                    np.array([1], np.int32),
                    np.array([-1], np.int32),
                    OutputRequest(hidden=(0,)),
                )
            )
    finally:
        del tuples.model.forward


def test_bad_batches_are_refused(engine: TorchEngine) -> None:
    cache = engine.new_cache()
    one = np.array([1], np.int32)
    root = np.array([-1], np.int32)
    for batch, said in (
        (Batch([cache], [1], np.array([VOCAB], np.int32), root), "vocabulary"),
        (Batch([cache], [1], np.array([-1], np.int32), root), "vocabulary"),
        (Batch([cache], [1], one, np.array([0], np.int32)), "parent"),
        (Batch([cache], [2], one, root), "do not fit"),
        (Batch([cache, cache], [1, 1], np.array([1, 1], np.int32), np.array([-1, -1], np.int32)), "twice"),
        (Batch([cache], [1], one, root, OutputRequest(top=65)), "top"),
        (Batch([object()], [1], one, root), "own caches"),  # type: ignore[list-item]
    ):
        with pytest.raises(InputError, match=said):
            engine.forward(batch)
    with pytest.raises(ContextLengthError, match=str(CONTEXT)):
        forward(engine, [cache], [[1] * (CONTEXT + 1)], [chain(CONTEXT + 1)])
    forward(engine, [cache], [[1, 2, 3]], [[-1, 0, 0]])
    for rows in ([0, 1, 2], [1], [3], [0, 0], [-1]):
        with pytest.raises(InputError, match="not a path"):
            cache.keep(rows)
    cache.keep([0, 2])
    with pytest.raises(InputError, match="not a path"):
        cache.keep([0])
    for length in (3, -1):
        with pytest.raises(InputError, match="crop"):
            cache.crop(length)


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert most_likely(logits, 3).tolist() == [[1, 2, 4], [0, 1, 2]]
    assert most_likely(logits, 7).tolist() == [[1, 2, 4, 3, 0, -1, -1], [0, 1, 2, 3, 4, -1, -1]]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_logit_that_is_not_finite_is_an_error(value: float) -> None:
    """Whichever it is, as in the native engine: the least likely says as much of the weights."""
    model = build("llama")
    engine = TorchEngine(model)
    bad = torch.zeros(model.config.vocab_size)
    bad[3] = value
    hook = model.lm_head.register_forward_hook(lambda _, __, logits: logits + bad)
    with pytest.raises(NonFiniteError, match="^the model's logits are not finite"):
        forward(engine, [engine.new_cache()], [[1, 2]], [[-1, 0]])
    hook.remove()
    forward(engine, [engine.new_cache()], [[1, 2]], [[-1, 0]])


def test_threads_are_put_back() -> None:
    engine = TorchEngine(build("llama"), threads=2)
    seen: list[int] = []
    engine.model.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    forward(engine, [engine.new_cache()], [[1]], [[-1]])
    assert seen == [2]
    assert torch.get_num_threads() == 1
    assert engine.describe()["threads"] == 2


# ---- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["tpu", "gpu", 7.5, "cpu:x", ""])
def test_unknown_devices_are_named(device: Any) -> None:
    with pytest.raises(InputError, match="cpu, xpu, cuda"):
        check_device(device)


@pytest.mark.parametrize(("kind", "mend"), [("xpu", "whl/xpu"), ("cuda", "NVIDIA")])
def test_an_absent_device_says_what_to_install(kind: str, mend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = types.SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
    monkeypatch.setattr(torch, kind, absent, raising=False)
    with pytest.raises(EngineError, match=f"finds no {kind}") as caught:
        check_device(kind)
    assert mend in caught.value.hint
    monkeypatch.delattr(torch, kind)
    with pytest.raises(EngineError, match=f"finds no {kind}"):
        check_device(kind)


def test_a_device_that_is_there_tells_its_name_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    xpu = types.SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_name=lambda device: "Intel(R) Arc(TM) A770 Graphics",
        memory_allocated=lambda device: 5,
        memory_reserved=lambda device: 8,
        get_device_properties=lambda device: types.SimpleNamespace(total_memory=16 << 30),
    )
    monkeypatch.setattr(torch, "xpu", xpu, raising=False)
    device = check_device("xpu:0")
    facts = device_facts(device)
    assert facts["device"] == "xpu:0"
    assert facts["isa"] == facts["device_name"] == "Intel(R) Arc(TM) A770 Graphics"
    assert facts["device_memory"] == {"allocated": 5, "reserved": 8, "total": 16 << 30}
    with pytest.raises(EngineError, match=r"no xpu:3.*1 xpu"):
        check_device("xpu:3")
