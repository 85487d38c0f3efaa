"""``imatrix`` and ``quantize`` on models with recurrent layers: mixtures and importance matrices work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.imatrix import write_imatrix
from ipex_lookahead.cli.main import run
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.family_table import FAMILIES, variants
from tests.support.tiny_families import config_of, with_weights, write_folder

RECURRENT = {"qwen3_5_moe_text": "plain", "lfm2": "plain", "granitemoehybrid": "recurrent", "nemotron_h": "plain"}


@pytest.fixture(scope="module", params=RECURRENT)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = request.param
    variant = next(one for one in variants(family) if one.name == RECURRENT[family])
    model = with_weights(config_of(family, variant, base={**FAMILIES[family].base, "vocab_size": SIZE}))
    made = write_folder(tmp_path_factory.mktemp("models"), model)
    chat_tokenizer().save_pretrained(made)
    return made


def tokens(capsys: Any, *model: str) -> Any:
    assert run(["generate", "--raw", "--json", "-n", "12", "--threads", "1", "hello hello", "-m", *model]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])["token_ids"]


@pytest.mark.parametrize("low_bit", ["gguf_q4k_m", "sym_int4"])
def test_what_is_quantised_says_what_the_model_in_that_mixture_says(
    folder: Path, low_bit: str, tmp_path: Path, capsys: Any
) -> None:
    saved = str(tmp_path / "saved")
    assert run(["quantize", str(folder), saved, "--low-bit", low_bit]) == 0
    capsys.readouterr()
    assert tokens(capsys, saved) == tokens(capsys, str(folder), "--low-bit", low_bit)


def test_an_importance_matrix_of_another_program_is_taken(folder: Path, tmp_path: Path, capsys: Any) -> None:
    checkpoint = open_checkpoint(folder)
    matrices = [tensor for tensor in checkpoint.spec.tensors() if tensor.is_matrix]
    checkpoint.close()
    shapes = {one.gguf.name: (*one.gguf.shape[:-2], one.shape[1]) for one in matrices}
    chance = np.random.default_rng(1)
    sums = {name: chance.uniform(0.01, 100, shape) for name, shape in shapes.items()}
    counts = {name: np.ones(shape[:-1] or 1) for name, shape in shapes.items()}
    write_imatrix(tmp_path / "i.gguf", sums, counts, dataset="x.txt", chunks=1, chunk=1)
    saved = {}
    for name, more in (("plain", ()), ("weighed", ("--imatrix", str(tmp_path / "i.gguf")))):
        assert run(["quantize", str(folder), str(tmp_path / name), "--low-bit", "sym_int4", *more]) == 0
        assert "says nothing of" not in capsys.readouterr().err
        checkpoint = open_checkpoint(tmp_path / name)
        saved[name] = {
            one.name: checkpoint.read(one.name).codes.tobytes()
            for one in matrices
            if checkpoint.info(one.name).format == "sym_int4"
        }
        checkpoint.close()
    assert saved["plain"].keys() == saved["weighed"].keys()
    assert [name for name, codes in saved["weighed"].items() if saved["plain"][name] == codes] == []
