"""What a shell is offered: commands, options, models, files, strategies, formats; in bash's, zsh's and fish's words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.shell_completion import get_completion_class

from ipex_lookahead.cli.main import cli, run
from ipex_lookahead.cli.names import STRATEGIES
from ipex_lookahead.cli.types import LowBit, Model, Strategy
from ipex_lookahead.hub.recommended import recommended_models
from ipex_lookahead.hub.recommended_embedding import recommended_embedding_models
from ipex_lookahead.low_bits import ALIASES, LOW_BITS, PRESETS
from tests.cli.test_main import leaf_commands

ROOT = Path(__file__).resolve().parents[2]


def offered(*words: str) -> list[tuple[str, str]]:
    """(kind, value) of what is offered for the last word."""
    shell = get_completion_class("bash")(cli, {}, "ipex-lookahead", "_IPEX_LOOKAHEAD_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(list(words[:-1]), words[-1])]


def values(*words: str) -> list[str]:
    return [value for _, value in offered(*words)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.gguf", "b.txt", "models/c.gguf", "llama/config.json", "other/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_commands_and_options():
    assert values("c") == ["chat", "convert-ipex-llm", "compare-engines", "completion"]
    assert values("bench", "k") == ["kernels"]
    assert values("generate", "--dr") == ["--draft-model", "--drafter", "--draft-vocab", "--draft-min-prob"]


def test_names():
    assert values("generate", "--strategy", "") == list(STRATEGIES)
    assert values("bench", "exact", "--strategy", "s") == ["suffix", "self_speculation"]
    assert values("generate", "--low-bit", "") == [*LOW_BITS, *PRESETS, *ALIASES]
    assert values("generate", "--low-bit", "gguf") == ["gguf_q4k_m", "gguf_q4k_s"]
    assert offered("generate", "--low-bit", "./my") == [("file", "./my")], "rules are in files"
    assert values("bench", "kernels", "--low-bit", "a") == ["asym_int4", "asym_int5"]
    assert values("bench", "kernels", "--low-bit", "gguf") == []
    assert values("generate", "--engine", "n") == ["native"]
    assert values("doctor", "--device", "x") == ["xpu"]
    assert values("generate", "--lookahead", "a") == ["auto"]
    assert values("completion", "z") == ["zsh"]
    assert values("bench", "kernels", "--isa", "avx") == ["avx512_vnni", "avx_vnni", "avx2"]


def test_models_that_are_kept(monkeypatch):
    kept = [SimpleNamespace(name="default"), SimpleNamespace(name="owner/repo:a.gguf")]
    monkeypatch.setattr("ipex_lookahead.hub.cached_models", lambda: kept)
    assert values("rm", "") == ["default", "owner/repo:a.gguf"]
    assert values("rm", "ow") == ["owner/repo:a.gguf"]


@pytest.mark.parametrize("words", [("generate", "--model"), ("chat", "-m"), ("info",), ("quantize",)])
def test_models(words, folder):
    assert values(*words, "") == ["default", "a.gguf", "llama", *recommended_models(), *recommended_embedding_models()]
    assert values(*words, "qwen3-4") == ["qwen3-4b"]
    assert values(*words, "def") == ["default"]
    assert values(*words, "models/") == ["models/c.gguf"]
    assert values(*words, f"{folder}/l") == [f"{folder}/llama"]
    assert offered(*words, "mod") == [("file", "mod")], "on the way to a model the shell knows the folders"
    assert offered(*words, "/no/such/") == [("file", "/no/such/")]


def test_files():
    assert offered("bench", "decode", "--prompts", "x") == [("file", "x")]
    assert offered("bench", "quality", "--text", "") == [("file", "")]
    assert offered("generate", "--store", "m") == [("plain", "memory")]
    assert ("file", "") in offered("generate", "--store", "")


def test_every_parameter_of_a_kind_completes_so():
    kinds = {"model": Model, "draft_model": Model, "low_bit": LowBit, "formats": LowBit, "strategy": Strategy}
    for path in leaf_commands():
        found = cli
        for name in path:
            found = found.get_command(click.Context(found), name)
        for parameter in found.params:
            if parameter.name in kinds:
                assert isinstance(parameter.type, kinds[parameter.name]), (path, parameter.name)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell, capsys):
    assert run(["completion", shell]) == 0
    assert "_IPEX_LOOKAHEAD_COMPLETE" in capsys.readouterr().out


def test_a_key_press_waits_for_nothing_heavy():
    """Also for the words of zsh, which come with what they mean."""
    words = {"COMP_WORDS": "ipex-lookahead generate --strategy su", "COMP_CWORD": "3"}
    code = (
        "import sys; from ipex_lookahead.cli.main import main\n"
        "sys.argv = ['ipex-lookahead']\n"
        "try: main([])\n"
        "finally: print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "_IPEX_LOOKAHEAD_COMPLETE": "zsh_complete", **words}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "plain\nsuffix\nthe continuation of the longest match, also in stored answers\n"
    assert done.stderr.strip() == "[]"


@pytest.mark.programs
def test_in_bash_itself(tmp_path):
    program = tmp_path / "ipex-lookahead"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ipex_lookahead.cli.main "$@"\n')
    program.chmod(0o755)
    script = (
        f'eval "$({program} completion bash)"\n'
        "COMP_WORDS=(ipex-lookahead generate --low-bit s) COMP_CWORD=3\n"
        f"_ipex_lookahead_completion {program}\n"
        'echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [name for name in (*LOW_BITS, *PRESETS) if name.startswith("s")], done.stderr
