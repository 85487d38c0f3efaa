"""Requests with images: from one prompt and from many callers, with and without drafts, and what is refused."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5.23", reason="older transformers lack these families")

from ipex_lookahead.decoding.saved_cache import cache_key, load_cache, save_cache
from ipex_lookahead.engines.api import Batch, refuse_images
from ipex_lookahead.engines.images import GivenRows
from ipex_lookahead.errors import InputError, NonFiniteError
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Request, Service
from ipex_lookahead.runtime.text_model import TextModel
from tests.support.family_engines import load
from tests.support.letters import text_model
from tests.support.pictures import ours, picture, prompt, seeing, unencoded
from tests.support.tiny_families import with_weights, write_folder

PARAMS = SamplingParams(10, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    folder = write_folder(tmp_path_factory.mktemp("seeing"), with_weights(seeing("qwen3_5", {})))
    return text_model(load(folder))


@pytest.fixture
def service(model: TextModel) -> Iterator[Service]:
    made = Service(model, slots=4, queue=8)
    yield made
    made.close()


def expected(model: TextModel, ids: Any, images: Any, new: int = 10) -> list[int]:
    cache, found = model.engine.new_cache(), []
    for _ in range(new):
        found.append(int(ours(model.engine, ids, images, cache=cache)[-1].argmax()))  # type: ignore[arg-type]
        ids = np.append(ids, np.int32(found[-1]))
    return found


def wanted(model: TextModel, seed: int) -> tuple[Any, Any]:
    images = [picture(10, (4, 5), 64, seed=seed), picture(40, (3, 3), 64, seed=seed + 1)]
    return prompt(60, images), images


@pytest.mark.parametrize("lookahead", [None, 4, "auto"])
def test_a_model_answers_prompts_with_images(model: TextModel, lookahead: Any) -> None:
    prompts = [wanted(model, seed) for seed in (0, 3)]
    plain = [expected(model, *one) for one in prompts]
    assert plain[0] != plain[1]
    for (ids, images), answer in zip(prompts, plain, strict=True):
        assert model.generate(ids.tolist(), PARAMS, images=images, lookahead=lookahead) == answer
        assert list(model.stream(ids.tolist(), PARAMS, images=images, lookahead=lookahead)) == answer
    batch = [ids.tolist() for ids, _ in prompts]
    assert model.generate_batch(batch, PARAMS, images=[images for _, images in prompts], lookahead=lookahead) == plain
    for kept in (0, 69):  # the second turn finds the first one's text, its image included
        (ids, images), again = prompts[0], [*prompts[0][0].tolist(), *plain[0]]
        again = ids.tolist() if not kept else again
        found = model.generate(again, PARAMS, images=images, keep=True)
        assert found == expected(model, np.array(again, np.int32), images)
        assert model.stats.cached_tokens >= kept - 9
    other = wanted(model, 3)[1]
    assert model.generate(prompts[0][0].tolist(), PARAMS, images=other, keep=True) == plain[1]


def test_a_service_answers_several_at_once(model: TextModel, service: Service) -> None:
    prompts = [wanted(model, seed) for seed in (0, 3, 0, 6)]
    ends: queue.Queue[Any] = queue.Queue()
    answers: dict[int, list[int]] = {}
    for number, (ids, images) in enumerate(prompts):
        answers[number] = []

        def take(event: Any, number: int = number) -> None:
            answers[number].extend(event.tokens or ())
            if event.kind in ("finish", "error"):
                ends.put(event.error)

        service.submit(Request(ids.tolist(), PARAMS, lookahead=4, images=images), take)
    for _ in prompts:
        assert ends.get(timeout=60) is None
    assert [answers[number] for number in range(4)] == [expected(model, *one) for one in prompts]


class Ends:
    """Submits requests and waits for their ends; ``answers`` has their tokens by number."""

    def __init__(self, service: Service) -> None:
        self._service, self._ends = service, queue.Queue[tuple[int, Any]]()
        self.answers: list[list[int]] = []

    def submit(self, request: Request) -> Request:
        number = len(self.answers)
        self.answers.append([])

        def take(event: Any) -> None:
            self.answers[number].extend(event.tokens or ())
            if event.kind in ("finish", "error"):
                self._ends.put((number, event))

        return self._service.submit(request, take)

    def wait(self) -> dict[int, Any]:
        return dict(self._ends.get(timeout=60) for _ in self.answers)


def test_a_service_encodes_an_image_once_and_a_failure_ends_its_request(model: TextModel, service: Service) -> None:
    log: list[str] = []
    ends, good, damaged = Ends(service), wanted(model, 0), wanted(model, 5)
    for ids, images in (good, good):  # of two tenants, which share no rows
        own = [unencoded(image, log, name=str(image.start)) for image in images]
        ends.submit(Request(ids.tolist(), PARAMS, images=own, lookahead=4, key=f"tenant{len(ends.answers)}"))
    error = NonFiniteError("an encoder's rows are not finite")
    own = [unencoded(image, log, name="bad", error=error) for image in damaged[1]]
    ends.submit(Request(damaged[0].tolist(), PARAMS, images=own))
    found = ends.wait()
    assert found[2].kind == "error"
    assert found[2].error is error
    assert ends.answers[:2] == [expected(model, *good)] * 2
    assert sorted(one for one in log if one.startswith("begin")) == ["begin 10", "begin 40", "begin bad"]


def test_a_client_that_leaves_ends_the_encoding(model: TextModel, service: Service) -> None:
    begun, log = threading.Event(), []
    ends, (ids, images) = Ends(service), wanted(model, 0)

    def encode(pause: Any) -> Any:
        try:
            while True:
                begun.set()
                pause()
        finally:
            log.append("ended")

    request = ends.submit(
        Request(ids.tolist(), PARAMS, images=[replace(one, features=None, encode=encode) for one in images])
    )
    assert begun.wait(60)
    request.cancel()
    assert ends.wait()[0].reason == "cancelled"
    assert log == ["ended"]
    assert service.call(lambda memory: True).result(60)

    # The same without a service.
    steps = iter(range(9))
    answer = model.generate(
        ids.tolist(),
        PARAMS,
        images=[replace(one, features=None, encode=encode) for one in images],
        cancelled=lambda: next(steps) > 5,
    )
    assert answer == []
    assert log == ["ended", "ended"]


def test_a_saved_slot_has_its_images(model: TextModel, service: Service, tmp_path: Path) -> None:
    """As the server saves and restores one; the image is not encoded again, and another one is."""
    log: list[str] = []
    ids, images = wanted(model, 0)
    request = Request(ids.tolist(), PARAMS, images=images)
    ends = Ends(service)
    ends.submit(request)
    ends.wait()
    text = [*request.keys, *ends.answers[0]]
    cache = service.call(lambda memory: memory.peek(np.array(text, np.int64))).result(60)
    assert cache is not None
    assert cache.length > 49
    key = cache_key(model.engine, b"the model's fingerprint")
    save_cache(tmp_path / "slot.bin", key, text, cache)
    service.call(lambda memory: memory.forget(np.array(text, np.int64))).result(60)
    other = Service(model, slots=1)
    try:
        tokens, loaded = load_cache(tmp_path / "slot.bin", key, model.engine)
        assert other.call(lambda memory: memory.add(tokens, loaded)).result(60)
        for prompt, encoded in (((ids, images), 0), (wanted(model, 7), 2)):
            own = [unencoded(image, log, name=str(image.start)) for image in prompt[1]]
            longer = [*prompt[0].tolist(), *ends.answers[0], 9]
            more = Ends(other)
            more.submit(Request(longer, PARAMS, images=own))
            assert more.wait()[0].error is None
            assert more.answers[0] == expected(model, np.array(longer, np.int32), prompt[1])
            assert sum(one.startswith("begin") for one in log) == encoded
    finally:
        other.close()


def test_images_that_do_not_fit_are_refused_before_anything_runs(model: TextModel, service: Service) -> None:
    ids, images = wanted(model, 0)
    for wrong, problem in (
        (images[:1], "29 image placeholders"),
        (images[::-1], "image 1"),
        ([*images, images[1]], "image 2"),
    ):
        with pytest.raises(InputError, match=problem):
            model.generate(ids.tolist(), PARAMS, images=wrong)
        with pytest.raises(InputError, match=problem):
            service.submit(Request(ids.tolist(), PARAMS, images=wrong), lambda event: None)
    with pytest.raises(InputError, match="takes no images"):
        text_model().generate([1, 2, 3], PARAMS, images=images)


def test_other_engines_refuse_rows_of_images_by_name() -> None:
    rows = GivenRows(0, np.zeros(1, np.int32), np.zeros((1, 8), np.float32))
    plain = Batch([], [1], np.zeros(1, np.int32), np.full(1, -1, np.int32))
    refuse_images("opencl", plain)
    for more in ({"given": [rows]}, {"offsets": [-3]}):
        with pytest.raises(InputError, match="the opencl engine takes no images"):
            refuse_images("opencl", Batch([], [1], plain.tokens, plain.parents, **more))
