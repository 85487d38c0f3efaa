"""Drafting heads on a device: the native engine's drafts and probabilities by bytes, and plain decoding's tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")
pytest.importorskip("transformers", minversion="5", reason="the models are made of transformers 5's layers")

import torch

from ipex_lookahead import LookaheadConfig
from ipex_lookahead.decoding.sampling import Sampler, WarperParams
from ipex_lookahead.engines.api import Batch, OutputRequest, position_bytes
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.drafters import head_for
from ipex_lookahead.engines.native.load import load as load_native
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.head import OpenClHead
from ipex_lookahead.engines.opencl.head_memory import head_bytes
from ipex_lookahead.engines.opencl.load import load
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.errors import InputError, OutOfMemoryError, UnsupportedModelError
from tests.support.family_table import variants
from tests.support.generate import generate
from tests.support.heads import KINDS, write
from tests.support.mtp_folders import with_mtp
from tests.support.native import chain

NOTHING = OutputRequest(np.zeros(0, np.int32))
CONTEXT = 700
ALL = [*KINDS, "mtp glm4_moe", "mtp glm4_moe_lite"]
"""Heads of every kind; those of GLM have blocks with experts, and with latent attention."""
MORE: dict[str, dict[str, Any]] = {"mtp glm4_moe": {"draft_vocab": 32}, "mtp": {"draft_vocab": 32}}
"""Options of some kinds: a part of the vocabulary, and the tokens that the text has."""
Paths = tuple[Path, Path | None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Paths]:
    """Where a kind's model and head are."""
    made: dict[str, Paths] = {}

    def paths(kind: str) -> Paths:
        if kind not in made:
            to, (_, _, family) = tmp_path_factory.mktemp("head"), kind.partition("mtp ")
            if family:
                with_mtp(to / "model", family, variants(family)[0], max_position_embeddings=CONTEXT)
            made[kind] = (to / "model", None) if family else write(kind, to, context=CONTEXT)
        return made[kind]

    return paths


def pair(device: Device, paths: Paths, **options: Any) -> tuple[Any, Any]:
    """The native engine and the device's with their heads; ``options`` of ``LoadRequest``."""
    request = {"drafter": paths[1], "threads": 1, **options}
    engines = (
        load_native(LoadRequest(paths[0], **{k: v for k, v in request.items() if k != "gpu_layers"})).engine,
        on(device, LoadRequest(paths[0], **request)),
    )
    assert all(engine.head is not None for engine in engines)
    return engines


def on(device: Device, request: LoadRequest) -> Any:
    """The engine on that device, in its spelling."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ipex_lookahead.engines.opencl.load.device_of", lambda _: device)
        return load(request).engine


def feed(engine: Any, cache: Any, tokens: np.ndarray) -> None:
    """Commit tokens."""
    engine.forward(Batch([cache], [len(tokens)], tokens, chain(len(tokens)), NOTHING))
    cache.keep(range(len(tokens)))


def ids(engine: Any, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, engine.vocab_size, count).astype(np.int32)


class Both:
    """The same sequence on both engines; each method does the same on both and compares."""

    def __init__(self, native: Any, engine: Any) -> None:
        self.engines = native, engine
        self.caches: list[Any] = [one.new_cache() for one in self.engines]
        for one, cache in zip(self.engines, self.caches, strict=True):
            one.head.follow(cache)

    def feed(self, tokens: np.ndarray) -> None:
        for one, cache in zip(self.engines, self.caches, strict=True):
            feed(one, cache, tokens)

    def tree(self, tokens: np.ndarray, parents: list[int], kept: list[int]) -> None:
        for one, cache in zip(self.engines, self.caches, strict=True):
            one.forward(Batch([cache], [len(tokens)], tokens, np.array(parents, np.int32)))
            cache.keep(kept)

    def allow(self, tokens: np.ndarray) -> None:
        for one, cache in zip(self.engines, self.caches, strict=True):
            one.head.allow_tokens(cache, tokens)

    def crop(self, length: int) -> None:
        reached = [cache.crop(length) for cache in self.caches]
        assert reached[0] == reached[1]

    def fork(self) -> Both:
        other = Both.__new__(Both)
        other.engines, other.caches = self.engines, [cache.fork() for cache in self.caches]
        return other

    def draft(self, last: int, count: int, **rest: Any) -> list[int]:
        (tokens, probs), other = (
            one.head.draft(cache, int(last), count, **rest)
            for one, cache in zip(self.engines, self.caches, strict=True)
        )
        assert other == (tokens, probs)
        return list(tokens)

    def logits(self, token: int, *, first: bool) -> np.ndarray | None:
        one, other = (
            each.head.next_logits(cache, token, first=first)
            for each, cache in zip(self.engines, self.caches, strict=True)
        )
        assert (one is None) == (other is None)
        assert one is None or one.tobytes() == other.tobytes()
        return None if one is None else np.asarray(one)


@pytest.mark.parametrize("kind", ALL)
def test_drafts_are_the_native_engines(device: Device, folder: Callable[[str], Paths], kind: str) -> None:
    """Prompts and steps of any length, copied tokens before the chain, all that ends one, samples, and single steps."""
    native, engine = pair(device, folder(kind), **MORE.get(kind, {}))
    both = Both(native, engine)
    tokens = ids(native, 400, 1)
    both.allow(tokens[:90])
    at, found = 0, 0
    for size in (1, 30, 3, 70, 1, 100):
        both.feed(tokens[at : at + size])
        at += size
        last = int(tokens[at])
        drafted = both.fork().draft(last, 6)
        found += len(drafted)
        assert len(drafted) == 6
        both.fork().draft(last, 4, copied=drafted[:2])
        assert both.fork().draft(last, 5, ends={drafted[1]})[-1] == drafted[1]
        both.fork().draft(last, 5, min_chance=0.01)
        both.fork().draft(last, 5, rates=[0.9, 0.5, 0.2], min_chance=0.3)
        sampler = Sampler(WarperParams(0.8, 40, 0.95, 0.0), 5, 0)
        assert both.fork().draft(last, 4, copied=drafted[:1], draw=sampler.draw(at + 1))
        steps = both.fork()
        logits = steps.logits(last, first=True)
        for token in drafted[:3]:
            assert logits is not None
            assert int(logits.argmax()) == token
            logits = steps.logits(token, first=False)
        for one, cache in zip(steps.engines, steps.caches, strict=True):
            one.head.end_draft(cache)
        if size > 1:
            both.draft(last, 3)
            if not engine.head.target_keys:
                assert both.draft(last, 3) == []  # the features were read
    assert found == 36


@pytest.mark.parametrize("kind", ALL)
def test_any_order_of_deeds(device: Device, folder: Callable[[str], Paths], kind: str) -> None:
    """Trees of which a path is kept, crops, forks and drafts at random."""
    native, engine = pair(device, folder(kind), kv_cache="int8")
    for seed in range(3):
        chance = random.Random(seed)
        live = [Both(native, engine)]
        tokens = ids(native, 4000, seed)
        for deed in range(30):
            both = chance.choice(live)
            some = tokens[deed * 40 :]
            kind_of_deed = chance.choice(("feed", "tree", "crop", "fork", "draft", "draft"))
            length = both.caches[0].length
            if kind_of_deed == "feed":
                both.feed(some[: chance.choice((1, 2, 5, 30))])
            elif kind_of_deed == "tree":
                both.tree(some[:5], [-1, 0, 0, 2, -1], chance.choice(([0], [0, 2, 3], [4], [0, 1], [])))
            elif kind_of_deed == "crop":
                both.crop(chance.randint(max(0, length - 9), length))
            elif kind_of_deed == "fork" and len(live) < 3:
                live.append(both.fork())
            elif length:
                both.draft(int(some[0]), chance.randint(1, 8), copied=some[1 : chance.randint(1, 3)].tolist())


@pytest.mark.parametrize("kind", ALL)
def test_to_the_end_of_the_context(device: Device, folder: Callable[[str], Paths], kind: str) -> None:
    native, engine = pair(device, folder(kind), **MORE.get(kind, {}))
    both = Both(native, engine)
    context = native.max_context  # of assistants more than ``CONTEXT``
    tokens = ids(native, context, 2)
    for at in range(0, context - 8, 500):
        both.feed(tokens[at : min(at + 500, context - 8)])
    for at in range(context - 8, context):
        both.fork().draft(int(tokens[at]), 8)
        both.feed(tokens[at : at + 1])
    assert both.draft(0, 8) == []


def test_sequences_of_a_batch_and_other_caches(device: Device, folder: Callable[[str], Paths]) -> None:
    native, engine = pair(device, folder("eagle3"))
    tokens = ids(native, 60, 3)
    results = []
    for one in (native, engine):
        caches = [one.new_cache() for _ in range(3)]
        for cache in caches[:2]:
            one.head.follow(cache)
        counts = [20, 7, 5]
        parents = np.concatenate([chain(count) for count in counts])
        one.forward(Batch(caches, counts, tokens[:32], parents))
        for cache, count in zip(reversed(caches), reversed(counts), strict=True):
            cache.keep(range(count))
        results.append([one.head.draft(cache, int(tokens[40 + i]), 4) for i, cache in enumerate(caches[:2])])
        with pytest.raises(InputError, match="does not follow"):
            one.head.draft(caches[2], 1, 4)
    assert results[0] == results[1]
    with pytest.raises(InputError, match="outside the vocabulary"):
        engine.head.draft(engine.new_cache(), -1, 4)


def answers(engine: Any, prompt: np.ndarray, **rest: Any) -> list[list[int]]:
    """A greedy and a sampled answer."""
    texts = torch.from_numpy(prompt[None].astype(np.int64))
    common: dict[str, Any] = {"max_new_tokens": 30, "eos_token_id": None, "pad_token_id": 0}
    sampled: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 30, "seed": 3}
    return [generate(engine, texts, **common, **how, **rest)[0].tolist() for how in ({"do_sample": False}, sampled)]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("gpu_layers", [None, 1], ids=["whole", "divided"])
@pytest.mark.rotating(6)
def test_answers_are_those_of_plain_decoding(
    device: Device, folder: Callable[[str], Paths], kind: str, gpu_layers: int | None
) -> None:
    """Also where the layers are divided between CPU and device, and the weights have four bits."""
    if gpu_layers is not None and kind.startswith("gemma4"):
        pytest.skip("its layers read inputs of earlier ones, so it is not divided")
    if gpu_layers is not None and kind.startswith("eagle3"):
        gpu_layers = 5
    native, engine = pair(device, folder(kind), low_bit="sym_int4", gpu_layers=gpu_layers)
    assert isinstance(engine, SplitEngine) == bool(gpu_layers)
    prompt = ids(native, 50, 7)
    plain = answers(native, prompt)
    config = LookaheadConfig("head", num_draft_tokens=4, adaptive=False)
    assert answers(engine, prompt) == plain
    assert answers(engine, prompt, lookahead=config) == plain
    both = Both(native, engine)
    both.feed(prompt)
    assert len(both.draft(5, 4)) == 4


def test_a_head_of_layers_on_the_cpu_is_refused(device: Device, folder: Callable[[str], Paths]) -> None:
    with pytest.raises(UnsupportedModelError, match="reads layer 2 of the model, and the first 5 are on the CPU"):
        pair(device, folder("eagle3"), gpu_layers=1)


def test_facts_and_weights_are_the_native_heads(device: Device, folder: Callable[[str], Paths]) -> None:
    native, engine = pair(device, folder("mtp glm4_moe"), low_bit="sym_int4", draft_vocab=32)
    ours, theirs = engine.describe()["drafter"], native.describe()["drafter"]
    sizes = {"weight_bytes": 0, "kv_bytes_per_token": 0}  # the native engine pads heads to 16 values
    assert {**ours, **sizes} == {**theirs, **sizes}
    assert position_bytes(engine) == engine.describe()["kv_bytes_per_token"] + ours["kv_bytes_per_token"]
    one, other = (dict(each.head.weights()) for each in (engine, native))
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert [a.tobytes() for _, a in weight.arrays()] == [a.tobytes() for _, a in other[name].arrays()], name


@pytest.mark.parametrize("kind", ["mtp glm4_moe", "eagle3"])
def test_a_head_moves_with_its_model(device: Device, folder: Callable[[str], Paths], kind: str) -> None:
    paths = folder(kind)
    native = load_native(LoadRequest(paths[0], drafter=paths[1], threads=1, low_bit="sym_int4", **MORE.get(kind, {})))
    engine = OpenClEngine.moved(native.engine, device)
    engine.head = OpenClHead.moved(native.engine.head, engine)
    both = Both(native.engine, engine)
    both.feed(ids(engine, 40, 4))
    assert len(both.draft(3, 5)) == 5


@pytest.mark.parametrize("kind", ["mtp glm4_moe", "eagle3"])
def test_its_memory_is_counted_before_it_is_loaded(
    device: Device, folder: Callable[[str], Paths], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, before = [], []

    def counted(*given: Any) -> int:
        said.append(head_bytes(*given))
        return said[0]

    def built(*given: Any) -> Any:
        before.append(device.objects.nbytes)
        return head_for(*given)

    monkeypatch.setattr("ipex_lookahead.engines.opencl.load.head_bytes", counted)
    monkeypatch.setattr("ipex_lookahead.engines.opencl.load.head_for", built)
    _, engine = pair(device, folder(kind), low_bit="sym_int8")
    taken = device.objects.nbytes - before[0]
    tokens = ids(engine, 512, 6)
    feed(engine, engine.new_cache(), tokens)
    alone, cache = device.objects.nbytes, engine.new_cache()
    engine.head.follow(cache)
    feed(engine, cache, tokens)
    assert len(engine.head.draft(cache, 1, 4)[0]) == 4
    taken += device.objects.nbytes - alone
    assert taken / 2 < said[0] < 2 * taken
    monkeypatch.setattr("ipex_lookahead.engines.opencl.load.head_bytes", lambda *_: 1 << 60)
    with pytest.raises(OutOfMemoryError, match="GB for the drafting head"):
        pair(device, folder(kind))


@pytest.mark.parametrize("kind", ["eagle3", "mtp glm4_moe"])
def test_a_chain_is_read_once(
    device: Device, folder: Callable[[str], Paths], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of the target and a chain of eight: two reads; features never leave the device."""
    _, engine = pair(device, folder(kind))
    cache = engine.new_cache()
    engine.head.follow(cache)
    reads: list[int] = []
    read_all = Device.read_all

    def counted(self: Device, *wanted: Any) -> Any:
        found = read_all(self, *wanted)
        reads.append(sum(array.nbytes for array in found))
        return found

    monkeypatch.setattr(Device, "read_all", counted)
    engine.forward(Batch([cache], [9], ids(engine, 9, 8), chain(9), OutputRequest(np.array([8], np.int32))))
    cache.keep(range(9))
    assert len(engine.head.draft(cache, 1, 8)[0]) == 8
    assert len(reads) == 2
    assert reads[1] == 8 * (4 + 4)
