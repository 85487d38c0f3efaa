"""The group: help, errors as sentences, exit codes, the traceback only on demand, environment variables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipex_lookahead.cli import loading
from ipex_lookahead.cli.main import COMMANDS, cli, run
from ipex_lookahead.errors import InputError, ModelFormatError

ROOT = Path(__file__).resolve().parents[2]


def leaf_commands(command=cli, path=()):
    import click

    context = click.Context(command)
    if not isinstance(command, click.Group):
        return [path]
    return [
        leaf
        for n in command.list_commands(context)
        for leaf in leaf_commands(command.get_command(context, n), (*path, n))
    ]


def raising(error):
    def load(*arguments, **options):
        raise error

    return load


@pytest.mark.parametrize("command", [(), *leaf_commands()], ids=" ".join)
def test_help_names_every_options_variable(command, capsys, monkeypatch):
    import click

    monkeypatch.setenv("COLUMNS", "200")
    assert run([*command, "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    found = cli
    for name in command:
        found = found.get_command(click.Context(found), name)
    prefix = "_".join(["IPEX_LOOKAHEAD", *command]).upper().replace("-", "_")
    for option in (p for p in found.params if isinstance(p, click.Option) and p.expose_value):
        assert f"{prefix}_{option.name.upper()}" in said, option.name


def test_help_is_quick_because_nothing_heavy_is_imported():
    code = (
        "import sys; from ipex_lookahead.cli.main import run; run(['--help']); run(['generate', '--help']);"
        "print({'torch', 'transformers', 'numpy', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert said.stderr.strip() == "set()"
    assert "generate" in said.stdout


def test_commands_listed_are_those_there_are():
    assert {c[0] for c in leaf_commands()} == set(COMMANDS)


def test_error_and_hint(monkeypatch, capsys):
    monkeypatch.setattr(loading, "load", raising(InputError("it is wrong", hint="make it right")))
    assert run(["generate", "hello"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: it is wrong\nhint: make it right\n"


def test_format_error_names_the_place(monkeypatch, capsys):
    monkeypatch.setattr(loading, "load", raising(ModelFormatError("a.gguf", "magic", 0, "is wrong")))
    assert run(["generate", "hello"]) == 1
    assert capsys.readouterr().err == "error: a.gguf: magic at byte 0: is wrong\n"


@pytest.mark.parametrize(
    "error", [RuntimeError("odd"), ValueError(), MemoryError(), OSError(28, "No space left", "/x")]
)
def test_other_errors_are_sentences_too(error, monkeypatch, capsys):
    monkeypatch.setattr(loading, "load", raising(error))
    assert run(["generate", "hello"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [["--debug", "generate", "x"], ["generate", "x", "--debug"]])
def test_debug_shows_the_traceback(arguments, monkeypatch, capsys):
    monkeypatch.setattr(loading, "load", raising(InputError("it is wrong")))
    assert run(arguments) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: it is wrong\n")


def test_debug_by_environment(monkeypatch, capsys):
    monkeypatch.setenv("IPEX_LOOKAHEAD_DEBUG", "1")
    monkeypatch.setattr(loading, "load", raising(InputError("it is wrong")))
    assert run(["generate", "x"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_after_two_dashes_debug_is_a_prompt(scripted):
    model = scripted("yes")
    assert run(["generate", "--raw", "--", "--debug"]) == 0
    assert model.tokenizer.decode(model.asked[0][0]) == "--debug"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "No such command"),
        (["generate", "x", "--lookahead", "-1"], "lookahead"),
        (["generate", "x", "--lookahead", "129"], "lookahead"),
        (["generate", "x", "--max-new-tokens", "-1"], "max-new-tokens"),
        (["generate", "x", "--threads", "0"], "threads"),
        (["generate", "x", "--top-p", "0.9"], "no effect at temperature 0"),
        (["generate", "x", "--seed", "1"], "no effect at temperature 0"),
        (["generate", "x", "--raw", "--system", "s"], "--raw leaves out"),
        (["chat", "--top-k", "3"], "no effect at temperature 0"),
        (["bench", "decode", "--limit", "0"], "limit"),
        (["quantize", "default"], "OUT"),
        (["quantize", "a", "b", "--group-size", "48"], "group-size"),
        (["completion", "tcsh"], "tcsh"),
    ],
)
def test_wrong_usage(arguments, says, capsys):
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert says in err
    assert err.splitlines()[-1].startswith("hint: ipex-lookahead")


def test_options_come_from_the_environment_and_the_command_line_wins(scripted, monkeypatch):
    model = scripted("yes")
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_MAX_NEW_TOKENS", "2")
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_LOOKAHEAD", "7")
    assert run(["generate", "hi", "--lookahead", "5"]) == 0
    assert model.asked[0][1]["max_new_tokens"] == 2
    assert model.asked[0][1]["lookahead"] == 5


def test_interrupt_is_130_and_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(loading, "load", raising(KeyboardInterrupt()))
    assert run(["generate", "hello"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_real_interrupt():
    code = (
        "import signal, time; from ipex_lookahead.cli import loading, main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a parent in the background has it ignored
        "def load(*a, **k): print('loading', flush=True); time.sleep(60)\n"
        "loading.load = load; main.main(['generate', 'x'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "loading\n"
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m ipex_lookahead.cli.main completion fish | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert done.returncode in (0, 1, 141), "0 where the reader was quicker"
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr


def test_version(capsys):
    import ipex_lookahead

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"ipex-lookahead {ipex_lookahead.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell, capsys):
    assert run(["completion", shell]) == 0
    assert "_IPEX_LOOKAHEAD_COMPLETE" in capsys.readouterr().out


def test_completion_completes():
    environment = {
        **os.environ,
        "_IPEX_LOOKAHEAD_COMPLETE": "bash_complete",
        "COMP_WORDS": "ipex-lookahead ge",
        "COMP_CWORD": "1",
    }
    code = "from ipex_lookahead.cli.main import main; main([])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["plain,generate"], done.stderr


def test_info_shows_what_steps_were_measured_to_cost(tmp_path, monkeypatch, capsys):
    from ipex_lookahead.decoding import cost
    from tests.support.scripted_engine import markov

    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path))
    assert run(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_costs"] == []
    cost.save(cost.cost_folder() / "a.json", cost.Calibration((1, 4), (0.004, 0.005)), markov())
    (cost.cost_folder() / "damaged.json").write_text("{")
    assert run(["info", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["step_costs"]
    assert found["milliseconds"] == {"1": 4.0, "4": 5.0}
    assert found["low_bit"] == "fp32"
    assert run(["info"]) == 0
    assert "4.00 ms, 4 rows 1.25x" in capsys.readouterr().out
    monkeypatch.setattr(cost, "processor", lambda: "another")
    assert run(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_costs"] == []
