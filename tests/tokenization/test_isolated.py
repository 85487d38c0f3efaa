"""A tokenizer in a process of its own: what hostile files do to that process, and what becomes of it."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.tokenization import isolated, process
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.isolated import IsolatedText

TEXT = "The cat saw 1234 balls"
QUADRATIC = r"x+y|\p{L}"
"""From every x it looks to the end of their run: 40,000 take seconds, and no limit of the library's own ends it."""


def folder_of(path: Path, core: Tokenizer, pattern: str = r"\p{L}+|[0-9]", **parts: Any) -> Path:
    """A tokenizer.json that cuts by an expression that nobody knows."""
    description = json.loads(core.to_str())
    description["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, description["pre_tokenizer"]]}
    (path / "tokenizer.json").write_text(json.dumps(description | parts), encoding="utf-8")
    (path / "tokenizer_config.json").write_text('{"bos_token": "<|start|>"}', encoding="utf-8")
    return path


@pytest.fixture
def tokenizer(tmp_path: Path, bpe_core: Tokenizer) -> IsolatedText:
    made = text_from_folder(folder_of(tmp_path, bpe_core), {})
    assert isinstance(made, IsolatedText)
    return made


def worker_of(tokenizer: IsolatedText) -> int:
    """The process id of its worker."""
    worker = tokenizer._process._worker
    assert worker is not None
    return worker._process.pid


def gone(pid: int) -> bool:
    """Whether that process ends within a minute; one that nobody has waited for has ended too."""
    for _ in range(3000):
        try:
            if Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_an_expression_that_takes_for_ever_is_stopped(
    tmp_path: Path, bpe_core: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "SECONDS", 0.3)
    monkeypatch.setattr(isolated, "SECONDS_PER_BYTE", 0.0)
    tokenizer = text_from_folder(folder_of(tmp_path, bpe_core, QUADRATIC), {})
    assert tokenizer is not None
    ids = tokenizer.encode(TEXT)
    with pytest.raises(
        ModelFormatError, match=r"tokenizer\.json: encoding: its process was stopped.*0\.3\d* s"
    ) as caught:
        tokenizer.encode("x" * 40_000)
    assert caught.value.file == str(tmp_path / "tokenizer.json")
    assert tokenizer.encode(TEXT) == ids  # by another process


def test_a_text_that_grows_without_bound_is_stopped(
    tmp_path: Path, bpe_core: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expression that matches nothing puts its text between all letters, again and again."""
    monkeypatch.setattr(isolated, "MEMORY", 256 << 20)
    grow = {"type": "Replace", "pattern": {"Regex": "(?=.)"}, "content": "ab" * 7}
    grown = {"type": "Sequence", "normalizers": [grow, {**grow, "content": "a"}] * 12}
    tokenizer = text_from_folder(folder_of(tmp_path, bpe_core, normalizer=grown), {})
    assert tokenizer is not None
    with pytest.raises(ModelFormatError, match="encoding"):
        tokenizer.encode("aaaaaaaa")
    with pytest.raises(ModelFormatError, match="encoding"):
        tokenizer.encode("a" * 100)


def test_more_tokens_than_any_text_has_are_an_error(
    tmp_path: Path, bpe_core: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "most_ids", lambda text: 3)
    tokenizer = text_from_folder(folder_of(tmp_path, bpe_core), {})
    assert tokenizer is not None
    with pytest.raises(ModelFormatError, match="encoding: the result has length 4; the limit is 3"):
        tokenizer.encode("zqzq", add_special_tokens=False)


def test_a_file_that_takes_for_ever_to_load_is_an_error(
    tmp_path: Path, bpe_core: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "MEMORY", 24 << 20)
    monkeypatch.setattr(isolated, "MEMORY_PER_BYTE", 0)
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json: file: its process"):
        text_from_folder(folder_of(tmp_path, bpe_core), {})


def test_an_expression_that_the_library_gives_up_is_an_error(tmp_path: Path, bpe_core: Tokenizer) -> None:
    tokenizer = text_from_folder(folder_of(tmp_path, bpe_core, r"(x+x+)+y"), {})
    assert isinstance(tokenizer, IsolatedText)
    pid = worker_of(tokenizer)
    with pytest.raises(ModelFormatError, match=r"encoding: PanicException: .*retry-limit"):
        tokenizer.encode("x" * 400)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert worker_of(tokenizer) == pid


def test_what_is_no_id_is_an_error_and_the_process_stays(tokenizer: IsolatedText) -> None:
    pid = worker_of(tokenizer)
    with pytest.raises(ModelFormatError, match=r"decoding: OverflowError"):
        tokenizer.decode([-1])
    assert worker_of(tokenizer) == pid
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_half_a_surrogate_pair_is_no_text(tokenizer: IsolatedText) -> None:
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode("\ud800")
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_a_process_that_somebody_ends_is_started_again(tokenizer: IsolatedText) -> None:
    ids, pid = tokenizer.encode(TEXT), worker_of(tokenizer)
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    with pytest.raises(ModelFormatError, match=r"was stopped \(signal 9\)"):
        tokenizer.encode(TEXT)
    assert tokenizer.encode(TEXT) == ids
    assert worker_of(tokenizer) != pid


def test_a_process_that_does_not_answer_is_given_up(tokenizer: IsolatedText, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, pid = tokenizer.encode(TEXT), worker_of(tokenizer)
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setattr(process, "_PATIENCE", 0.2)
        impatient.setattr(isolated, "SECONDS", 0.01)
        with pytest.raises(ModelFormatError, match="did not finish within"):
            tokenizer.encode(TEXT)
    assert gone(pid)
    assert tokenizer.encode(TEXT) == ids


def test_it_ends_with_its_tokenizer(tokenizer: IsolatedText) -> None:
    pid = worker_of(tokenizer)
    copied = copy.deepcopy(tokenizer)
    del tokenizer
    gc.collect()
    assert worker_of(copied) != pid
    assert copied.decode(copied.encode(TEXT)) == TEXT


def test_copies_and_pickles_have_their_own(tokenizer: IsolatedText) -> None:
    for other in (copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert worker_of(other) != worker_of(tokenizer)
        assert other.encode(TEXT) == tokenizer.encode(TEXT)
    full = tokenizer.for_transformers()
    for same in (copy.deepcopy(full), pickle.loads(pickle.dumps(full))):
        assert same.encode(TEXT) == tokenizer.encode(TEXT)


@pytest.mark.parametrize("way", ["end", "kill", "os._exit", "after a fork"])
def test_it_ends_with_the_process_that_started_it(tmp_path: Path, bpe_core: Tokenizer, way: str) -> None:
    folder_of(tmp_path, bpe_core)
    program = f"""
import os, sys
from pathlib import Path
from ipex_lookahead.tokenization.folder import text_from_folder
tokenizer = text_from_folder(Path({str(tmp_path)!r}), {{}})
tokenizer.encode("a")
print(tokenizer._process._worker._process.pid, flush=True)
if {way == "after a fork"}:
    if os.fork() == 0:  # the child holds what it inherited, and must not keep the worker alive with it
        os.close(1)
        sys.stdin.read()
if {way == "os._exit"}:
    os._exit(0)
if {way == "kill"}:
    sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if way == "kill":
        parent.kill()
    assert gone(pid)  # the fork's child is still there: it reads to the end of what is closed here
    parent.communicate()


def test_a_fork_starts_its_own(tokenizer: IsolatedText) -> None:
    ids, pid = tokenizer.encode(TEXT), worker_of(tokenizer)
    reader, writer = os.pipe()
    with tokenizer._process._lock:  # as if another thread were in the middle of a call
        child = os.fork()
        if child == 0:
            fine = b"no"
            try:
                if tokenizer.encode(TEXT) == ids and worker_of(tokenizer) != pid:
                    fine = b"yes"
            finally:
                os.write(writer, fine)
                os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        assert said.read() == b"yes"
    os.waitpid(child, 0)
    assert tokenizer.encode(TEXT) == ids
    assert worker_of(tokenizer) == pid


def test_many_threads(tokenizer: IsolatedText) -> None:
    texts = [f"{TEXT} {i} " * (i + 1) for i in range(12)]
    expected = [tokenizer.encode(text) for text in texts]
    wrong: list[Any] = []

    def work(i: int) -> None:
        for _ in range(40):
            ids = tokenizer.encode(texts[i])
            if ids != expected[i] or tokenizer.decode(ids) != texts[i]:
                wrong.append(ids)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_transformers_runs_here_has_been_tried_there(
    tmp_path: Path, bpe_core: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "SECONDS", 0.3)
    monkeypatch.setattr(isolated, "SECONDS_PER_BYTE", 0.0)
    tokenizer = text_from_folder(folder_of(tmp_path, bpe_core, QUADRATIC), {})
    assert tokenizer is not None
    full, hostile = tokenizer.for_transformers(), "x" * 40_000
    for call in (
        lambda: full(hostile),
        lambda: full.encode(hostile),
        lambda: full.tokenize(hostile),
        lambda: full(["a cat", hostile]),
        lambda: full("a cat", hostile),
        lambda: full([["a cat", hostile]], is_split_into_words=True),
    ):
        with pytest.raises(ModelFormatError, match="was stopped"):
            call()
    with pytest.raises(ModelFormatError, match="decoding"):
        full.decode([-1])
    assert full.convert_tokens_to_string(full.tokenize(TEXT)) == TEXT


def test_a_saved_one_loads_again(tmp_path: Path, tokenizer: IsolatedText) -> None:
    tokenizer.for_transformers().save_pretrained(tmp_path / "saved")
    again = text_from_folder(tmp_path / "saved", {})
    assert isinstance(again, IsolatedText)
    assert again.encode(TEXT) == tokenizer.encode(TEXT)


def test_a_machine_that_cannot_start_processes_says_so(
    tmp_path: Path, bpe_core: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.sys, "executable", "/nowhere/python")
    with pytest.raises(InputError, match=r"no Python process for the tokenizer of .*tokenizer\.json"):
        text_from_folder(folder_of(tmp_path, bpe_core), {})
