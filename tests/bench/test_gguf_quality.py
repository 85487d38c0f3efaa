"""Quality of GGUF files on the native engine beside transformers in float32, whose weights the gguf package decodes.

Tiny files run always. With IPEX_LOOKAHEAD_QUALITY_TOKENS=20000 the embedded model in llama-quantize's types runs too
(half an hour on two cores): perplexity of so many tokens of WikiText-2 within 0.5 %.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.bench.perplexity import Distributions, engine_logits, predicted, reference_logits, score
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.hub import resolve_model
from ipex_lookahead.runtime.loading import load_text_model
from tests.support.gguf_oracle import llama_from_gguf
from tests.support.tiny import write_tiny_gguf

PROGRAM = os.environ.get("IPEX_LOOKAHEAD_LLAMA_QUANTIZE") or shutil.which("llama-quantize")
TOKENS = int(os.environ.get("IPEX_LOOKAHEAD_QUALITY_TOKENS", "0"))


@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q5_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_tiny_files(kind: str, tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "m.gguf", quant=kind, hidden=256, intermediate=256, heads=4, kv_heads=2, seed=3)
    checkpoint = open_checkpoint(file)
    engine = NativeEngine.load(checkpoint, checkpoint.spec, WeightPlan().of_spec(checkpoint.spec), threads=1)
    checkpoint.close()
    ids = np.random.default_rng(0).integers(0, 96, 400).tolist()
    kept = Distributions(predicted(400, 200), 96)
    theirs = score(reference_logits(llama_from_gguf(file)), ids, 200, keep=kept)
    ours = score(engine_logits(engine), ids, 200, reference=kept)
    assert abs(math.log(ours.perplexity) - math.log(theirs.perplexity)) < 0.005 * math.log(theirs.perplexity)
    assert ours.kl < (1e-5 if kind == "F32" else 2e-3)
    assert ours.top1 > 0.97


@pytest.mark.skipif(not TOKENS, reason="IPEX_LOOKAHEAD_QUALITY_TOKENS is not set: half an hour on two cores")
@pytest.mark.skipif(not PROGRAM, reason="no llama-quantize on the path, nor in IPEX_LOOKAHEAD_LLAMA_QUANTIZE")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS", "Q5_0"])
def test_files_of_llama_quantize(kind: str, shared: Path, tmp_path: Path) -> None:
    source, file = tmp_path / "f32.gguf", tmp_path / "m.gguf"
    for arguments in (["--allow-requantize", resolve_model("default"), source, "F32"], [source, file, kind]):
        subprocess.run([str(PROGRAM), *map(str, arguments)], check=True, capture_output=True, timeout=600)
    source.unlink()
    model = load_text_model(str(file), progress=False)
    text = (shared / "corpus" / "wikitext2_test_raw.txt").read_text(encoding="utf-8")
    ids = model.tokenizer.encode(text, add_special_tokens=False)[:TOKENS]
    ours = score(engine_logits(model.engine), ids).perplexity
    theirs = score(reference_logits(llama_from_gguf(file)), ids).perplexity
    print(f"{kind}: {len(ids)} tokens, perplexity {ours:.4f}, transformers {theirs:.4f}: {ours / theirs:.5f}")
    assert abs(ours / theirs - 1) <= 0.005
