"""ipex-lookahead serve as people run it: it says where it listens, answers, and ends when it is told to."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.types import Size
from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.keys import Keys
from tests.support.chat_tokenizer import SIZE, chat_tokenizer

pytestmark = pytest.mark.programs

PATIENCE = 120.0
"""Seconds; httpx waits five where nothing is said, and a busy machine takes longer."""
get = partial(httpx.get, timeout=PATIENCE)
post = partial(httpx.post, timeout=PATIENCE)


def started(*options: str, planted: str = "") -> tuple[subprocess.Popen[str], str]:
    program = ["-c", f"{planted}\nfrom ipex_lookahead.cli.main import main\nmain()"]
    if not planted:
        program = ["-m", "ipex_lookahead.cli.main"]
    command = [sys.executable, *program, "serve", "--port", "0", "--threads", "1", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"listening on (https?://[\d.:]+)", line)
    assert found, line + process.stderr.read()
    return process, found[1]


def wait_for(process: subprocess.Popen[str], url: str, verify: Any = True) -> None:
    ends = time.monotonic() + PATIENCE
    while (answer := get(url + "/health", verify=verify)).status_code == 503:
        assert answer.json()["error"]["code"] == "loading"
        assert process.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.05)
    assert answer.status_code == 200


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_serves_until_it_is_told_to_end(folder, signal_number):
    process, url = started("--model", str(folder), "--lookahead", "2")
    try:
        wait_for(process, url)
        assert get(url + "/v1/models").json()["data"][0]["id"] == folder.name
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
        answer = post(url + "/v1/chat/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] <= 3
        process.send_signal(signal_number)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == (0 if signal_number == signal.SIGINT else -signal.SIGTERM), said
    assert "Traceback" not in said


def test_a_second_signal_ends_the_answers_that_the_first_one_lets_end(folder):
    process, url = started("--model", str(folder), "--drain-seconds", "3600")
    try:
        wait_for(process, url)
        body = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True, "n": 8, "temperature": 30}
        with httpx.stream("POST", url + "/v1/completions", json=body, timeout=PATIENCE) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            while get(url + "/health").json().get("error", {}).get("code") != "draining":
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            assert "shutting_down" in "".join(lines)
        process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode in (0, -signal.SIGTERM)


def test_a_model_that_cannot_be_read_ends_it_with_a_sentence(tmp_path):
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    process, _ = started("--model", str(tmp_path / "cut.gguf"))
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "error: " in said
    assert "Traceback" not in said


def test_a_head_that_was_named_drafts_and_changes_no_answer(tmp_path):
    """Four answers to one prompt, greedy and sampled, each twice: the second one begins as one before it."""
    pytest.importorskip("transformers", minversion="5", reason="the models are made of transformers 5's layers")
    from tests.support.heads import write

    model, head = write("eagle3", tmp_path, words=SIZE)
    chat_tokenizer().save_pretrained(model)
    drafting = ["--drafter", str(head), "--strategy", "head", "--lookahead", "4", "--no-adaptive"]
    process, url = started("--model", str(model), *drafting)
    try:
        wait_for(process, url)

        def texts(**fields: Any) -> list[str]:
            body = {"prompt": "Once upon a time", "max_tokens": 24, "n": 4, "ignore_eos": True, **fields}
            return [choice["text"] for choice in post(url + "/v1/completions", json=body).json()["choices"]]

        for how in ({"temperature": 0}, {"temperature": 0.8, "seed": 3}):
            plain = texts(**how, lookahead=0)
            assert texts(**how) == texts(**how) == plain
            assert len(plain) == 4
        drafted = re.findall(r'num_draft_tokens_total{.*source="head".*} ([0-9.]+)', get(url + "/metrics").text)
    finally:
        process.kill()
    assert sum(map(float, drafted)) > 24


@pytest.mark.parametrize("option", ["--model", "--draft-model", "--drafter"])
@pytest.mark.parametrize("name", ["nope.gguf", "qwen3-4", "empty"])
def test_a_path_at_which_nothing_lies_is_told_before_it_listens(option, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert run(["serve", "--port", "0", option, name]) == 1
    said = capsys.readouterr().err
    assert "listening" not in said
    assert name in said.partition("hint: ")[0]


def test_a_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["serve", "--port", str(taken.getsockname()[1])]) == 1
    assert "or --port 0 for any free port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cache-memory", "much"], "must be a size such as 512M or 2G, got 'much'"),
        (["--slots", "0"], "--slots"),
        (["--max-running-per-key", "0"], "--max-running-per-key"),
        (["--max-queued-per-key", "-1"], "--max-queued-per-key"),
        (["--window", "4"], "--strategy jacobi"),
        (["--api-key-file", "/nowhere/keys"], "cannot be read"),
    ],
)
def test_wrong_options(options, said, capsys):
    assert run(["serve", "--port", "0", *options]) != 0
    assert said in capsys.readouterr().err


def test_what_is_missing_is_named(monkeypatch, capsys):
    from ipex_lookahead.cli import serve

    monkeypatch.setattr(serve, "NEEDED", ("fastapi", "no_such_package"))
    assert run(["serve"]) == 1
    said = capsys.readouterr().err
    assert "serve needs no_such_package: not installed" in said
    assert "ipex-lookahead[serve]" in said


@pytest.mark.parametrize(
    ("text", "number"),
    [("17", 17), ("512M", 512 << 20), ("2g", 2 << 30), ("1KiB", 1024), ("3 GB".replace(" ", ""), 3 << 30)],
)
def test_sizes(text, number):
    assert Size().convert(text, None, None) == number


def test_keys_of_a_file(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("# ours\n\n  first-key-of-sixteen \nsecond-key-of-sixteen\n")
    keys = Keys.of_file(file)
    assert keys
    assert keys.owner("first-key-of-sixteen") != keys.owner("second-key-of-sixteen")
    assert keys.owner("first-key-of-sixtee") is None
    assert keys.owner("") is None
    assert "sixteen" not in repr(vars(keys))


@pytest.mark.parametrize(
    "content", [b"", b"# nothing\n", b"short\n", b"a key with a space in it\n", b"\xff" * 20, "é".encode() * 20]
)
def test_files_that_hold_no_keys(tmp_path: Path, content: Any):
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(InputError):
        Keys.of_file(file)
