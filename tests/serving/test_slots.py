"""llama-server's saved slots: what is restored is what was computed, for its owner alone, in files of one folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.slots import Slots
from tests.serving.conftest import LIMITS, serving
from tests.serving.test_chat import HOT

PROMPT = "The quick brown fox jumps over the lazy dog. " * 8
KEYS = ["a" * 16, "b" * 16]


@pytest.fixture
def folder_of_slots(tmp_path) -> Path:
    made = tmp_path / "slots"
    made.mkdir()
    return made


@pytest.fixture
def saving(model, folder_of_slots) -> Iterator[TestClient]:
    with serving(model, slot_folder=folder_of_slots) as client:
        yield client


def ask(client: Any, key: str = "", **fields: Any) -> Any:
    body = {"prompt": PROMPT, "n_predict": 16, **HOT, "ignore_eos": True, **fields}
    answer = client.post("/completion", json=body, headers=headers(key))
    assert answer.status_code == 200, answer.text
    return answer.json()


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def act(client: Any, action: str, slot: Any = 0, status: int = 200, key: str = "", **body: Any) -> Any:
    answer = client.post(f"/slots/{slot}?action={action}", json=body, headers=headers(key))
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]


def test_a_saved_slot_survives_a_restart(model, folder_of_slots):
    """The answers are those without any cache."""
    with serving(model, slot_folder=folder_of_slots) as client:
        first = ask(client)
        count = first["tokens_evaluated"] + 15  # the last token has no keys and values yet
        saved = act(client, "save", first["id_slot"], filename="fox.bin")
        size = (folder_of_slots / "fox.bin").stat().st_size
        assert {**saved, "timings": None} == {
            "id_slot": 0, "filename": "fox.bin", "n_saved": count, "n_written": size, "timings": None,
        }  # fmt: skip
        assert saved["timings"]["save_ms"] > 0
    following = {"prompt": PROMPT + first["content"] + " And then"}
    with serving(model, slot_folder=folder_of_slots) as client:
        plain = ask(client, **following)
        assert plain["tokens_cached"] == 0
    with serving(model, slot_folder=folder_of_slots) as client:
        restored = act(client, "restore", 3, filename="fox.bin")
        assert {**restored, "timings": None} == {
            "id_slot": 3, "filename": "fox.bin", "n_restored": count, "n_read": size, "timings": None,
        }  # fmt: skip
        again = ask(client, **following)
        assert again["content"] == plain["content"]
        assert again["tokens"] == plain["tokens"]
        assert again["tokens_cached"] >= first["tokens_evaluated"] // 64 * 64
        assert again["id_slot"] == 3, "the prompt continues the restored text"


def test_an_erased_slot_is_read_again(saving):
    first = ask(saving)
    assert ask(saving)["tokens_cached"] > 0
    assert act(saving, "erase")["n_erased"] == first["tokens_evaluated"] + 16
    assert act(saving, "erase") == {"id_slot": 0, "n_erased": 0}
    assert "is empty" in act(saving, "save", status=400, filename="x")["message"]
    again = ask(saving)
    assert (again["tokens_cached"], again["content"]) == (0, first["content"])


def test_every_api_has_slots(saving):
    chat = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 4, **HOT}
    for slot in (2, 2.0):
        assert saving.post("/v1/chat/completions", json={**chat, "id_slot": slot}).status_code == 200
    assert act(saving, "save", 2, filename="chat")["n_saved"] > 0
    assert saving.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "id_slot": 1}).status_code == 200
    assert act(saving, "save", 1, filename="text")["n_saved"] == 1
    assert saving.post("/v1/messages", json=chat).status_code == 200
    found = [json.loads(line[6:]) for line in ask_stream(saving, id_slot=3)]
    assert {one["id_slot"] for one in found} == {3}
    for slot in (4, 10**9):
        answer = saving.post("/completion", json={"prompt": "a", "id_slot": slot})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "id_slot")


def ask_stream(client: Any, **fields: Any) -> list[str]:
    body = {"prompt": PROMPT, "n_predict": 8, **HOT, "stream": True, **fields}
    return [line for line in client.post("/completion", json=body).text.split("\n") if line.startswith("data: ")]


def test_another_key_restores_nothing(model, folder_of_slots):
    """Neither from a file that it is given, nor by a name that another key has used."""
    with serving(model, slot_folder=folder_of_slots, keys=Keys(KEYS)) as client:
        one, other = KEYS
        ask(client, one)
        act(client, "save", key=one, filename="mine")
        assert "is no saved slot" in act(client, "restore", key=other, status=400, filename="mine")["message"]
        assert "is empty" in act(client, "save", key=other, status=400, filename="mine")["message"]
        assert act(client, "erase", key=other)["n_erased"] == 0
        (own,) = folder_of_slots.iterdir()
        ask(client, other)
        act(client, "save", key=other, filename="mine")
        (theirs,) = set(folder_of_slots.iterdir()) - {own}
        os.replace(own / "mine", theirs / "copied")
        said = act(client, "restore", key=other, status=400, filename="copied")["message"]
        assert "belongs to another model, or to other settings" in said
        assert str(folder_of_slots) not in said
        assert own.stat().st_mode & 0o777 == 0o700


def test_a_salt_has_slots_of_its_own(saving):
    ask(saving, cache_salt="s", id_slot=1)
    assert "is empty" in act(saving, "save", 1, status=400, filename="x")["message"]
    act(saving, "save", 1, filename="x", cache_salt="s")
    assert "is no saved slot" in act(saving, "restore", 1, status=400, filename="x")["message"]
    assert act(saving, "restore", 1, filename="x", cache_salt="s")["n_restored"] > 0


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "a\0b",
        "a\nb",
        ".hidden",
        " x",
        "x ",
        "x.",
        "C:x",
        "x" * 201,
    ]
    + ["ä" * 101, "a?b", "\u0085"],
)
def test_file_names_stay_in_the_folder(name, saving, folder_of_slots):
    ask(saving)
    for action in ("save", "restore"):
        error = act(saving, action, status=400, filename=name)
        assert error["param"] == "filename"
    assert list(folder_of_slots.iterdir()) == []
    assert [one.name for one in folder_of_slots.parent.iterdir()] == ["slots"]


def test_other_files_are_neither_read_nor_replaced(saving, folder_of_slots, tmp_path):
    ask(saving)
    (folder_of_slots / "notes.txt").write_text("mine")
    (folder_of_slots / "folder").mkdir()
    (tmp_path / "outside").write_text("outside")
    (folder_of_slots / "link").symlink_to(tmp_path / "outside")
    for name in ("notes.txt", "folder", "link"):
        for action in ("save", "restore"):
            assert act(saving, action, status=400, filename=name)["message"]
    assert (folder_of_slots / "notes.txt").read_text() == "mine"
    assert (tmp_path / "outside").read_text() == "outside"


def test_a_damaged_file_is_refused(saving, folder_of_slots):
    ask(saving)
    act(saving, "save", filename="x")
    file = folder_of_slots / "x"
    data = file.read_bytes()
    for change in (data[: len(data) // 2], data[:-1], data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]):
        file.write_bytes(change)
        said = act(saving, "restore", status=400, filename="x")["message"]
        assert said.startswith("'x' is ")
        assert str(folder_of_slots) not in said
    act(saving, "save", filename="x")
    assert file.read_bytes() == data, "a damaged file may be replaced if its head is one"


def test_what_cannot_be_done_is_named(client, saving):
    assert act(client, "save", status=501, filename="x")["type"] == "not_supported_error"
    for slot in (4, -1, "x", "1e3", "9" * 400, "%00"):
        assert act(saving, "save", slot, status=400, filename="x")["param"] == "id_slot"
    assert act(saving, "", status=400)["param"] == act(saving, "drop", status=400)["param"] == "action"
    assert saving.post("/slots/0?action=erase").status_code == 200, "without a body"
    assert saving.post("/slots/0?action=save", content="[]").status_code == 400


def test_a_key_has_a_bounded_number_of_files(tmp_path):
    slots = Slots(2, tmp_path, 2)
    for name in ("a", "b"):
        slots.file("", name, new=True).write_bytes(b"")
    with pytest.raises(ApiError, match="the maximum is 2"):
        slots.file("", "c", new=True)
    assert slots.file("other", "c", new=True).parent.name == "key-other"


def test_which_slot_an_answer_gets(tmp_path):
    slots, text = Slots(3, tmp_path, 9), np.arange(100)
    assert slots.begin("", text[:40], None) == 0
    assert slots.begin("", [7], -1) == 1
    assert slots.begin("", text[:60], None) == 0, "it continues the first text"
    assert slots.begin("", [*text[:50], 3], None) == 2, "it shares too little of the prompt"
    assert slots.begin("", [8], None) == 1, "the least recently used one"
    assert slots.begin("", [9], 2) == 2
    assert slots.begin("other", text, None) == 0
    slots.put("", 0, text[:90], 60)
    assert slots.text("", 0)[0].tolist() == text[:90].tolist()
    assert slots.begin("", text[:55], None) == 0, "an answer again: nine tenths of the prompt are there"
    with pytest.raises(ApiError, match="slots are 0 to 2"):
        slots.begin("", text, 3)


def test_tenants_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("ipex_lookahead.serving.slots.MOST_TENANTS", 2)
    slots = Slots(1, tmp_path, 9)
    for tenant in ("a", "b", "c"):
        slots.begin(tenant, [1], None)
    with pytest.raises(ApiError, match="is empty"):
        slots.text("a", 0)
    assert slots.text("c", 0)[0].tolist() == [1]


def test_a_full_disk_is_reported(saving, folder_of_slots, monkeypatch):
    ask(saving)

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    error = act(saving, "save", status=500, filename="x")
    assert error["message"] == "'x' cannot be written: No space left on device"
    assert list(folder_of_slots.iterdir()) == []
    assert LIMITS.saved_slots == 64
