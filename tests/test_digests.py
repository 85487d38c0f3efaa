"""``scripts/digests.py``: what it masks, and that pieces of a stream do not show."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "digests.py"


@pytest.fixture(scope="module")
def digests() -> Any:
    spec = importlib.util.spec_from_file_location("digests", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_times_ids_and_words_are_masked_and_answers_are_not(digests: Any, tmp_path: Path) -> None:
    given = {
        "id": "chatcmpl-1", "created": 5, "total_duration": 7, "drafted_by_source": {"suffix": 3}, "decode_tok_s": 9.0,
        "error": {"message": "wrong", "code": "invalid_value"}, "message": {"role": "assistant", "content": "a"},
        "token_ids": [1, 2], "text": f"in {tmp_path}/x, see msg_12ab", "usage": {"completion_tokens": 2},
    }  # fmt: skip
    assert digests.masked(given, tmp_path) == {
        "id": "*", "created": "*", "total_duration": "*", "drafted_by_source": "*", "decode_tok_s": "*",
        "error": {"message": "*", "code": "invalid_value"}, "message": {"role": "assistant", "content": "a"},
        "token_ids": [1, 2], "text": "in FOLDER/x, see msg-*", "usage": {"completion_tokens": 2},
    }  # fmt: skip


def test_a_stream_is_the_same_however_its_texts_are_cut(digests: Any) -> None:
    def stream(*pieces: str) -> str:
        events: list[Any] = [
            {"choices": [{"delta": {"content": piece}}], "created": at} for at, piece in enumerate(pieces)
        ]
        lines = [f"data: {json.dumps(event)}" for event in [*events, {"choices": [], "usage": {"total_tokens": 3}}]]
        return "\n\n".join([": prefill 1/2", *lines, "data: [DONE]"])

    assert digests.stream_of(stream("abc")) == digests.stream_of(stream("a", "", "bc"))
    assert digests.stream_of(stream("abc")) != digests.stream_of(stream("abd"))
    assert digests.stream_of(stream("abc"))[-1] == "data: [DONE]"
