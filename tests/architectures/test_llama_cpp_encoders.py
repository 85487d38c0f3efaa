"""The tiny GGUF files of text encoders in llama.cpp itself: that these files are what it means by them.

`make test-peers` runs it: ``IPEX_LOOKAHEAD_LLAMA_CPP`` names a Python that can import llama-cpp-python (0.3.36 or
newer).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ipex_lookahead.embedding.checkpoint import open_text_encoder
from tests.support.text_encoders import CASES, VOCAB, build, write_gguf

PYTHON = "IPEX_LOOKAHEAD_LLAMA_CPP"
PROGRAM = Path(__file__).parents[1] / "support" / "llama_cpp_rows.py"
if PYTHON not in os.environ:
    pytest.skip(f"{PYTHON} names no Python with llama-cpp-python; make test-peers does", allow_module_level=True)
pytest.importorskip("transformers", minversion="5.23")

CLOSE = {"nomic-old": 1e-4, "modernbert-silu": 1e-4}
"""Of the rows' standard deviation, 2e-2 else: llama.cpp takes GELU from a table of tanh's formula in float16."""


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.gguf])
def test_rows_are_those_of_llama_cpp(tmp_path: Path, name: str) -> None:
    ids = np.random.default_rng(5).integers(5, VOCAB, 41).tolist()
    metadata: dict[str, str | int] = {"tokenizer.ggml.model": "none"}
    if CASES[name].gguf != "modern-bert":  # the family has the key in any case
        metadata[f"{CASES[name].gguf}.vocab_size"] = VOCAB
    file = write_gguf(tmp_path / "m.gguf", name, build(name), metadata=metadata)
    into, requests = tmp_path / "rows.npy", tmp_path / "requests.json"
    requests.write_text(json.dumps([{"model": str(file), "ids": ids, "into": str(into)}]), encoding="utf-8")
    done = subprocess.run(
        [os.environ[PYTHON], str(PROGRAM), str(requests)], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = np.load(into)
    rows = open_text_encoder(file, threads=1).encoder.rows([ids])[0]
    assert np.abs(rows - wanted).max() < CLOSE.get(name, 2e-2) * wanted.std()
