"""Services and conversations with a folder of cached prefixes: what they find after a restart, and who finds it."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.decoding import disk_cache
from ipex_lookahead.engines import fingerprint as prints
from ipex_lookahead.engines.fingerprint import fingerprint
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.cache_files import LEAST_DISK
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.runtime.text_model import TextModel
from tests.support.exporting_engine import ExportingEngine
from tests.support.hashed_engine import HashedEngine
from tests.support.letters import VOCAB, text_model, tokens_of


@pytest.fixture(autouse=True)
def reading_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """These engines compute faster than any disk reads."""
    monkeypatch.setattr(disk_cache, "FILE_SECONDS", 0.0)
    monkeypatch.setattr(disk_cache, "FIRST_RATE", 1e18)


def loaded(folder: Path | None, *, draft: bool = False, weights: int = 0) -> TextModel:
    model = text_model(ExportingEngine(VOCAB, seed=weights))
    if draft:
        model.use_draft_model(text_model(ExportingEngine(VOCAB)))
    model.use_cache_folder(folder)
    return model


def prompt_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def ask(service: Service, prompt: list[int], **options: Any) -> tuple[list[int], int]:
    """The answer, and the number of cached prompt tokens."""
    events = list(service.stream(prompt, SamplingParams(20, temperature=0.8, seed=3), **options))
    assert events[-1].stats is not None
    return tokens_of(events), events[-1].stats.cached_tokens


@pytest.mark.parametrize("draft", [False, True])
def test_a_service_finds_what_one_before_it_stored(tmp_path: Path, draft: bool) -> None:
    options: dict[str, Any] = {"lookahead": 3, "adaptive": False} if draft else {}
    first = prompt_of(600)
    with closing(Service(loaded(tmp_path, draft=draft))) as service:
        answer, cached = ask(service, first, **options)
    assert cached == 0
    second = [*first, *answer, 1, 2, 3]
    model = loaded(tmp_path, draft=draft)
    with closing(Service(model)) as service:
        found, cached = ask(service, second, **options)
        assert cached == 619
        assert service.disk is not None
        assert service.disk.tokens == 619
        assert service.cached_tokens == 619
        if draft:  # its own prefix was read too, in time or not
            assert service._draft_memory is not None
            disk, until = service._draft_memory.disk, time.monotonic() + 20
            assert disk is not None
            while not disk.hits:
                assert time.monotonic() < until
                time.sleep(0.005)
    with closing(Service(loaded(None))) as service:
        assert ask(service, second)[0] == found


def test_keys_and_salts_find_only_their_own(tmp_path: Path) -> None:
    prompt = prompt_of(600)
    with closing(Service(loaded(tmp_path))) as service:
        answer, _ = ask(service, prompt, key="one", salt="x")
    text = [*prompt, *answer, 1]
    with closing(Service(loaded(tmp_path))) as service:
        assert ask(service, text, key="two", salt="x")[1] == 0
        assert ask(service, text, key="one", salt="y")[1] == 0
        assert ask(service, text)[1] == 0
        assert ask(service, text, key="one", salt="x")[1] == 619


def test_other_weights_find_nothing(tmp_path: Path) -> None:
    prompt = prompt_of(600)
    with closing(Service(loaded(tmp_path))) as service:
        answer, _ = ask(service, prompt)
    with closing(Service(loaded(tmp_path, weights=1))) as service:
        assert ask(service, [*prompt, *answer, 1])[1] == 0


def test_a_conversation_is_found_by_the_next_process_and_by_a_service(tmp_path: Path) -> None:
    prompt = prompt_of(600)
    model = loaded(tmp_path)
    answer = model.generate(prompt, SamplingParams(20), keep=True)
    model.close()
    text = [*prompt, *answer, 1, 2]
    again = loaded(tmp_path)
    got = again.generate(text, SamplingParams(20), keep=True)
    assert again.stats.cached_tokens == 619
    assert got == loaded(None).generate(text, SamplingParams(20))
    with closing(Service(loaded(tmp_path))) as service:
        assert ask(service, text)[1] == 619


def test_another_folder_begins_anew_and_the_old_one_is_complete(tmp_path: Path) -> None:
    model = loaded(tmp_path / "a")
    answer = model.generate(prompt_of(600), SamplingParams(20), keep=True)
    model.use_cache_folder(tmp_path / "b")
    text = [*prompt_of(600), *answer, 1, 2]
    model.generate(text, SamplingParams(1), keep=True)
    assert model.stats.cached_tokens == 0
    model.use_cache_folder(tmp_path / "a")
    model.generate(text, SamplingParams(1), keep=True)
    assert model.stats.cached_tokens == 619


def test_engines_without_images_and_bad_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hashed engine cannot save KV caches"):
        text_model(HashedEngine(VOCAB)).use_cache_folder(tmp_path)
    varying = ExportingEngine(VOCAB)
    varying.row_invariant = False
    with pytest.raises(InputError, match="reproducible"):
        text_model(varying).use_cache_folder(tmp_path)
    with pytest.raises(InputError, match="cache_disk"):
        text_model(ExportingEngine(VOCAB)).use_cache_folder(tmp_path, LEAST_DISK - 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        text_model(ExportingEngine(VOCAB)).use_cache_folder(tmp_path / "file")


def test_the_fingerprint_has_the_weights_and_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint(ExportingEngine(VOCAB))
    assert len(first) == 32
    assert fingerprint(ExportingEngine(VOCAB)) == first
    assert fingerprint(ExportingEngine(VOCAB, seed=1)) != first
    other = ExportingEngine(VOCAB)
    other.cache_layout = "hashed 2"
    assert fingerprint(other) != first
    file = tmp_path / "model.safetensors"
    monkeypatch.setattr(prints, "HEADER_BYTES", 100)
    monkeypatch.setattr(prints, "SAMPLE_BYTES", 10)
    file.write_bytes(bytes(64_000))
    of_file = fingerprint(ExportingEngine(VOCAB), tmp_path)
    assert of_file != first
    for at, changes in ((50, True), (20_003, True), (20_500, False), (63_005, True)):
        content = bytearray(64_000)
        content[at] = 1
        file.write_bytes(content)
        assert (fingerprint(ExportingEngine(VOCAB), tmp_path) != of_file) == changes, at
    file.write_bytes(bytes(64_001))
    assert fingerprint(ExportingEngine(VOCAB), file) != of_file
