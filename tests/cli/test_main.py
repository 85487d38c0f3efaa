"""The group: help, errors as sentences, exit codes, the traceback only on demand, environment variables."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ipex_lookahead.cli import loading
from ipex_lookahead.cli.main import COMMANDS, cli, run
from ipex_lookahead.cli.running import READER_GONE, run_command
from ipex_lookahead.errors import InputError, ModelFormatError

ROOT = Path(__file__).resolve().parents[2]


def leaf_commands(command=cli, path=()):
    context = click.Context(command)
    if not isinstance(command, click.Group):
        return [path]
    return [
        leaf
        for n in command.list_commands(context)
        for leaf in leaf_commands(command.get_command(context, n), (*path, n))
    ]


def every_option():
    """Every option of every command."""
    for path in leaf_commands():
        found = cli
        for name in path:
            found = found.get_command(click.Context(found), name)
        yield from (option for option in found.params if isinstance(option, click.Option))


def examples_of(path):
    """A command's examples as its help shows them; a group has none."""
    found = cli
    for name in path:
        found = found.get_command(click.Context(found), name)
    return [f"  {example}" for example in getattr(found, "examples", ())]


def raising(error):
    def load(*arguments, **options):
        raise error

    return load


@pytest.mark.programs
def test_python_dash_m_is_the_command():
    """Where pip's folder of programs is not on the PATH."""
    python = [sys.executable, "-m", "ipex_lookahead"]
    done = subprocess.run([*python, "--version"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.split()[0]) == (0, "ipex-lookahead")
    done = subprocess.run([*python, "nonsense"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "hint: ipex-lookahead --help" in done.stderr


@pytest.mark.parametrize("columns", ["80", "50"])
@pytest.mark.parametrize("command", [(), ("bench",), *leaf_commands()], ids=" ".join)
def test_help_fits_the_terminal(command, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert run([*command, "--help"]) == 0
    said = capsys.readouterr().out
    assert "env var" not in said, "variables stand in docs/commands.md"
    for line in said.splitlines():
        if line in examples_of(command):
            assert len(line) <= 80, "an example is copied whole"
        else:
            assert len(line) <= int(columns) or len(line.split()) <= 4, "names and metavars cannot be broken"


def test_help_has_sections_where_options_are_many(capsys):
    assert run(["generate", "--help"]) == 0
    said = capsys.readouterr().out
    headings = [line for line in said.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Model:", "Text:", "Sampling:", "Lookahead:", "Machine:", "Options:", "Examples:"]
    assert said.splitlines()[-2:] == examples_of(("generate",))[-2:]
    assert said.index("Sampling:") < said.index("--seed") < said.index("Lookahead:")


def test_sections_name_options_that_there_are():
    from ipex_lookahead.cli.commands import SECTIONS

    there = {option.name for option in every_option()}
    named = [name for names in SECTIONS.values() for name in names]
    assert len(named) == len(set(named))
    assert set(named) <= there


def test_every_leaf_is_a_command_of_ours():
    """So that no command misses the sections and the refusals."""
    from ipex_lookahead.cli.commands import Command

    for path in leaf_commands():
        found = cli
        for name in path:
            found = found.get_command(click.Context(found), name)
        assert isinstance(found, Command), path
        assert found.examples, f"{path}: its help ends with an example"


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_alone_it_prints_help(arguments, capsys):
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: ipex-lookahead [OPTIONS] COMMAND")
    assert "generate" in out
    assert err == ""


def test_help_of_a_command(capsys):
    assert run(["help", "bench", "kernels"]) == 0
    assert "Usage: ipex-lookahead bench kernels" in capsys.readouterr().out
    assert run(["bench"]) == 0
    assert "replay" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["genrate"], "ipex-lookahead generate"),
        (["compare_engine"], "ipex-lookahead compare-engines"),
        (["Bench"], "ipex-lookahead bench"),
        (["bench", "kernel"], "ipex-lookahead bench kernels"),
        (["gen"], "ipex-lookahead generate"),
        (["show"], "ipex-lookahead info"),
        (["help", "quantise"], "ipex-lookahead quantize"),
    ],
)
def test_did_you_mean(arguments, meant, capsys):
    assert run(arguments) == 2
    assert capsys.readouterr().err.endswith(f"hint: did you mean {meant}?\n")


@pytest.mark.programs
def test_help_is_quick_because_nothing_heavy_is_imported():
    code = (
        "import sys; from ipex_lookahead.cli.main import run\n"
        f"for path in {[(), *leaf_commands()]}: run([*path, '--help'])\n"
        "print({'torch', 'transformers', 'numpy', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert said.stderr.strip() == "set()"
    assert "generate" in said.stdout


def test_commands_listed_are_those_there_are():
    assert {c[0] for c in leaf_commands()} == set(COMMANDS)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("it is wrong", hint="make it right"), "error: it is wrong\nhint: make it right\n"),
        (ModelFormatError("a.gguf", "magic", 0, "is wrong"), "error: a.gguf: magic at byte 0: is wrong\n"),
        *(
            (one, "error: ")
            for one in (RuntimeError("odd"), ValueError(), MemoryError(), OSError(28, "No space", "/x"))
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_are_sentences(error, said, monkeypatch, capsys):
    monkeypatch.setattr(loading, "load_text", raising(error))
    assert run(["generate", "hello"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [["--debug", "generate", "x"], ["generate", "x", "--debug"]])
def test_debug_shows_the_traceback(arguments, monkeypatch, capsys):
    monkeypatch.setattr(loading, "load_text", raising(InputError("it is wrong")))
    assert run(arguments) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: it is wrong\n")


def test_debug_by_environment(monkeypatch, capsys):
    monkeypatch.setenv("IPEX_LOOKAHEAD_DEBUG", "1")
    monkeypatch.setattr(loading, "load_text", raising(InputError("it is wrong")))
    assert run(["generate", "x"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_after_two_dashes_debug_is_a_prompt(scripted):
    model = scripted("yes")
    assert run(["generate", "--raw", "--", "--debug"]) == 0
    assert model.tokenizer.decode(model.asked[0][0]) == "--debug"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "unknown command 'nonsense': choose one of generate,"),
        (["generate", "x", "--lookahead", "-1"], "lookahead"),
        (["generate", "x", "--lookahead", "129"], "lookahead"),
        (["generate", "x", "--max-new-tokens", "-1"], "max-new-tokens"),
        (["generate", "x", "--threads", "0"], "threads"),
        (["generate", "x", "--temperature", "0", "--top-p", "0.9"], "no effect at temperature 0"),
        (["generate", "x", "--temperature", "0", "--seed", "1"], "no effect at temperature 0"),
        (["generate", "x", "--raw", "--system", "s"], "--raw leaves out"),
        (["chat", "--temperature", "0", "--top-k", "3"], "no effect at temperature 0"),
        (["bench", "decode", "--limit", "0"], "limit"),
        (["quantize", "default"], "OUT"),
        (["quantize", "a", "b", "--group-size", "48"], "group-size"),
        (["completion", "tcsh"], "tcsh"),
        (["generate", "x", "--threads"], "requires an argument"),
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


@pytest.mark.programs
def test_a_real_interrupt():
    code = (
        "import signal, time; from ipex_lookahead.cli import loading, main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a parent in the background has it ignored
        "def load(*a, **k): print('loading', flush=True); time.sleep(600)\n"
        "loading.load_text = load; main.main(['generate', 'x'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "loading\n"
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=200)
    assert child.returncode == 130
    assert "Traceback" not in err


def test_a_reader_that_goes_away_has_its_own_status(monkeypatch):
    def write() -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    for stream in ("stdout", "stderr"):  # click replaces both; undone after the test
        monkeypatch.setattr(sys, stream, getattr(sys, stream))
    assert run_command(click.Command("write", callback=write), []) == READER_GONE


@pytest.mark.programs
def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m ipex_lookahead.cli.main completion fish | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert done.returncode in (0, 141), "0 where the reader was quicker"
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr


@pytest.mark.parametrize(
    ("redirection", "says"),
    [(">&-", "standard output is closed"), ("> /dev/full", "No space left on device"), ("> /dev/null 2>&-", "")],
)
@pytest.mark.programs
def test_output_that_cannot_be_written_is_a_sentence(redirection, says):
    command = f"{sys.executable} -m ipex_lookahead.cli.main --help {redirection}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == (1 if says else 0)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr, "nor does Python complain once more at exit"
    assert done.stderr.count("error: ") == bool(says)


@pytest.mark.programs
def test_a_file_that_was_closed_meanwhile():
    """OSError EBADF where the output's descriptor has gone under way."""
    code = (
        "import os, sys; from ipex_lookahead.cli import completion, main\n"
        "sys.stdout.write('x'); os.close(1)\n"
        "main.main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: Bad file descriptor\n"
