"""The commands on a family that the native engine has not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.cli.main import run
from tests.support.byte_tokenizer import VOCAB, byte_tokenizer
from tests.support.families import write

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write(tmp_path_factory.mktemp("models") / "gpt2", "gpt2", vocab_size=VOCAB)
    byte_tokenizer().save_pretrained(made)
    return made


def output(capsys: Any) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_info_then_quantize_then_generate(folder: Path, tmp_path: Path, capsys: Any) -> None:
    assert run(["info", str(folder), "--json"]) == 0
    facts = output(capsys)
    assert (facts["architecture"], facts["engine"], facts["layers"], facts["context"]) == ("gpt2", "torch", 2, 256)
    assert facts["formats"]["fp32"]["bytes"] == facts["bytes"] == 4 * facts["parameters"]
    saved = str(tmp_path / "saved")
    assert run(["quantize", str(folder), saved, "--low-bit", "sym_int4"]) == 0
    capsys.readouterr()
    assert run(["info", saved, "--json"]) == 0
    assert output(capsys)["formats"]["sym_int4"]["tensors"] == 9
    texts = []
    for model in ((saved,), (str(folder), "--low-bit", "sym_int4", "--lookahead", "auto")):
        assert run(["generate", "--raw", "--json", "-n", "12", "--threads", "1", "hello hello", "-m", *model]) == 0
        found = output(capsys)
        assert found["engine"] == "torch"
        texts.append(found["token_ids"])
    assert texts[0] == texts[1]


def test_the_native_engine_says_who_runs_it(folder: Path, capsys: Any) -> None:
    assert run(["generate", "--raw", "hi", "-m", str(folder), "--engine", "native"]) == 1
    said = capsys.readouterr().err
    assert "the native engine does not support model type 'gpt2'" in said
    assert "hint: --engine torch" in said


@pytest.mark.programs
def test_no_bars_but_ours(folder: Path) -> None:
    """transformers draws its own through them."""
    doctor = "doctor --tiny --threads 1 --answers 1 -n 4".split()
    code = (
        "import sys; sys.stderr.isatty = lambda: True\nfrom ipex_lookahead.cli.main import run\n"
        f"run(['generate', '--raw', '-n', '2', 'hi', '-m', {str(folder)!r}]); run({doctor!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "engine: torch" in done.stderr
    assert "Loading weights" not in done.stderr
    assert "Writing model" not in done.stderr
