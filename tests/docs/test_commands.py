"""Every command that the pages tell people to type runs on a tiny model, or parses, or is marked as needing more."""

from __future__ import annotations

import io
import re
import shlex
import sys

import click
import pytest

from ipex_lookahead.cli.main import cli, run
from tests.docs.pages import PAGES, ROOT, Command, commands
from tests.support.chat_tokenizer import write_chat_llama
from tests.support.embedding_folders import qwen3, tokenizer, write_qwen3_embedding

NEEDS = {"", "hardware", "network", "minutes", "another environment"}
SHELL = {". .venv/bin/activate"}
"""Lines that prepare a shell; what they name is made by ``make demo``."""
PARSED = {
    "pull": "it needs a network; tests/cli/test_pull_list_rm.py",
    "rm": "it removes what was fetched; tests/cli/test_pull_list_rm.py",
    "chat": "it talks; tests/cli/test_chat.py",
    "run": "it fetches, and talks; tests/cli/test_pull_list_rm.py",
    "doctor": "it measures for a minute; tests/cli/test_doctor.py",
    "compare-engines": "it loads PyTorch's models; tests/cli/test_compare_engines.py",
    "convert-ipex-llm": "it takes a folder that ipex-llm saved; tests/ipex_llm",
    "imatrix": "it loads PyTorch's models; tests/cli/test_imatrix.py",
    "drafter": "it counts tokens; tests/cli/test_drafter_cut.py",
    "serve": "it serves until it is told to end; tests/serving/test_serve.py",
    "bench": "they measure for minutes; tests/cli/test_bench.py and tests/bench",
}
"""Commands that are only parsed here, and where they run."""


def found(prefix: str) -> list[Command]:
    return [command for command in commands() if re.search(prefix, command.line)]


def words_of(line: str) -> list[str]:
    """What follows ``ipex-lookahead`` in a line, without pipes and shells around it."""
    (inner,) = re.findall(r'ipex-lookahead ([^|)]+(?:"[^"]*"[^|)]*)*)', line)
    return shlex.split(inner.rstrip('"') if line.startswith("eval") else inner)


def known(command: Command) -> bool:
    """Whether a test below looks at the line."""
    line = command.line
    return (
        line in SHELL
        or "ipex-lookahead " in line
        or line.startswith(("make ", "python3 scripts/", "python scripts/", "python examples/"))
    )


def test_every_command_is_looked_at_or_marked():
    for command in commands():
        assert command.needs in NEEDS, f"{command.page}: needs: {command.needs!r} is none of {sorted(NEEDS)}"
        assert command.needs or known(command), (
            f"{command.page}: no test knows {command.line!r}; mark its block as needing ..."
        )


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder in which the commands' files lie: a tiny model, a text, prompts, and the project's own."""
    folder = tmp_path_factory.mktemp("typed")
    write_chat_llama(folder / "path" / "to" / "model", context=512)
    (folder / "path" / "to" / "embedder").mkdir()
    write_qwen3_embedding(folder / "path" / "to" / "embedder", qwen3(tokenizer().get_vocab_size()))
    (folder / "documents.txt").write_text("The sky is blue.\nThe sea is wet.\n")
    (folder / "texts.jsonl").write_text('{"id": 1, "text": "The sky is blue."}\n')
    (folder / "notes.txt").write_text("A river was hidden. It is open again.\n")
    (folder / "answers.jsonl").touch()  # what bench replay would have recorded
    (folder / "costs.json").touch()  # and what bench step would have measured
    (folder / "prompts").mkdir()
    for name in ("mt_bench", "gsm8k"):  # of those that scripts/fetch_prompts.py writes
        (folder / "prompts" / f"{name}.jsonl").write_text('{"id": "1", "category": "chat", "prompt": "Hi"}\n')
    for name in ("configs", "README.md"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def named(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the first words name, and the rest."""
    at: click.Command = cli
    while isinstance(at, click.Group):
        found_one = at.get_command(click.Context(at), words[0])
        assert found_one is not None, words
        at, words = found_one, words[1:]
    return at, words


@pytest.mark.parametrize("command", found("ipex-lookahead "), ids=lambda one: one.line)
def test_commands_parse(command, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    at, words = named(words_of(command.line))
    root = click.Context(cli, info_name="ipex-lookahead", **cli.context_settings)  # --config looks at all commands
    at.make_context(at.name, words, parent=root)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ("docs/dev/LOG.md", "docs/commands.md")])
def test_commands_within_sentences_name_what_there_is(page):
    """Options of a command in backticks exist; what it is given is left open, since `MODEL` and `...` stand there."""
    for line in re.findall(r"`ipex-lookahead ([^`]+)`", PAGES[page]):
        at: click.Command = cli
        words = re.split(r"\s+", re.sub(r'"[^"]*"', "TEXT", line.strip()))
        while isinstance(at, click.Group) and words and re.fullmatch(r"[a-z][\w-]*", words[0]):
            next_one = at.get_command(click.Context(at), words.pop(0))
            assert next_one is not None, f"{page}: {line}"
            at = next_one
        there = {name for option in at.params for name in (*option.opts, *option.secondary_opts)} | {
            "--help",
            "--help-all",
            "--debug",
        }
        for word in words:
            if word.startswith("-") and word != "-":
                assert word.partition("=")[0] in there, f"{page}: {line}: there is no {word}"


RUNNABLE = [
    one
    for one in found("ipex-lookahead ")
    if not one.needs and words_of(one.line)[0] not in PARSED and ".gguf" not in one.line
]
"""GGUF files with a tokenizer of their own are made in tests/cli/test_quantize.py, which runs those commands."""


@pytest.mark.parametrize("command", RUNNABLE, ids=lambda one: one.line)
def test_commands_run(command, workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_MODEL", "path/to/model")
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_MAX_NEW_TOKENS", "8")
    monkeypatch.setenv("IPEX_LOOKAHEAD_QUANTIZE_OVERWRITE", "1")
    piped = re.match(r"cat (\S+) \|", command.line)
    text = (workplace / piped[1]).read_bytes() if piped else b""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    status = run(words_of(command.line))
    said = capsys.readouterr()
    assert status == 0, said.err
    assert said.out or said.err or "--output" in command.line


def test_commands_of_every_kind_are_there():
    """The patterns above find what they are for."""
    assert len(RUNNABLE) >= 6
    assert len(found("^make ")) >= 4
    assert len(found("ipex-lookahead ")) >= 20
    assert {one.needs for one in commands()} <= NEEDS


@pytest.mark.parametrize("command", found("^make "), ids=lambda one: one.line)
def test_make_targets_exist(command):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in shlex.split(command.line)[1:]:
        assert "=" in word or re.search(rf"^{word}:", makefile, re.MULTILINE), f"{command.line}: no target {word}"


@pytest.mark.parametrize("command", found(r"^python3? (scripts|examples)/"), ids=lambda one: one.line)
def test_scripts_exist(command):
    """Examples run in tests/examples, scripts have tests of their own where they can run without the network."""
    assert (ROOT / shlex.split(command.line)[1]).is_file(), command.line
