"""Requests with images: from one prompt and from many callers, with and without drafts, and what is refused."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5.23", reason="older transformers lack these families")

from ipex_lookahead.engines.api import Batch, refuse_images
from ipex_lookahead.engines.images import GivenRows
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Request, Service
from ipex_lookahead.runtime.text_model import TextModel
from tests.support.family_engines import load
from tests.support.letters import text_model
from tests.support.pictures import ours, picture, prompt, seeing
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
