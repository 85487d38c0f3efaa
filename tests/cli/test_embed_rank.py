"""``embed`` and ``rank``: texts from everywhere, what is written, and what a failure leaves."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.cli import embedding_texts
from ipex_lookahead.cli.main import run
from tests.support.fake_embedding import FakeEmbedding, score, vector


@pytest.fixture
def fake(monkeypatch) -> FakeEmbedding:
    model = FakeEmbedding()
    monkeypatch.setattr(embedding_texts.EmbeddingOptions, "open", lambda options: model)
    return model


@pytest.fixture
def piped(monkeypatch):
    def pipe(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    pipe(b"")
    return pipe


def lines(capsys: Any) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def is_of(found: Any, text: str) -> bool:
    return np.array_equal(np.array(found, np.float32), vector(map(ord, text), 8))


@pytest.mark.usefixtures("piped")
def test_arguments_become_json_lines(fake, capsys):
    assert run(["embed", "-m", "x", "one", "two"]) == 0
    first, second = lines(capsys)
    assert (first["index"], second["index"]) == (0, 1)
    assert is_of(first["embedding"], "one")
    assert is_of(second["embedding"], "two")
    assert fake.closed


def test_texts_of_files_and_of_a_pipe(fake, capsys, piped, tmp_path):
    plain, objects = tmp_path / "plain.txt", tmp_path / "objects.jsonl"
    plain.write_bytes(b"one\r\n\ntwo\n")
    objects.write_text('{"id": 7, "body": "three"}\n\n"four"\n')
    assert run(["embed", "-m", "x", "zero", "--file", str(plain), "--file", str(objects), "--field", "body"]) == 0
    found = lines(capsys)
    texts = ["zero", "one", "", "two", "three", "four"]
    assert all(is_of(one["embedding"], text) for one, text in zip(found, texts, strict=True))
    assert [one.get("id") for one in found] == [None] * 4 + [7, None]
    piped(b"five\nsix")
    assert run(["embed", "-m", "x"]) == 0
    assert is_of(lines(capsys)[1]["embedding"], "six")
    piped(b'{"text": "seven"}\n')
    assert run(["embed", "-m", "x", "-"]) == 0
    assert is_of(lines(capsys)[0]["embedding"], "seven")


@pytest.mark.usefixtures("fake")
def test_a_numpy_file_and_a_file_of_json_lines(capsys, piped, tmp_path):
    piped("\n".join(f"text {n}" for n in range(1000)).encode())
    out = tmp_path / "v.npy"
    assert run(["embed", "-m", "x", "-o", str(out), "--task", "query"]) == 0
    assert "saved" in capsys.readouterr().err
    found = np.load(out, allow_pickle=False)
    assert (found.shape, found.dtype) == ((1000, 8), np.float32)
    assert is_of(found[999], "q: text 999")
    assert run(["embed", "-m", "x", "one", "-o", str(out)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert run(["embed", "-m", "x", "one", "-o", str(out), "--overwrite", "--dimensions", "4", "--normalize"]) == 0
    found = np.load(out)
    assert found.shape == (1, 4)
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-6)
    lined = tmp_path / "v.jsonl"
    assert run(["embed", "-m", "x", "one", "-o", str(lined)]) == 0
    assert is_of(json.loads(lined.read_text())["embedding"], "one")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["v.jsonl", "v.npy"], "no temporary file is left"


@pytest.mark.usefixtures("fake", "piped")
@pytest.mark.parametrize("name", ["v.npy", "v.jsonl"])
def test_links_homes_and_devices_as_the_output(capsys, monkeypatch, name, tmp_path):
    """The target of a link is replaced; a device never is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / f"link{name}").symlink_to(tmp_path / name)
    assert run(["embed", "-m", "x", "one", "-o", f"~/link{name}"]) == 0
    assert (tmp_path / f"link{name}").is_symlink()
    assert (tmp_path / name).stat().st_size
    os.mkfifo(pipe := tmp_path / f"pipe{name}")
    for device in ("/dev/null", str(pipe)):
        assert run(["embed", "-m", "x", "one", "-o", device, "--overwrite"]) == 2
        assert f"{device} is a device or a pipe; give a file" in capsys.readouterr().err
    assert pipe.is_fifo()


@pytest.mark.usefixtures("piped")
@pytest.mark.parametrize("name", ["v.npy", "v.jsonl"])
def test_a_failure_leaves_the_old_file(fake, name, tmp_path, monkeypatch):
    out = tmp_path / name
    out.write_text("old")
    batches = 0

    def vectors(inputs: Any, **_: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 2:
            raise KeyboardInterrupt
        return np.zeros((len(inputs), 8), np.float32)

    monkeypatch.setattr(fake, "vectors", vectors)
    texts = ["x" * 60] * 100
    assert run(["embed", "-m", "x", *texts, "-o", str(out), "--overwrite"]) == 130
    assert out.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.usefixtures("fake", "piped")
def test_texts_that_are_too_long(capsys):
    assert run(["embed", "-m", "x", "x" * 70, "short"]) == 0
    assert "note: 1 text has the maximum of 64 tokens; longer ones were cut" in capsys.readouterr().err
    assert run(["embed", "-m", "x", "--no-truncate", "x" * 70]) == 1
    assert "70 tokens" in capsys.readouterr().err


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"text": 5}\n', "line 1: there is no text 'text'; it has 'text'"),
        (b'{"text": "a"}\n[1]\n', "line 2: there is no text 'text'"),
        (b'{"text": "a"}\n{"text"\n', "line 2"),
        (b"\xff\n", "not UTF-8 text (byte 0)"),
    ],
)
def test_lines_that_are_no_texts(data, said, capsys, tmp_path):
    file = tmp_path / "f.jsonl"
    file.write_bytes(data)
    assert run(["embed", "-m", "x", "--file", str(file)]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("fake", "piped")
def test_without_texts_or_a_model(capsys):
    assert run(["embed", "-m", "x"]) == 2
    assert "there is no text; give one in quotes" in capsys.readouterr().err
    assert run(["embed", "text"]) == 2
    assert "Missing option '--model' / '-m'" in capsys.readouterr().err
    assert run(["embed", "-m", "x", "--file", "/no/such/file"]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.fixture
def reranker(monkeypatch) -> FakeEmbedding:
    model = FakeEmbedding("reranking")
    monkeypatch.setattr(embedding_texts.EmbeddingOptions, "open", lambda options: model)
    return model


@pytest.mark.usefixtures("reranker", "piped")
def test_ranking_by_a_reranker(capsys):
    assert run(["rank", "-m", "x", "cat", "xyz", "a cat", "at", "--json", "--top-n", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["index"] for one in found["results"]] == [1, 2]
    probability = 1 / (1 + np.exp(-score("cat|a cat")))
    assert found["results"][0] == {"index": 1, "score": pytest.approx(probability), "document": "a cat"}
    assert run(["rank", "-m", "x", "cat", "xyz", "a cat"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert any(row.split()[:2] == ["1", f"{probability:.4f}"] and row.endswith("a cat") for row in rows)


@pytest.mark.usefixtures("fake", "piped")
def test_ranking_by_an_embedding_model(capsys):
    assert run(["rank", "-m", "x", "one", "two", "three", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    asked = vector(map(ord, "q: one"), 8).astype(np.float64)
    for one in found:
        other = vector(map(ord, f"d: {one['document']}"), 8).astype(np.float64)
        cosine = asked @ other / np.linalg.norm(asked) / np.linalg.norm(other)
        assert one["score"] == pytest.approx(cosine, abs=1e-6)
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    assert run(["rank", "-m", "x", "one", "two", "--instruction", "be kind"]) == 1
    assert "--instruction is for reranking models" in capsys.readouterr().err
