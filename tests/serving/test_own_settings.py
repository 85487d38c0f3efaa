"""A model's own generation config behind the server: lengths, texts to stop at, and transformers' processors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.loading import load_text_model
from tests.serving.conftest import serving

MESSAGES = [{"role": "user", "content": "Hello"}]


def asked(folder: Any, tmp_path: Path, settings: dict[str, Any], path: str, **body: Any) -> Any:
    made = Path(shutil.copytree(folder, tmp_path / "own"))
    (made / "generation_config.json").write_text(json.dumps(settings))
    model = load_text_model(str(made), engine="native", threads=1, progress=False)
    with serving(model, slots=2) as client:
        return model, client.post(path, json={"temperature": 0, **body}).json()


@pytest.mark.parametrize(("settings", "tokens"), [({"max_new_tokens": 7}, 7), ({"max_length": 40}, None)])
def test_a_length_where_the_request_gives_none(folder: Any, tmp_path: Path, settings: Any, tokens: Any) -> None:
    _, found = asked(folder, tmp_path, settings, "/v1/chat/completions", messages=MESSAGES)
    used = found["usage"]
    assert used["completion_tokens"] == (tokens or 40 - used["prompt_tokens"])
    assert found["choices"][0]["finish_reason"] == "length"


def test_the_request_goes_before_the_file(folder: Any, tmp_path: Path) -> None:
    own = {"max_new_tokens": 7}
    _, found = asked(folder, tmp_path, own, "/v1/chat/completions", messages=MESSAGES, max_tokens=9)
    assert found["usage"]["completion_tokens"] == 9


def test_the_models_own_texts_to_stop_at(folder: Any, tmp_path: Path) -> None:
    prompt = {"prompt": [1, 70, 80, 70], "max_tokens": 60}
    _, plain = asked(folder, tmp_path, {}, "/v1/completions", **prompt)
    said = plain["choices"][0]["text"]
    stop = next(one for one in said[2:] if one.isascii() and said.index(one) >= 2)
    shutil.rmtree(tmp_path / "own")
    _, found = asked(folder, tmp_path, {"stop_strings": stop}, "/v1/completions", **prompt)
    assert found["choices"][0]["text"] == said[: said.index(stop)]
    assert found["choices"][0]["finish_reason"] == "stop"
    shutil.rmtree(tmp_path / "own")
    body = {"messages": MESSAGES, "max_tokens": 400, "temperature": 2, "seed": 1}
    _, turn = asked(folder, tmp_path, {"stop_strings": [chr(n) for n in range(33, 127)]}, "/v1/messages", **body)
    assert (turn["stop_reason"], turn["stop_sequence"]) == ("end_turn", None)  # nobody had asked for it


def test_what_cannot_be_obeyed_is_said_before_the_first_request(folder: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="generation config: guidance_scale=1.5 is not supported"):
        asked(folder, tmp_path, {"guidance_scale": 1.5}, "/health")
