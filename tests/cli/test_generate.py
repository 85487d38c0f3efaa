"""``generate``: where the prompt comes from, what the model is asked, what is printed where."""

from __future__ import annotations

import io
import json
import sys

import pytest

from ipex_lookahead.cli.main import run
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.draft import Draft


@pytest.fixture
def stdin(monkeypatch):
    def put(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))

    return put


def prompt_text(model, index=-1) -> str:
    return model.tokenizer.decode(model.asked[index][0])


def test_answer_on_stdout_statistics_on_stderr(scripted, capsys):
    model = scripted("a fine day")
    assert run(["generate", "how is it?"]) == 0
    out, err = capsys.readouterr()
    assert out == "a fine day\n"
    assert len(err.splitlines()) == 1
    for fact in ("11 tokens", "10.0 tok/s", "45% drafted", "prompt"):
        assert fact in err
    assert prompt_text(model) == "<|im_start|>user\nhow is it?<|im_end|>\n<|im_start|>assistant\n"


def test_quiet_is_the_text_alone(scripted, capsys):
    scripted("a fine day")
    assert run(["generate", "-q", "how is it?"]) == 0
    assert capsys.readouterr() == ("a fine day\n", "")


def test_system(scripted):
    model = scripted()
    assert run(["generate", "--system", "be brief", "hi"]) == 0
    assert prompt_text(model).startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi")


def test_settings_reach_the_model(scripted):
    model = scripted()
    arguments = "--lookahead 7 -n 9 --temperature 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 --seed 3 --stop A --stop B"
    penalties = "--repetition-penalty 1.1 --presence-penalty 0.5 --frequency-penalty -0.5"
    assert run(["generate", "hi", *arguments.split(), *penalties.split()]) == 0
    assert model.asked[0][1] == {
        "max_new_tokens": 9,
        "lookahead": 7,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "stop": ("A", "B"),
        "ignore_eos": False,
        "stop_loops": False,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
    }


def test_sampling_is_left_to_the_model(scripted, capsys):
    model = scripted()
    assert run(["generate", "hi"]) == 0
    assert model.asked[0][1] == {"max_new_tokens": 256, "lookahead": 3, "ignore_eos": False, "stop_loops": False}
    assert "seed" not in capsys.readouterr().err, "nothing is recommended for it"
    model.generation_defaults = {"do_sample": True, "temperature": 0.2}
    assert run(["generate", "hi", "--seed", "5"]) == 0
    assert "temperature 0.2, seed 5" in capsys.readouterr().err


def test_settings_that_a_greedy_model_ignores(scripted, capsys):
    model = scripted()
    assert run(["generate", "hi", "--top-p", "0.9"]) == 2
    assert "--top-p has no effect at temperature 0, the default of this model" in capsys.readouterr().err
    assert model.asked == []


LOOP = "and on " * 50


def test_a_loop_is_told_and_its_speed_is_not(scripted, capsys):
    scripted(LOOP)
    assert run(["generate", "hi", "-n", "100"]) == 0
    told = capsys.readouterr().err
    assert "stopped at the token limit (--max-new-tokens 100)\n" in told
    assert "the answer repeats itself: try --temperature 0.7 or a larger model\n" in told
    assert "100 tokens · prompt" in told, "no speed of decoding between them"
    assert run(["generate", "hi", "-n", "100", "--temperature", "0.8"]) == 0
    assert "try --repetition-penalty 1.1 or a larger model" in capsys.readouterr().err
    assert run(["generate", "hi", "-n", "100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["repeats_itself"] is True


def test_a_limit_without_a_loop(scripted, capsys):
    scripted("a fine day")
    assert run(["generate", "hi", "-n", "4"]) == 0
    told = capsys.readouterr().err
    assert "stopped at the token limit (--max-new-tokens 4)" in told
    assert "repeats" not in told
    assert "tok/s · " in told


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "empty"), (b" \n", "empty"), (b"ab\xff", "not UTF-8 text (byte 2)")]
)
def test_bad_standard_input(content, says, scripted, stdin, capsys):
    scripted()
    stdin(content)
    assert run(["generate"]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("limit", "reason", "text"), [("4", "length", "a fi"), ("100", "stop", "a fine day")])
def test_json(limit, reason, text, scripted, capsys):
    model = scripted("a fine day")
    assert run(["generate", "--json", "-n", limit, "hi"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["text"] == text
    assert found["finish_reason"] == reason
    assert found["tokens"] == len(found["token_ids"])
    assert model.tokenizer.decode(found["token_ids"], skip_special_tokens=True) == text
    assert found["prompt_tokens"] == len(model.asked[0][0])
    assert found["isa"] == "scalar"
    assert found["peak_memory_bytes"] > 10_000_000
    assert found["seed"] is None


def test_interrupt_leaves_the_text_and_a_line_end(scripted, capsys):
    scripted("one two three").interrupt_after = 8
    assert run(["generate", "hi"]) == 130
    out, err = capsys.readouterr()
    assert out == "one two \n"
    assert err.strip() == "interrupted"


def test_control_characters_do_not_reach_a_terminal(monkeypatch, capsys):
    from ipex_lookahead.cli import stream

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    stream.Painter().write("a\x1b[2Jb\x9b31m\n\tc\x07")
    assert capsys.readouterr().out == "a[2Jb31m\n\tc"


# ---- lookahead -------------------------------------------------------------------------------------------------------


def asked(model) -> dict:
    return {name: value for name, value in model.asked[-1][1].items() if name in ("lookahead", "adaptive")}


def test_lookahead_as_given(scripted):
    model = scripted()
    for arguments, expected in (
        ([], {"lookahead": 3}),
        (["--lookahead", "auto"], {"lookahead": "auto"}),
        (["--lookahead", "5", "--no-adaptive"], {"lookahead": 5, "adaptive": False}),
        (["--strategy", "prompt_lookup"], {"lookahead": LookaheadConfig("prompt_lookup", 3)}),
        (["--strategy", "suffix", "--lookahead", "9"], {"lookahead": LookaheadConfig("suffix", 9)}),
        (["--strategy", "suffix", "--lookahead", "auto"], {"lookahead": LookaheadConfig("suffix", 32)}),
        (["--strategy", "suffix", "--store", "s"], {"lookahead": LookaheadConfig("suffix", 3, store="s")}),
        (
            "--strategy jacobi --lookahead auto --window 3 --ngram 4 --guesses 2".split(),
            {"lookahead": LookaheadConfig("jacobi", 15, window=3, ngram=4, guesses=2)},
        ),
    ):
        assert run(["generate", "-q", "hi", *arguments]) == 0
        assert asked(model) == expected


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--lookahead", "often"], "must be 0 to"),
        (["--window", "3"], "--window is for --strategy jacobi"),
        (["--store", "s"], "--store is for"),
        (["--store", "s", "--lookahead", "0", "--strategy", "auto"], "--store is for"),
        (["--show-accepted", "--json"], "--show-accepted and JSON output exclude"),
    ],
)
def test_lookahead_options_without_effect(arguments, says, scripted, capsys):
    scripted()
    assert run(["generate", "hi", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_verbose_tells_sources_positions_and_times(scripted, capsys):
    model = scripted("a fine day")
    generate = model.generate

    def with_drafts(*args, **settings):
        out = generate(*args, **settings)
        model.stats.strategy = "prompt_lookup"
        model.stats.verified(Draft.chain([1, 2]), [0])
        model.stats.fold()
        model.stats.engine_seconds, model.stats.proposer_seconds = 0.8, 0.1
        return out

    model.generate = with_drafts
    assert run(["generate", "hi", "--verbose"]) == 0
    rows = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert ["prompt_lookup", "2", "1", "50%"] in rows
    assert ["position", "2", "1", "0", "0%"] in rows
    assert ["engine", "160.000", "80.0%"] in rows
    assert run(["generate", "hi", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accepted_by_source"] == {"prompt_lookup": 1}
    assert found["drafted_by_position"] == [1, 1]
    assert found["engine_ms_per_step"] == pytest.approx(160)


@pytest.mark.parametrize(
    ("config", "said"),
    [({}, "continues prompts as plain text"), ({"model_type": "llama", "vocab_size": 32000}, "Llama 2's format")],
)
def test_a_model_without_a_chat_template_says_so(scripted, config, said, capsys):
    model = scripted()
    model.tokenizer.chat_template, model.config = None, config
    for command in (["generate", "hi"], ["run", "default", "hi"]):
        assert run(command) == 0
        err = capsys.readouterr().err
        assert "note: the model has no chat template" in err
        assert said in err
    assert run(["generate", "hi", "-q"]) == 0
    assert "note:" not in capsys.readouterr().err
    assert run(["generate", "hi", "--raw"]) == 0
    assert "note:" not in capsys.readouterr().err


def test_details_are_in_the_line_of_statistics_on_request(scripted, capsys):
    scripted("a fine day")
    assert run(["generate", "hi", "-v"]) == 0
    err = capsys.readouterr().err
    for fact in ("2.00 tokens/step", "% drafted", "tok/s", "peak"):
        assert fact in err


def test_show_accepted_brackets_what_was_free(scripted, capsys, monkeypatch):
    scripted("a fine day")
    origins = [None, None, "suffix", "suffix", "recycling"]
    monkeypatch.setattr(GenerationStats, "origins", lambda stats: [*origins, *[None] * (stats.tokens - 5)])
    assert run(["generate", "hi", "--show-accepted"]) == 0
    out, err = capsys.readouterr()
    assert out == "a [fi][n]e day\n"
    assert "accepted from drafts of: suffix recycling" in err


def test_a_character_of_several_tokens_is_whole():
    from ipex_lookahead.cli.stream import by_origin
    from ipex_lookahead.tokenization.detokenizer import Detokenizer
    from tests.support.byte_tokenizer import byte_tokenizer

    tokenizer = byte_tokenizer()
    text = "aü€b"
    ids = list(text.encode())
    for origins in ([None, "x"] * 4)[: len(ids)], ["x", *[None] * (len(ids) - 1)]:
        parts = list(by_origin(Detokenizer(tokenizer), ids, origins))
        assert "".join(part for part, _ in parts) == text
        assert all("\ufffd" not in part for part, _ in parts)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_where_the_model_runs_is_asked_for_as_given(command, monkeypatch, capsys):
    from ipex_lookahead.errors import EngineError
    from ipex_lookahead.runtime import loading as auto

    asked = []

    def load(name, **settings):
        asked.append({key: settings[key] for key in ("engine", "device", "deterministic")})
        raise EngineError("there is no such device", hint="buy one")

    monkeypatch.setattr(auto, "load_text_model", load)
    words = ["hi"] if command == "generate" else []
    assert run([command, "--engine", "torch", "--device", "xpu", "--deterministic", *words]) == 1
    assert "no such device" in capsys.readouterr().err
    assert run([command, *words]) == 1
    assert asked == [
        {"engine": "torch", "device": "xpu", "deterministic": True},
        {"engine": "auto", "device": None, "deterministic": None},
    ]
    assert run([command, "--engine", "gpu", *words]) == 2


def test_control_tokens_in_a_prompt_are_text_unless_asked_for(tmp_path):
    from ipex_lookahead.cli.generate import Text
    from ipex_lookahead.cli.loading import load_text
    from tests.support.chat_tokenizer import write_chat_llama

    folder = write_chat_llama(tmp_path / "tiny")
    turns = []
    for flag in (False, True):
        loaded = load_text(str(folder), threads=1, progress=False, special_tokens_in_content=flag)
        for raw in (False, True):
            ids = Text(raw=raw).encode(loaded, "a<|im_end|>b")
            turns.append(ids.count(loaded.tokenizer.eos_token_id))
    assert turns == [1, 1, 2, 1]  # the template's own, what --raw hands on, both
