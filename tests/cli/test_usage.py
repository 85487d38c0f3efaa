"""Mistakes of new users: the error names the command line that was meant."""

from __future__ import annotations

import errno
import socket

import pytest

from ipex_lookahead.cli.commands import RARE, double_quoted
from ipex_lookahead.cli.main import COMMANDS, cli, run
from ipex_lookahead.cli.names import NO_CONTEXT_OPTION, THEIR_COMMANDS, THEIR_OPTIONS
from ipex_lookahead.cli.types import LowBit, LowBits, Strategy, Tokens
from ipex_lookahead.errors import InputError


def hint_of(capsys, *arguments: str) -> str:
    assert run(arguments) == 2
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith("error: ")
    return hint.removeprefix("hint: ")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["generate", "Why", "is", "the", "sky"], 'quote the prompt: ipex-lookahead generate "Why is the sky"'),
        (["generate", "-n", "5", "say", '"hi"'], 'quote the prompt: ipex-lookahead generate "say \\"hi\\""'),
        (["run", "default", "Why", "me"], 'quote the prompt: ipex-lookahead run default "Why me"'),
        (["run", "Why is the sky blue?"], 'ipex-lookahead run default "Why is the sky blue?"'),
        (["chat", "hello"], 'ipex-lookahead generate "hello"'),
        (["chat", "qwen3-4b"], "ipex-lookahead run qwen3-4b"),
        (["chat", "-m", "qwen3-4b", "hello"], 'ipex-lookahead generate --model qwen3-4b "hello"'),
        (["generate", "default", "Why me?"], 'ipex-lookahead generate --model default "Why me?"'),
        (["generate", "--think", "off", "hi"], "write --no-think alone"),
        (["serve", "qwen3-4b"], "ipex-lookahead serve --model qwen3-4b"),
        (["list", "models"], "ipex-lookahead list --help"),
    ],
)
def test_extra_arguments(arguments, meant, capsys):
    assert hint_of(capsys, *arguments) == meant


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["generate", "--temprature", "0", "hi"], "did you mean --temperature?"),
        (["generate", "--temp=0.5", "hi"], "did you mean --temperature?"),
        (["generate", "-t", "2", "hi"], "did you mean --threads?"),
        (["generate", "-sys", "Be brief.", "hi"], "did you mean --system?"),
        (["generate", "-c", "2048", "hi"], NO_CONTEXT_OPTION),
        (["serve", "--ctx-size", "2048"], "did you mean --max-context?"),
        (["serve", "--parallel", "4"], "did you mean --slots?"),
        (["run", "default", "--zzz"], "ipex-lookahead run --help"),
    ],
)
def test_unknown_options(arguments, meant, capsys):
    assert hint_of(capsys, *arguments) == meant


def test_options_of_other_programs_are_hints_only():
    commands = [cli.get_command(None, name) for name in ("generate", "chat", "serve")]  # type: ignore[arg-type]
    flags = {flag for command in commands if command is not None for param in command.params for flag in param.opts}
    assert set(THEIR_OPTIONS.values()) <= flags
    assert not THEIR_OPTIONS.keys() & flags
    assert set(THEIR_COMMANDS.values()) <= COMMANDS.keys()
    assert not THEIR_COMMANDS.keys() & COMMANDS.keys()


@pytest.mark.parametrize(("flag", "kind"), [("--temperature", "number"), ("--threads", "whole number")])
def test_a_word_for_a_number(flag, kind, capsys):
    assert run(["generate", flag, "hot", "hi"]) == 2
    assert f"Invalid value for '{flag}': 'hot' is not a valid {kind}.\n" in capsys.readouterr().err


def test_a_quoted_text_is_one_word_of_a_shell():
    assert double_quoted('a "b" $c `d` \\e') == '"a \\"b\\" \\$c \\`d\\` \\\\e"'


@pytest.mark.parametrize("flag", ["-p", "--prompt"])
def test_the_prompt_may_be_an_option(flag, scripted, capsys):
    model = scripted("yes")
    assert run(["generate", flag, "hi there"]) == 0
    assert run(["run", "default", flag, "hi there"]) == 0
    assert [model.tokenizer.decode(ids).count("hi there") for ids, _ in model.asked] == [1, 1]
    for command in (["generate", "a"], ["run", "default", "a"]):
        assert run([*command, flag, "b"]) == 2
        assert "PROMPT and --prompt are both given" in capsys.readouterr().err


def test_run_alone_lists_models(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("ipex_lookahead.cli.recommended.bandwidth", lambda: None)
    assert run(["run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Recommended models:\n")
    assert "try it: ipex-lookahead run " in out


def test_help_is_short_and_help_all_complete(capsys):
    assert run(["generate", "--help"]) == 0
    short = capsys.readouterr().out
    assert run(["generate", "--help-all"]) == 0
    everything = capsys.readouterr().out
    options = [param for param in cli.get_command(None, "generate").params if param.param_type_name == "option"]  # type: ignore[arg-type]
    flags = {option.name: f"{max(option.opts, key=len)} " for option in options}
    shown = {
        name for name, flag in flags.items() if f"  {flag}" in short or f", {flag}" in short or f"{flag}/" in short
    }
    assert shown == flags.keys() - RARE
    assert len(shown) == 18
    assert all(flag in everything for flag in flags.values())
    assert "--help-all" in short
    assert run(["pull", "--help"]) == 0
    assert "--help-all" not in capsys.readouterr().out


def test_names_in_any_case():
    assert LowBit().convert("SYM_INT4", None, None) == "sym_int4"
    assert LowBit().convert("Q4_K_M", None, None) == "q4_k_m"
    assert LowBit().convert("Mine.YAML", None, None) == "Mine.YAML"
    assert LowBits().convert("FP16,Q4_0", None, None) == ("fp16", "q4_0")
    assert Strategy().convert("Suffix", None, None) == "suffix"
    assert Tokens().convert("AUTO", None, None) == "auto"


def test_a_port_in_use_is_named_with_another_one():
    run_module = pytest.importorskip("ipex_lookahead.serving.run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError) as caught:
            run_module.bind("127.0.0.1", port)
    assert str(caught.value) == f"port {port} on 127.0.0.1 is already in use"
    assert caught.value.hint == f"use --port {port + 1 if port < 65535 else port - 1}, or --port 0 for any free port"


def test_an_address_of_another_machine_is_not_a_port_in_use(monkeypatch):
    run_module = pytest.importorskip("ipex_lookahead.serving.run")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(run_module.socket, "create_server", refuse)
    with pytest.raises(InputError, match=r"cannot listen on 192\.0\.2\.1 port 80: Cannot assign requested address"):
        run_module.bind("192.0.2.1", 80)
