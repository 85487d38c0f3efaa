"""``--think-budget``, ``/think N`` and ``LLM``'s ``think_budget``: the same bytes everywhere, with any lookahead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead import InputError
from ipex_lookahead.cli.main import run
from ipex_lookahead.llm import LLM
from tests.cli.test_chat import talk  # noqa: F401  (a fixture)
from tests.serving.conftest import serving
from tests.support.chat_tokenizer import CHAT_TEMPLATE, chat_tokenizer, write_chat_llama

PROMPT = "Why is the sky blue?"
SEEDED: Any = {"temperature": 2.0, "seed": 5, "max_new_tokens": 40}
FLAGS = ["--temperature", "2", "--seed", "5", "--max-new-tokens", "40", "--threads", "1", "--no-adaptive"]
SENTENCE = "Time is up."


def written(folder: Path, *, thinks: bool = True) -> Path:
    made = write_chat_llama(folder, context=2048)
    if thinks:
        tokenizer = chat_tokenizer()
        tokenizer.chat_template = CHAT_TEMPLATE.replace("assistant\n", "assistant\n<think>\n") + "{# </think> #}"
        tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, which never ends its thought by itself."""
    return written(tmp_path_factory.mktemp("thinks") / "tiny")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Any:
    with LLM(folder, threads=1, slots=2, progress=False, engine="native") as made:
        yield made


@pytest.mark.parametrize("sentence", ["", SENTENCE])
def test_the_same_tokens_from_python_the_command_and_the_server(
    llm: LLM, folder: Path, capsys: pytest.CaptureFixture[str], sentence: str
) -> None:
    limits: Any = {"think_budget": 5, "think_sentence": sentence}
    answer = llm.chat(PROMPT, lookahead=0, **limits, **SEEDED)
    ending = f"{sentence}\n</think>"
    said = llm.tokenizer.decode(answer.token_ids)
    assert said[5:].startswith(ending)
    assert answer.reasoning.endswith(sentence)
    assert len(answer.reasoning) > len(sentence)
    assert answer.token_ids != llm.chat(PROMPT, **SEEDED).token_ids
    for lookahead in (3, "auto"):
        assert llm.chat(PROMPT, lookahead=lookahead, **limits, **SEEDED).token_ids == answer.token_ids
        with llm.stream(PROMPT, lookahead=lookahead, **limits, **SEEDED) as stream:
            assert "".join(stream) == answer.text
    assert [one.token_ids for one in llm.complete_batch([PROMPT], **limits, **SEEDED)] == [answer.token_ids]
    flags = ["--think-budget", "5", *(["--think-sentence", sentence] if sentence else [])]
    for lookahead in ("0", "3"):
        assert run(["generate", "-m", str(folder), PROMPT, "--json", "--lookahead", lookahead, *FLAGS, *flags]) == 0
        assert json.loads(capsys.readouterr().out)["token_ids"] == answer.token_ids
    with serving(llm._model.model, think_budget=5, think_sentence=sentence) as client:
        body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 2, "seed": 5, "max_tokens": 40}
        (choice,) = client.post("/v1/chat/completions", json={**body, "return_token_ids": True}).json()["choices"]
        assert choice["token_ids"] == answer.token_ids


def test_a_schema_is_kept_behind_a_thought_that_was_ended(
    llm: LLM, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {"enum": [7]}
    answer = llm.chat(PROMPT, schema=schema, think_budget=3, **SEEDED)
    assert answer.parsed == 7
    form = ["--json-schema", json.dumps(schema), "--think-budget", "3"]
    assert run(["generate", "-m", str(folder), PROMPT, "--json", *FLAGS, *form]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == answer.token_ids


def test_chat_ends_thoughts_at_the_budget(llm: LLM, folder: Path, talk: Any) -> None:  # noqa: F811
    flags = ("-m", str(folder), *FLAGS, "--no-stop-loops")
    out, err = talk(PROMPT, "/think 9", "/think", "/think unlimited", arguments=(*flags, "--think-budget", "5"))
    expected = llm.chat(PROMPT, think_budget=5, **SEEDED)
    assert out.startswith(f"<think>\n{expected.reasoning}")
    assert out.count("</think>") == 1
    lines = [line for line in err.splitlines() if line.startswith("think:")]
    default = "think: chat template default"
    assert lines == [f"{default}, at most 9 tokens", f"{default}, at most 9 tokens", default]
    assert talk(PROMPT, arguments=(*flags, "--think-budget", "9"))[0] == talk("/think 9", PROMPT, arguments=flags)[0]
    assert run(["run", str(folder), PROMPT, *flags[2:], "--think-budget", "5"]) == 0


def test_where_thinking_does_not_apply(
    llm: LLM,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    talk: Any,  # noqa: F811
) -> None:
    refused: Any = ({"think_budget": 0}, {"think_sentence": "So."})
    for more in refused:
        with pytest.raises(InputError, match="needs the chat template"):
            llm.stream(PROMPT, raw=True, **more)
    outside: Any = ({"think_budget": -1}, {"think_budget": True}, {"think_budget": 2, "think_sentence": 3})
    for wrong in outside:
        with pytest.raises(InputError, match="think_"):
            llm.chat(PROMPT, **wrong)
    plain = written(tmp_path / "plain", thinks=False)
    for command in (["generate", PROMPT], ["chat"]):
        assert run([*command, "-m", str(plain), "--think-budget", "5"]) == 2
        assert "error: --think-budget has no effect: the model's chat template has no" in capsys.readouterr().err
    assert run(["generate", PROMPT, "-m", str(plain), "--raw", "--think-budget", "5"]) == 2
    assert "needs the chat template" in capsys.readouterr().err
    _, err = talk("/think 5", arguments=("-m", str(plain)))
    assert "error: /think 5 has no effect" in err
    with LLM(plain, threads=1, progress=False) as other, pytest.raises(InputError, match="no thinking"):
        other.chat(PROMPT, think_budget=5)
