"""Adapters of a model's requests: each gets what it gets alone, whatever drafts, batches and caches there are."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5.23", reason="older transformers lack these families")

from ipex_lookahead.architectures.adapter import Adapter, AppliedAdapter, LowRank
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding import disk_cache
from ipex_lookahead.decoding.sequence_group import prefix_key
from ipex_lookahead.engines.adapters import Adapters
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.runtime.request import Request, store_of
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.runtime.text_model import TextModel
from tests.support import heads
from tests.support.adapters import random_adapter
from tests.support.hashed_engine import HashedEngine
from tests.support.hybrids import hybrid, random_text
from tests.support.letters import text_model, tokens_of
from tests.support.specs import make_spec, native_engine, random_weights

PARAMS = SamplingParams(24, temperature=0.8, seed=3)
SPEC = make_spec()


def loaded(engine: Any = None) -> TextModel:
    """A model with two adapters."""
    engine = native_engine(SPEC, random_weights(SPEC), "sym_int4") if engine is None else engine
    model = text_model(engine)
    for seed, name in enumerate(("one", "two")):
        model.runtime.adapters.load(random_adapter(engine.spec, seed, name=name))
    return model


@pytest.fixture(scope="module")
def model() -> TextModel:
    return loaded()


@pytest.fixture
def service(model: TextModel) -> Iterator[Service]:
    with closing(Service(model, slots=4)) as made:
        yield made


USES = [(None, 1.0), ("one", 1.0), ("one", 0.5), ("two", 1.0)]


def uses(model: TextModel) -> list[AppliedAdapter | None]:
    return [model.runtime.adapters.applied(*use) for use in USES]


def test_each_adapter_and_scale_has_an_answer_of_its_own(model: TextModel) -> None:
    prompt = random_text(20)
    assert len({tuple(model.generate(prompt, PARAMS, adapter=use)) for use in uses(model)}) == len(USES)
    again = Adapter("again", model.runtime.adapters["one"].matrices)
    assert again.digest == model.runtime.adapters["one"].digest


STRATEGIES: list[Any] = [
    3, "auto", "prompt_lookup", "suffix", "recycling", "draft_model",
    LookaheadConfig(strategy="jacobi", adaptive=False),
]  # fmt: skip


@pytest.mark.parametrize("name", ["dense", "delta net", "short convolution"])
@pytest.mark.parametrize("lookahead", STRATEGIES, ids=[getattr(one, "strategy", str(one)) for one in STRATEGIES])
@pytest.mark.rotating(8)
def test_drafts_never_change_an_adapters_answer(name: str, lookahead: Any) -> None:
    model = loaded(hybrid(name))
    if lookahead == "draft_model":
        model.use_draft_model(text_model(hybrid(name, 1)))
        lookahead = 4
    check_drafts(model, lookahead)


def check_drafts(model: TextModel, lookahead: Any) -> None:
    prompt, drafted = random_text(12) * 4, 0
    for use in uses(model):
        for params in (SamplingParams(24), PARAMS):
            plain = model.generate(prompt, params, adapter=use)
            assert model.generate(prompt, params, adapter=use, lookahead=lookahead, adaptive=False) == plain
            drafted += model.stats.drafted
    assert drafted > 0


def test_self_speculation_drafts_with_the_base_model_on_an_adapters_cache() -> None:
    check_drafts(loaded(native_engine(SPEC, random_weights(SPEC), "sym_int8")), "self_speculation")


@pytest.mark.parametrize("kind", heads.KINDS)
@pytest.mark.rotating(2)
def test_a_head_drafts_from_the_adapted_states_and_changes_no_answer(kind: str, tmp_path: Path) -> None:
    engine = heads.opened(heads.write(kind, tmp_path), threads=1)
    model = loaded(engine)
    check_drafts(model, LookaheadConfig(strategy="head", adaptive=False))
    prompt, drafts = np.array(random_text(30), np.int32), []
    for use in uses(model):
        cache = engine.new_cache()
        engine.head.follow(cache)
        deque(prefill(engine, [(cache, prompt)], adapter=use), maxlen=0)
        drafts.append(str(engine.head.draft(cache, 7, 3)))
    assert len(set(drafts)) == len(USES)


def test_requests_with_other_adapters_at_once_get_what_each_gets_alone(model: TextModel, service: Service) -> None:
    """More requests than slots, of two tenants, with one prompt and with others."""
    prompts = [random_text(70), random_text(70), random_text(9, 1), random_text(130, 2)]
    asked = [(prompt, use, key) for key in ("a", "b") for prompt in prompts for use in uses(model)]
    streams = [
        service.stream(prompt, PARAMS, adapter=use, key=key, lookahead=(None, 3, "auto")[number % 3])
        for number, (prompt, use, key) in enumerate(asked)
    ]
    for (prompt, use, _), stream in zip(asked, streams, strict=True):
        assert tokens_of(list(stream)) == model.generate(prompt, PARAMS, adapter=use)


def test_preempted_requests_keep_their_adapters(model: TextModel) -> None:
    page = 64 * int(model.engine.describe()["kv_bytes_per_token"])
    asked = [(random_text(150, seed), use) for seed, use in enumerate(uses(model))]
    with closing(Service(model, slots=4, cache_memory=6 * page)) as service:
        streams = [service.stream(prompt, SamplingParams(60), adapter=use) for prompt, use in asked]
        for (prompt, use), stream in zip(asked, streams, strict=True):
            assert tokens_of(list(stream)) == model.generate(prompt, SamplingParams(60), adapter=use)
        assert service.preemptions > 0


def ask(service: Service, prompt: list[int], **options: Any) -> tuple[list[int], int]:
    """The answer, and the number of cached prompt tokens."""
    events = list(service.stream(prompt, PARAMS, **options))
    assert events[-1].stats is not None
    return tokens_of(events), events[-1].stats.cached_tokens


@pytest.mark.parametrize("name", ["dense", "delta net"])
def test_the_prefix_cache_is_not_shared_between_adapters_or_scales(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """In memory, and on disk after a restart."""
    monkeypatch.setattr(disk_cache, "FILE_SECONDS", 0.0)
    monkeypatch.setattr(disk_cache, "FIRST_RATE", 1e18)
    prompt = random_text(700)
    found = []
    for _ in range(2):
        model = loaded(hybrid(name))
        model.use_cache_folder(tmp_path)
        with closing(Service(model, slots=2)) as service:
            for use in uses(model):
                answer, cached = ask(service, prompt, adapter=use)
                assert ask(service, prompt, adapter=use) == (answer, len(prompt) - 1)
                assert answer == model.generate(prompt, PARAMS, adapter=use)
                found.append(cached)
            if len(found) == len(USES):
                renamed = Adapter("renamed", model.runtime.adapters["one"].matrices)
                assert ask(service, prompt, adapter=AppliedAdapter(renamed))[1] == len(prompt) - 1
    assert found[:4] == [0, 0, 0, 0]
    assert min(found[4:]) >= 512


def test_a_conversation_with_one_adapter_does_not_read_anothers_cache(model: TextModel) -> None:
    prompt = random_text(200)
    for use in uses(model):
        answer = model.generate(prompt, PARAMS, adapter=use, keep=True)
        assert model.stats.cached_tokens == 0
        assert model.generate(prompt, PARAMS, adapter=use, keep=True) == answer
        assert model.stats.cached_tokens == len(prompt) - 1
        assert model.generate(prompt, PARAMS, adapter=use) == answer


def test_prefix_keys_and_stores_of_adapters_are_their_own() -> None:
    one = AppliedAdapter(random_adapter(SPEC))
    keys = {prefix_key(tenant, use) for tenant in ("", "key", "key#salt") for use in (None, one)}
    assert len(keys) == 6
    assert Request([1], key="key", salt="salt", adapter=one).prefix_key == prefix_key("key#salt", one)
    assert store_of("memory", None) == "memory"
    assert store_of("memory", one) == f"memory:{one.key}"
    assert store_of("file.store", one) == f"file.store.{one.key}"
    assert store_of(None, one) is None


def test_a_batch_has_one_adapter(model: TextModel) -> None:
    prompts = [random_text(9), random_text(9), random_text(30, 1)]
    use = model.runtime.adapters.applied("one")
    together = model.generate_batch(prompts, SamplingParams(10), adapter=use, lookahead=3)
    assert together == [model.generate(prompt, SamplingParams(10), adapter=use) for prompt in prompts]
    assert list(model.stream(prompts[0], SamplingParams(10), adapter=use)) == together[0]


def test_adapters_are_loaded_replaced_and_unloaded(service: Service) -> None:
    engine = native_engine(SPEC, random_weights(SPEC))
    adapters = Adapters(engine)
    assert dict(adapters) == {}
    assert adapters.applied(None) is None
    first = adapters.load(random_adapter(SPEC, 0, name="first"))
    size = engine.adapter_bytes
    assert adapters.applied("first") == AppliedAdapter(first)
    assert adapters.applied("first", 0) is None
    adapters.load(first, "alias")
    assert (sorted(adapters), engine.adapter_bytes) == (["alias", "first"], size)
    adapters.load(random_adapter(SPEC, 1), "first")
    adapters.check(AppliedAdapter(first))  # as alias
    adapters.unload("alias")
    with pytest.raises(InputError, match="adapter first is not loaded"):
        adapters.check(AppliedAdapter(first))
    for name, match in [
        ("alias", "there is no adapter 'alias'; loaded adapters: first"),
        ("", "no adapter ''"),
        (["first"], "no adapter"),
    ]:
        with pytest.raises(InputError, match=match):
            adapters.applied(name)  # type: ignore[arg-type]
    assert adapters.applied("first", -100) is not None
    for scale in (float("nan"), "1", True, 100.5, -1e300, 10**400):
        with pytest.raises(InputError, match="scale"):
            adapters.applied("first", scale)  # type: ignore[arg-type]
    for bad in ("", "a\nb"):
        with pytest.raises(InputError, match="name"):
            adapters.load(first, bad)
    adapters.unload("first")
    assert engine.adapter_bytes == 0
    with pytest.raises(UnsupportedModelError, match="the hashed engine takes no adapters"):
        Adapters(HashedEngine(24)).load(first)
    with pytest.raises(InputError, match="adapter other is not loaded"):
        service.stream([1], PARAMS, adapter=AppliedAdapter(random_adapter(SPEC, 7, name="other")))


def test_an_adapter_that_was_unloaded_ends_its_requests_and_no_others(model: TextModel, service: Service) -> None:
    lost = model.runtime.adapters.load(random_adapter(SPEC, 9), "lost")
    use, kept = AppliedAdapter(lost), model.runtime.adapters.applied("one")
    prompt, begun, unloaded = random_text(20), threading.Event(), threading.Event()

    def wait(ids: Any) -> bool:
        begun.set()
        return not unloaded.wait(10)

    streams = [service.stream(prompt, SamplingParams(200), adapter=one, stop=wait) for one in (use, kept)]
    assert begun.wait(10)
    model.runtime.adapters.unload("lost")
    unloaded.set()
    last = list(streams[0])[-1]
    assert isinstance(last.error, InputError)
    assert "adapter lost is not loaded" in str(last.error)
    assert tokens_of(list(streams[1])) == model.generate(prompt, SamplingParams(200), adapter=kept)


def test_a_runtime_that_moves_takes_its_adapters_with_it() -> None:
    model = loaded()
    prompt = random_text(9)
    before = model.generate(prompt, PARAMS, adapter=model.runtime.adapters.applied("two"))
    model.runtime.move_to(native_engine(SPEC, random_weights(SPEC), "sym_int4"), None)
    use = model.runtime.adapters.applied("two")
    assert list(model.runtime.adapters) == ["one", "two"]
    assert model.generate(prompt, PARAMS, adapter=use) == before
    with pytest.raises(UnsupportedModelError, match="takes no adapters"):
        model.runtime.move_to(HashedEngine(96), None)
    assert model.generate(prompt, PARAMS, adapter=use) == before


def test_the_layers_of_an_adapter_are_checked_on_loading() -> None:
    change = random_adapter(SPEC).matrices["layers.0.q.weight"]
    with pytest.raises(InputError, match=r"layers\.0\.k\.weight has shape \[32, 64\]"):
        Adapters(native_engine(SPEC, random_weights(SPEC))).load(
            Adapter("bad", {"layers.0.k.weight": LowRank(change.a, change.b, 1.0)})
        )
