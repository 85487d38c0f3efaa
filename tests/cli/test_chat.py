"""``chat`` line by line: turns, slash commands, interrupts, what does not fit, what is kept."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path

import pytest

from ipex_lookahead.cli import messages
from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.slash import SLASHES
from ipex_lookahead.errors import ContextLengthError, arg
from ipex_lookahead.runtime.recommended import SEED


@pytest.fixture
def talk(monkeypatch, capsys):
    """``talk("hi", "/bye")`` -> (answers on stdout, asides on stderr)."""

    def run_lines(*lines: str, arguments: tuple[str, ...] = ()) -> tuple[str, str]:
        content = "".join(line + "\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        assert run(["chat", *arguments]) == 0
        return capsys.readouterr()

    return run_lines


def asked(model, index=-1) -> str:
    return model.tokenizer.decode(model.asked[index][0])


def test_turns_build_on_each_other(scripted, talk):
    model = scripted("one", "two")
    out, err = talk("first", "second")
    assert out == "one\ntwo\n"
    assert err.count("tok/s") == 2, "a line of statistics for each answer"
    assert asked(model) == (
        "<|im_start|>user\nfirst<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
        "<|im_start|>user\nsecond<|im_end|>\n<|im_start|>assistant\n"
    )
    assert model.asked[1][0][: len(model.asked[0][0])] == model.asked[0][0]


def test_several_lines_between_quotes(scripted, talk):
    model = scripted("one")
    talk('"""first', "second", '"""')
    assert "user\nfirst\nsecond<|im_end|>" in asked(model)
    talk('"""all on one line"""', '"""and', "an end of input")
    assert "user\nand\nan end of input<|im_end|>" in asked(model)


def test_ctrl_c_is_a_question_first(scripted, talk):
    """An exception could come between any two lines of the loop, and what is kept would be of no use."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background has it ignored
    try:
        model = scripted("one two three", "next")
        model.signal_after = 8
        out, err = talk("first", "second")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert out.startswith("one two \n")
    assert "stopped; the partial answer is kept" in err
    assert "assistant\none two <|im_end|>\n<|im_start|>user\nsecond" in asked(model)


def test_interrupt_before_the_first_token_keeps_nothing(scripted, talk):
    model = scripted("one", "next")
    model.interrupt_after = 0
    talk("first", "second")
    assert "first" not in asked(model)


def test_overflow_drops_the_oldest_and_says_so(scripted, talk):
    model = scripted("a" * 30, context=150)
    _, err = talk("b" * 30, "c" * 30, arguments=("--max-new-tokens", "40"))
    assert "dropped the oldest turn (" in err
    assert "the context has 150 tokens, of which 40 are for the answer" in err
    assert "b" * 30 not in asked(model)
    assert "c" * 30 in asked(model)
    assert len(model.asked[-1][0]) + model.asked[-1][1]["max_new_tokens"] <= 150


def test_message_longer_than_the_context(scripted, talk):
    model = scripted("fine", context=100)
    out, err = talk("x" * 200, "hi")
    assert "the message exceeds the model's context of 100 tokens" in err
    assert out == "fine\n"
    assert "xxx" not in asked(model), "it is not kept"


def test_an_error_ends_the_answer_not_the_chat(scripted, talk, monkeypatch):
    model = scripted("fine")
    answer = model.generate

    def fail(*arguments, **settings):
        model.generate = answer
        raise ContextLengthError("too long", hint="shorten it")

    model.generate = fail
    out, err = talk("first", "second")
    assert "error: too long\nhint: shorten it" in err
    assert out.endswith("fine\n")
    assert "first" not in asked(model)


def test_help_lists_every_command(scripted, talk):
    scripted()
    _, err = talk("/help")
    for name, command in SLASHES.items():
        assert f"/{name}" in err
        assert command.help in " ".join(err.split())


def test_unknown_slash_is_not_sent_to_the_model(scripted, talk):
    model = scripted()
    _, err = talk("/regin", "/xyzzy", "/")
    assert "did you mean /regen?" in err
    assert err.count("/help lists commands") == 2
    assert model.asked == []


@pytest.mark.parametrize("word", ["/bye", "/exit", "/quit", "exit", "quit", " Exit "])
def test_words_that_leave(word, scripted, talk):
    model = scripted()
    talk("exit now, please", word, "hello")
    assert len(model.asked) == 1, "only the word alone ends the chat"


def test_retry(scripted, talk):
    model = scripted("one", "two", "three")
    arguments = ("--temperature", "0.7", "--seed", "5")
    _, err = talk("/retry", "first", "/retry", "/retry", "second", arguments=arguments)
    assert "error: there is no answer to retry" in err
    assert [settings["seed"] for _, settings in model.asked] == [5, 6, 7, 7]
    assert "seed: 6\n" in err
    assert asked(model, 0) == asked(model, 1) == asked(model, 2)
    assert "assistant\nthree<" in asked(model), "the last answer is the one that counts"


def test_retry_of_recommended_sampling_takes_the_next_seed(scripted, talk):
    model = scripted("one", "two")
    model.generation_defaults = {"do_sample": True, "temperature": 0.2}
    _, err = talk("first", "/retry", "/retry")
    assert [settings.get("seed") for _, settings in model.asked] == [None, SEED + 1, SEED + 2]
    assert f"temperature 0.2, seed {SEED + 2}" in err


def test_the_models_own_sampling_is_shown_and_set_again(scripted, talk):
    model = scripted()
    model.generation_defaults = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
    _, err = talk("/set", "/set temperature=0.5", "/set temperature=none", "hi")
    own = f"temperature 0.2, top_k 50, top_p 0.9, seed {SEED}; from its makers\n"
    assert err.count(own) == 2
    assert "temperature=0.5" in err
    assert "temperature" not in model.asked[0][1]


def test_a_loop_is_told_in_the_words_of_chat(scripted, talk):
    scripted("and on " * 50)
    _, err = talk("/set max_new_tokens=100", "hi")
    assert "stopped at the token limit (/set max_new_tokens=100)\n" in err
    assert "the answer repeats itself: try /set temperature=0.7 or a larger model\n" in err
    assert "100 tokens · prompt" in err


def test_loops_are_stopped_unless_turned_off(scripted, talk):
    model = scripted("one")
    talk("first")
    talk("second", arguments=("--no-stop-loops",))
    assert [given.get("stop_loops") for _, given in model.asked] == [True, False]


def test_retry_at_temperature_0_says_that_nothing_changes(scripted, talk):
    model = scripted("one")
    _, err = talk("first", "/retry")
    assert "at temperature 0 the answer stays the same" in err
    assert len(model.asked) == 2


def test_a_retry_that_fails_keeps_the_answer(scripted, talk):
    model = scripted("one", "two", "three")
    answer, calls = model.generate, []

    def generate(*arguments, **settings):
        calls.append(1)
        if len(calls) == 2:
            raise ContextLengthError("too long", hint=f"shorten it or {arg('max_new_tokens')}")
        return answer(*arguments, **settings)

    model.generate = generate
    _, err = talk("first", "/retry", "second")
    assert "hint: shorten it or --max-new-tokens" in err, "in the words of the command"
    assert "user\nfirst<|im_end|>\n<|im_start|>assistant\none<" in asked(model)


def test_stats_after_a_stopped_answer(scripted, talk):
    model = scripted("one two three")
    model.interrupt_after = 4
    _, err = talk("first", "/stats")
    assert "stopped; the partial answer is kept" in err
    assert "4 tokens · " in err
    assert "in 1 turn" in err


def test_regen_undo_clear(scripted, talk):
    model = scripted("one", "two", "three", "four", "five")
    _, err = talk("/regen", "/undo", "first", "/regen", "second", "/undo", "third", "/clear", "fourth")
    assert "error: there is no answer to retry" in err
    assert "error: there is nothing to undo" in err
    assert asked(model, 0) == asked(model, 1), "the same question again"
    assert "assistant\ntwo<" in asked(model, 2)
    assert "second" not in asked(model, 3)
    assert asked(model, 4) == "<|im_start|>user\nfourth<|im_end|>\n<|im_start|>assistant\n"
    assert "removed: second" in err


def test_accepted_is_shown_and_set(scripted, talk):
    scripted("one")
    _, err = talk("/accepted", "/accepted on", "/accepted", "/accepted maybe")
    assert err.splitlines() == [
        "accepted: off",
        "accepted: on",
        "accepted: on",
        "error: /accepted maybe: must be on or off",
    ]


def test_system_is_shown_and_set(scripted, talk):
    model = scripted()
    _, err = talk("/system", "/system be brief", "/system none", "/system be brief", "hi")
    assert err.count("system: (none)") == 2
    assert "system: be brief" in err
    assert asked(model).startswith("<|im_start|>system\nbe brief")


def test_lookahead_and_settings(scripted, talk):
    model = scripted()
    talk(
        "/lookahead 7",
        "/set temperature 0.5",
        "/set top-k = 4",
        "/set parameter max_new_tokens 9",
        "hi",
        "/set top_k=none",
        "hi",
    )
    first, second = (settings for _, settings in model.asked)
    assert (first["lookahead"], first["temperature"], first["top_k"], first["max_new_tokens"]) == (7, 0.5, 4, 9)
    assert "top_k" not in second


@pytest.mark.parametrize(
    "line",
    [
        "/lookahead x",
        "/lookahead -1",
        "/lookahead 129",
        "/set x=1",
        "/set temperature",
        "/set temperature=hot",
        "/set top_p=2",
    ]
    + ["/set max_new_tokens=0", "/set temperature=nan", "/set seed=-1", "/save", "/load", "/load /no/such", "/stats"],
)
def test_bad_slash_arguments(line, scripted, talk):
    model = scripted()
    out, err = talk(line, "hi")
    assert "error: " in err
    assert out == "a fine day\n", "the chat goes on"
    assert model.asked[0][1]["lookahead"] == 3
    assert "temperature" not in model.asked[0][1]


def test_save_and_load(scripted, talk, tmp_path):
    file = tmp_path / "talk.json"
    model = scripted("one", "two")
    talk("/system be kind", "first", f"/save {file}")
    found = json.loads(file.read_text())
    turns = [{"user": "first", "assistant": "one", "token_ids": model.tokenizer.encode("one")}]
    assert (found["system"], found["turns"], found["model"]) == ("be kind", turns, "default")
    _, err = talk(f"/load {file}", "second")
    assert "loaded 1 turn" in err
    assert "be kind" in asked(model)
    assert "first<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n<|im_start|>user\nsecond" in asked(model)


def test_a_save_that_fails_leaves_nothing(scripted, talk, tmp_path, monkeypatch):
    scripted("one")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    _, err = talk("first", f"/save {tmp_path}/talk.json")
    assert f"error: cannot write {tmp_path}/talk.json: No space left on device" in err
    assert list(tmp_path.iterdir()) == []


def test_a_save_to_no_folder_names_the_path_that_was_typed(scripted, talk, tmp_path):
    scripted("one")
    _, err = talk("first", f"/save {tmp_path}/none/talk.json")
    assert f"error: cannot write {tmp_path}/none/talk.json: No such file or directory" in err
    assert "saving-" not in err


def test_save_never_replaces_a_file(scripted, talk, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("mine")
    scripted()
    _, err = talk("hi", f"/save {file}")
    assert "exists; choose another name" in err
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"system": 1, "turns": []}', '{"system": null, "turns": [{"user": 1}]}', "[" * 100000]
    + [
        '{"system": null, "turns": [{"user": "a", "assistant": "\\ud800"}]}',
        '{"system": "a", "system": "b", "turns": []}',
    ],
)
def test_load_refuses_other_files(content, scripted, talk, tmp_path):
    file = tmp_path / "talk.json"
    file.write_text(content)
    model = scripted()
    _, err = talk("first", f"/load {file}", "second")
    assert "is not a conversation saved by /save" in err
    assert "first" in asked(model), "the conversation is as it was"


def test_history_file_place(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert str(messages.history_file()) == "/state/ipex-lookahead/chat_history"
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(messages.history_file()) == "/home/someone/.local/state/ipex-lookahead/chat_history"


def test_llama2_turns_without_a_template(tokenizer):
    from ipex_lookahead.cli.conversation import ChatEncoder

    tokenizer.chat_template = None
    encode = ChatEncoder(tokenizer, {"model_type": "llama", "vocab_size": 32000})
    messages = [{"role": "system", "content": "S"}]
    messages += [{"role": r, "content": c} for r, c in (("user", "q"), ("assistant", "a"), ("user", "r"))]
    assert tokenizer.decode(encode(messages)) == "[INST] <<SYS>>\nS\n<</SYS>>\n\nq [/INST]a<|im_end|>[INST] r [/INST]"
    plain = ChatEncoder(tokenizer, {"model_type": "llama", "vocab_size": 300})
    assert tokenizer.decode(plain(messages)) == "S\n\nq\na\nr"


def test_what_is_no_text(scripted, monkeypatch, capsys):
    """In the locale "C" Python lets any byte through as a lone surrogate, which no tokenizer takes."""
    scripted("one")
    stdin = io.TextIOWrapper(io.BytesIO(b"hi\n\xff\n"), encoding="ascii", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run(["chat"]) == 1
    out, err = capsys.readouterr()
    assert out == "one\n"
    assert "error: standard input is not UTF-8 text (byte 0 of a line)" in err


def test_a_closed_standard_input_is_a_sentence(scripted, monkeypatch, capsys):
    scripted()
    monkeypatch.setattr(sys, "stdin", None)
    for command in (["chat"], ["rm", "default"]):
        assert run(command) in (1, 2)
        assert "AttributeError" not in capsys.readouterr().err
    assert run(["chat"]) == 2
    assert "standard input is closed" in capsys.readouterr().err
