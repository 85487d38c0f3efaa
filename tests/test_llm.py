"""LLM: chat, text, streams, batches and structured output, with the tokens of the model and of the command."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from ipex_lookahead import InputError, LowBitFormatError, MissingPackageError, ServiceError
from ipex_lookahead.cli.main import run
from ipex_lookahead.conversation.answer import AnswerState
from ipex_lookahead.conversation.reader import Reader
from ipex_lookahead.conversation.result import Answer, AnswerStream
from ipex_lookahead.conversation.thinking import TAGS, Mode, Thought
from ipex_lookahead.decoding.events import Event
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.llm import LLM, ToolCall
from ipex_lookahead.runtime.recommended import SEED
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.stream import Stream
from ipex_lookahead.tokenization.prompts import build_prompt
from tests.support.adapter_files import llama_changes, write_peft
from tests.support.chat_tokenizer import SIZE, write_chat_llama
from tests.support.tiny import TinyLlama

WARM = {"temperature": 3.0, "top_p": 0.95, "seed": 5}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
WEATHER = {"name": "weather", "parameters": {**SCHEMA, "properties": {"a": {"enum": [3]}}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_llama(tmp_path_factory.mktemp("llm") / "tiny", context=2048)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, threads=1, slots=2, progress=False) as made:
        yield made


def waited(condition: Callable[[], bool]) -> bool:
    """Whether a condition becomes true within a minute."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


@pytest.mark.parametrize("settings", [{"temperature": 0}, WARM])
@pytest.mark.parametrize("lookahead", [0, 3, "auto", "prompt_lookup"])
def test_an_answer_has_the_tokens_of_the_model_whatever_is_drafted(
    llm: LLM, settings: dict[str, Any], lookahead: int | str
) -> None:
    model = llm._model.model
    ids = build_prompt(model.tokenizer, model.config, "ab ab ab")
    alone = model.generate(ids, SamplingParams(24, **settings))
    answer = llm.chat("ab ab ab", max_new_tokens=24, lookahead=lookahead, **settings)
    assert answer.token_ids == alone
    assert answer == answer.text == model.tokenizer.decode(alone, skip_special_tokens=True)
    assert type(answer.text) is str
    assert (answer.stats.tokens, answer.stats.seed) == (len(alone), settings.get("seed"))
    raw = model.generate(model.tokenizer.encode("ab ab ab"), SamplingParams(24, **settings))
    assert llm.generate("ab ab ab", max_new_tokens=24, lookahead=lookahead, **settings).token_ids == raw


def test_the_command_gives_the_same(
    llm: LLM, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    given = ["generate", "-m", str(folder), "--threads", "1", "--json", "-n", "12", "--temperature", "0.8"]
    assert run([*given, "--seed", "5", "--system", "Be brief.", "Hi"]) == 0
    found = json.loads(capsys.readouterr().out)
    answer = llm.chat("Hi", system="Be brief.", max_new_tokens=12, temperature=0.8, seed=5)
    assert (answer.token_ids, answer.text) == (found["token_ids"], found["text"])


def test_defaults_are_those_recommended_for_the_model(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    recommended = {"temperature": 0.9, "top_k": 7}
    monkeypatch.setattr(llm._model.model, "_defaults", recommended)
    answer = llm.chat("Hi", max_new_tokens=8)
    assert (answer.stats.seed, answer.stats.temperature) == (SEED, 0.9)
    assert answer == llm.chat("Hi", max_new_tokens=8, temperature=0.9, top_k=7, seed=SEED)
    assert llm.chat("Hi", max_new_tokens=8, temperature=0.9).stats.seed != SEED  # drawn


def test_a_conversation_reads_only_what_is_new(llm: LLM) -> None:
    messages = [{"role": "system", "content": "x" * 200}, {"role": "user", "content": "Hi"}]
    first = llm.chat(messages, max_new_tokens=4, temperature=0)
    messages += [first.message, {"role": "user", "content": "And now?"}]
    second = llm.chat(messages, max_new_tokens=4, temperature=0)
    assert second.stats.cached_tokens >= first.stats.prompt_tokens - 1
    assert messages[2] == {"role": "assistant", "content": first.text}
    parts = [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]
    assert llm.chat(parts, max_new_tokens=4, temperature=0) == llm.chat("Hi", max_new_tokens=4, temperature=0)


def test_finish_reasons_and_stop_texts(llm: LLM) -> None:
    whole = llm.generate("ab", max_new_tokens=30, temperature=0)
    assert whole.finish_reason == "length"
    stop = whole[5:8]
    cut = llm.generate("ab", max_new_tokens=30, temperature=0, stop=stop)
    assert (cut, cut.finish_reason) == (whole[: whole.index(stop)], "stop")
    assert llm.generate("ab", max_new_tokens=30, temperature=0, stop=[stop, "never"]) == cut
    token = whole.token_ids[-1]
    ended = llm.generate("ab", max_new_tokens=30, temperature=0, stop_token_ids=[token])
    assert (len(ended.token_ids), ended.finish_reason) == (whole.token_ids.index(token) + 1, "stop")
    assert llm.generate("ab", max_new_tokens=0) == ""


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_gives_the_text_in_pieces(llm: LLM) -> None:
    stream = llm.stream("Hi", max_new_tokens=16, lookahead=0, **WARM)
    pieces = list(stream)
    assert len(pieces) > 1
    assert "".join(pieces) == stream.answer == llm.chat("Hi", max_new_tokens=16, **WARM)
    assert stream.answer.stats.tokens == 16
    raw = llm.stream("Hi", raw=True, max_new_tokens=16, **WARM)
    assert "".join(raw) == llm.generate("Hi", max_new_tokens=16, **WARM)
    assert list(raw) == []


def test_closing_a_stream_ends_the_answer(llm: LLM) -> None:
    whole = llm.generate("Hi", max_new_tokens=1500, temperature=0, ignore_eos=True)
    with llm.stream("Hi", raw=True, max_new_tokens=1500, temperature=0, ignore_eos=True) as stream:
        first = next(stream)
    assert list(stream) == []
    assert stream.answer.finish_reason == "cancelled"
    assert whole.startswith(stream.answer)
    assert stream.answer.startswith(first)
    dropped = llm.stream("Hi", raw=True, max_new_tokens=1500, ignore_eos=True)
    next(dropped)
    del dropped
    gc.collect()
    assert waited(lambda: llm._service.running == 0)


def thinking(*tokens: str, reasoning: bool) -> AnswerStream:
    """A stream of an answer that begins within its thoughts."""

    class Letters:
        silent_ids: frozenset[int] = frozenset()

        def decode(self, ids: list[int], **_: Any) -> str:
            return "".join(tokens[token] for token in ids)

    events = Stream()
    events.put(Event("tokens", tokens=[*range(len(tokens))], origins=[None] * len(tokens)))
    events.put(Event("finish", reason="stop", stats=GenerationStats(tokens=len(tokens))))
    request = Request([1], reader=Reader(Mode.WITHIN, None, TAGS))
    return AnswerStream(events, AnswerState(request, Letters()), reasoning=reasoning)  # type: ignore[arg-type]


def test_thoughts_are_apart_from_the_answer() -> None:
    said = ("so ", "it is", "</think>", "\n\n", "Yes", ".")
    quiet, loud = thinking(*said, reasoning=False), thinking(*said, reasoning=True)
    assert list(quiet) == ["Yes."]
    assert (quiet.answer, quiet.answer.reasoning) == ("Yes.", "so it is")
    pieces = list(loud)
    assert ["".join(p for p in pieces if isinstance(p, Thought) is thought) for thought in (True, False)] == [
        "so it is", "Yes."
    ]  # fmt: skip


def test_an_error_of_an_answer_is_raised_again() -> None:
    events = Stream()
    events.put(Event("error", error=ServiceError("it broke")))
    stream = AnswerStream(events, AnswerState(Request([1]), type("T", (), {"silent_ids": (), "decode": str})()))
    for _ in range(2):
        with pytest.raises(ServiceError, match="it broke"):
            _ = stream.answer


# ---- batches and threads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [False, True])
def test_a_batch_has_the_answers_of_single_calls(llm: LLM, raw: bool) -> None:
    prompts = ["a", "bb", "ccc ccc", "dddd", "e" * 90]  # more than slots
    options: dict[str, Any] = {"max_new_tokens": 12, **WARM}
    single = [(llm.generate if raw else llm.chat)(one, **options) for one in prompts]
    together = llm.complete_batch(prompts, raw=raw, **options)
    assert [one.token_ids for one in together] == [one.token_ids for one in single]
    assert together == single
    assert llm.complete_batch([]) == []


def test_a_batch_takes_conversations_and_names_the_wrong_one(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "Hi"}]
    options: dict[str, Any] = {"max_new_tokens": 4, "temperature": 0}
    assert llm.complete_batch([conversation, "Hi"], **options) == [llm.chat("Hi", **options)] * 2
    with pytest.raises(InputError, match=r"prompt 1: messages\[0\]: role is 'me'") as caught:
        llm.complete_batch(["Hi", [{"role": "me", "content": "?"}]], max_new_tokens=1500)
    assert waited(lambda: llm._service.running == 0), caught
    with pytest.raises(InputError, match="list of prompts"):
        llm.complete_batch(conversation)  # type: ignore[arg-type]


def test_threads_may_call_at_the_same_time(llm: LLM) -> None:
    prompts = [f"{number} and" for number in range(6)]
    alone = [llm.chat(one, max_new_tokens=12, **WARM) for one in prompts]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda one: llm.chat(one, max_new_tokens=12, **WARM), prompts)) == alone


# ---- structured output and tools -------------------------------------------------------------------------------------


class Found(BaseModel):
    a: int = Field(ge=1, le=9)


def test_an_answer_keeps_to_a_schema(llm: LLM) -> None:
    answer = llm.chat("Hi", schema=SCHEMA, temperature=9.0, seed=1, max_new_tokens=400)
    assert answer.finish_reason == "stop"
    assert answer.parsed == json.loads(answer)
    assert answer.parsed["a"] in (1, 2)
    found = llm.chat("Hi", schema=Found, temperature=9.0, seed=1, max_new_tokens=400).parsed
    assert isinstance(found, Found)
    stream = llm.stream("Hi", raw=True, schema=Found, max_new_tokens=400)
    assert Found.model_validate_json("".join(stream)) == stream.answer.parsed
    assert [type(one.parsed) for one in llm.complete_batch(["a", "b"], schema=Found, max_new_tokens=400)] == [Found] * 2


def test_an_answer_keeps_to_a_grammar(llm: LLM) -> None:
    assert llm.generate("Hi", grammar='root ::= "no" | "yes"') in ("no", "yes")
    assert llm.chat("Hi", grammar='start: "maybe"') == "maybe"


def test_json_that_was_cut_off_says_so(llm: LLM) -> None:
    with pytest.raises(InputError, match="ended after 3 tokens, before its JSON was complete") as caught:
        _ = llm.chat("Hi", schema=SCHEMA, max_new_tokens=3).parsed
    assert "max_new_tokens" in caught.value.hint
    with pytest.raises(InputError, match="not JSON"):
        _ = Answer("Hello").parsed


def test_a_tool_is_called_and_its_result_is_read(llm: LLM) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    answer = llm.chat(messages, tools=[{"type": "function", "function": WEATHER}], tool_choice="required")
    assert answer.finish_reason == "tool_calls"
    assert answer.tool_calls[0] == ToolCall("weather", {"a": 3}, answer.tool_calls[0].id)
    messages += [answer.message, {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "4"}]
    assert llm.chat(messages, tools=[WEATHER], tool_choice="none", max_new_tokens=4).stats.tokens == 4


def test_without_llguidance_a_schema_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with (
        LLM(folder, threads=1, progress=False) as llm,
        pytest.raises(MissingPackageError, match="llguidance") as caught,
    ):
        llm.chat("Hi", schema=SCHEMA)
    assert caught.value.hint == "pip install 'ipex-lookahead[serve]'"


# ---- errors and the end ----------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": 5}, "unknown option 'max_tokens'", "did you mean max_new_tokens?"),
    ({"temprature": 1}, "unknown option 'temprature'", "did you mean temperature?"),
    ({"temp": 1}, "unknown option 'temp'", "did you mean temperature?"),
    ({"stream": True}, "unknown option 'stream'", "llm.stream yields the text"),
    ({"sampling_params": None}, "unknown option 'sampling_params'", "pass its settings by name"),
    ({"zzz": 1}, "unknown option 'zzz'", "choose one of max_new_tokens, temperature, "),
    ({"temperature": -1}, "temperature is -1; it must be a number from 0 to 100", ""),
    ({"top_p": 0}, "top_p is 0; it must be a number above 0 and at most 1", ""),
    ({"seed": 1.5}, "seed is 1.5; it must be a whole number", ""),
    ({"max_new_tokens": "many"}, "max_new_tokens is 'many'; it must be a whole number of at least 0", ""),
    ({"stop": [""]}, r"stop is \[''\]; it must be a text", ""),
    ({"stop_token_ids": [999]}, "stop_token_ids is 999; it must be token ids from 0 to 259", ""),
    ({"lookahead": 999}, "lookahead is 999; it must be a whole number from 0 to 128", ""),
    ({"schema": "object"}, "schema is 'object'; it must be a JSON schema as a dict, or a pydantic model", ""),
    ({"schema": SCHEMA, "grammar": "x"}, "schema and grammar exclude each other", ""),
    ({"schema": {"type": "colour"}}, "schema: the grammar cannot be compiled", ""),
    ({"grammar": " "}, "grammar is ' '", ""),
    ({"schema": SCHEMA, "min_tokens": 4}, "min_tokens cannot be combined with a schema", ""),
    ({"tools": ["weather"]}, r"tools\[0\] must be .*, got str", ""),
    ({"tools": [print]}, r"tools\[0\] must be", "describe the function and its parameters as a dict"),
    ({"tools": [{"name": "no good"}]}, r"tools\[0\]: its name is 'no good'", ""),
    (
        {"tool_choice": "weather"},
        "'weather' cannot be called; tools has nothing",
        "choose 'auto' or 'none', or add tools",
    ),
    ({"tools": [WEATHER], "tool_choice": "always"}, "tools has weather", "choose one of 'auto', 'none', 'required', "),
]


@pytest.mark.parametrize(("options", "message", "hint"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_options_are_named(llm: LLM, options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        llm.stream("Hi", **options)
    assert caught.value.hint.startswith(hint)


WRONG_MESSAGES: list[tuple[Any, str]] = [
    ([], "chat takes a text, or a list of messages"),
    (["a", "b"], "chat takes a text, or a list of messages"),
    (7, "chat takes a text, or a list of messages"),
    ([{"role": "robot", "content": "x"}], r"messages\[0\]: role is 'robot'"),
    ([{"role": "user", "content": 7}], r"messages\[0\]: content is int; it must be a text or a list of text parts"),
    ([{"role": "user", "content": [{"type": "video"}]}], "content is a list with a part of the type 'video'"),
    (
        [{"role": "user", "content": [{"type": "image_url"}]}],
        r"messages\[0\].content\[0\].image_url must be a data: URL",
    ),
    ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
    ([{"role": "assistant", "content": "x"}], "the last message has the role 'assistant'"),
    ([{"role": "assistant", "tool_calls": [7]}], r"messages\[0\].tool_calls\[0\] must be"),
]


@pytest.mark.parametrize(("messages", "problem"), WRONG_MESSAGES)
def test_wrong_messages_are_named(llm: LLM, messages: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        llm.chat(messages)
    if messages == ["a", "b"]:
        assert caught.value.hint == "complete_batch answers several texts"


def test_what_excludes_each_other_is_refused(llm: LLM) -> None:
    with pytest.raises(InputError, match="both system and a system message"):
        llm.chat([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], system="c")
    with pytest.raises(InputError, match="system needs the chat template"):
        llm.stream("Hi", raw=True, system="a")
    with pytest.raises(InputError, match="is a text, got list"):
        llm.generate([1, 2])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="think=False has no effect: the model's chat template has no enable_thinking"):
        llm.chat("Hi", think=False)


def test_several_texts_without_the_template_are_a_batch(llm: LLM) -> None:
    with pytest.raises(InputError, match="is a text, got list") as caught:
        llm.generate(["a", "b"])  # type: ignore[arg-type]
    assert caught.value.hint == "complete_batch(prompts, raw=True) takes several"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("n_ctx", "did you mean max_context?"),
        ("model_path", "did you mean model?"),
        ("thread", "did you mean threads?"),
        ("tensor_parallel_size", "choose one of "),
    ],
)
def test_unknown_arguments_of_the_model_are_named_before_it_is_loaded(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=f"unknown argument '{name}'") as caught:
        LLM("no/such/folder", **{name: 1})  # type: ignore[arg-type]
    assert caught.value.hint.startswith(hint)


def test_a_setting_of_the_model_that_is_wrong_is_an_error_at_once(folder: Path) -> None:
    with pytest.raises(InputError, match="lookahead is 'guesswork'"):
        LLM(folder, lookahead="guesswork", progress=False)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"low_bit": "int4"}, "unknown low-bit format 'int4'", "for example low_bit='sym_int4'"),
        ({"engine": "fast"}, "engine is 'fast'; it must be 'auto' or one of native, ", ""),
        ({"threads": 0}, "threads is 0; it must be a whole number", ""),
        ({"kv_cache": "fp8"}, "kv_cache is 'fp8'; it must be one of fp16, int8", ""),
        ({"slots": 0}, "slots is 0; it must be a whole number from 1 to 256", ""),
        ({"model": "no-such-model"}, "'no-such-model': no such file, folder", ""),
    ],
)
def test_wrong_arguments_are_named(folder: Path, arguments: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(InputError if "low_bit" not in arguments else LowBitFormatError, match=message) as caught:
        LLM(**{"model": folder, "progress": False, **arguments})
    assert caught.value.hint.startswith(hint)


def test_a_closed_llm_says_so(folder: Path) -> None:
    llm = LLM(folder, threads=1, progress=False)
    assert repr(llm) == f"LLM({str(folder)!r}, engine='native', low_bit='fp32', threads=1, max_context=2048)"
    stream = llm.stream("Hi", max_new_tokens=2000, ignore_eos=True)
    llm.close()
    llm.close()
    with pytest.raises(ServiceError, match="the answer was cut off"):
        _ = stream.answer
    with pytest.raises(ServiceError, match="is closed") as caught:
        llm.chat("Hi")
    assert caught.value.hint == "create a new LLM"
    assert repr(llm) == f"LLM({str(folder)!r}, closed)"


def test_a_stream_keeps_its_llm_and_an_unused_one_ends(folder: Path) -> None:
    stream = LLM(folder, threads=1, progress=False).stream("Hi", max_new_tokens=20, temperature=0)
    worker = stream._owner._service._worker  # type: ignore[attr-defined]
    gc.collect()
    assert len("".join(stream)) > 0
    del stream
    gc.collect()
    assert waited(lambda: not worker.is_alive())


def test_a_draft_model_drafts_and_changes_nothing(llm: LLM, folder: Path) -> None:
    with LLM(folder, threads=1, draft_model=folder, lookahead=4, progress=False) as drafted:
        answer = drafted.chat("Hi", max_new_tokens=16, temperature=0)
        assert answer == llm.chat("Hi", max_new_tokens=16, temperature=0)
        assert answer.stats.strategy == "draft_model"


def test_answers_with_adapters(folder: Path, tmp_path: Path) -> None:
    """Each by its name, at once and one after the other, in chats, texts, streams and batches."""
    shapes = TinyLlama(vocab=SIZE).shapes()
    paths = {name: write_peft(tmp_path / name, llama_changes(shapes, seed=i)) for i, name in enumerate(("a", "b"))}
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0}
    uses: list[dict[str, Any]] = [
        {}, {"adapter": "a"}, {"adapter": "a", "adapter_scale": 0.5}, {"adapter": "b"}, {"adapter": None}
    ]  # fmt: skip
    with LLM(folder, threads=1, slots=4, progress=False, adapters=paths) as llm:
        assert llm.adapters == ["a", "b"]
        alone = [llm.chat("Hello", **options, **use) for use in uses]
        assert len(set(alone)) == 4
        assert alone[0] == alone[4] == llm.chat("Hello", adapter="a", adapter_scale=0, **options)
        assert alone[0] == LLM(folder, threads=1, progress=False).chat("Hello", **options)
        streams = [llm.stream("Hello", lookahead=3, **options, **use) for use in uses]
        assert ["".join(stream) for stream in streams] == alone
        assert llm.complete_batch(["Hello", "Hi"], adapter="b", **options)[0] == alone[3]
        assert llm.generate("Hello", adapter="a", **options) != llm.generate("Hello", **options)
        llm.load_adapter(paths["b"], "c")
        assert llm.chat("Hello", adapter="c", **options) == alone[3]
        llm.unload_adapter("b")
        with pytest.raises(InputError, match="there is no adapter 'b'; loaded adapters: a, c"):
            llm.chat("Hello", adapter="b")
        with pytest.raises(InputError, match="scale"):
            llm.chat("Hello", adapter="a", adapter_scale="big")  # type: ignore[arg-type]
    with pytest.raises(ServiceError, match="is closed"):
        llm.load_adapter(paths["a"], "a")
    with pytest.raises(InputError, match="no such adapter"):
        LLM(folder, progress=False, adapters={"a": tmp_path / "nothing"})
    with pytest.raises(InputError, match="adapters is .* it must be a mapping of names to paths"):
        LLM(folder, progress=False, adapters=[tmp_path / "a"])  # type: ignore[arg-type]
