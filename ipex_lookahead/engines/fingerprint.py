"""The fingerprint of a loaded model: equal for two loads that compute the same bits, for files with its KV caches."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from ipex_lookahead.engines.api import Batch, Engine, ExportsCache, HasHead, ImportsCache, OutputRequest
from ipex_lookahead.engines.identity import kernels_of
from ipex_lookahead.errors import InputError

PROBES = 32
"""Tokens of the forward that the fingerprint has the results of."""
SAMPLES = 64
"""Parts of each file of weights that the fingerprint has, in addition to its beginning."""
SAMPLE_BYTES = 4096
HEADER_BYTES = 2**16
"""Bytes at the beginning of a file of weights: the names, shapes and formats of tensors, or most of them."""
_WEIGHTS = (".safetensors", ".gguf", ".bin")


def fingerprint(engine: Engine, source: Path | None = None) -> bytes:
    """Return 32 bytes that identify a model: its weights, their formats, and the format of keys and values.

    The bytes are a hash of the results of one forward (logits, keys, values and states, to the last bit), of the
    layout of KV caches, of the build of the kernels, of the head's description, and of samples of the files of weights.

    Args:
        engine: no other thread uses it.
        source: the folder or GGUF file of its weights; None: the files are not sampled.

    Raises InputError for an engine without images of KV caches.
    """
    if not isinstance(engine, ImportsCache):
        why = "" if engine.row_invariant else ": its results depend on the other rows of a step"
        raise InputError(f"the {engine.name} engine cannot save KV caches{why}", hint="use the engine native or opencl")
    head = engine.head.describe() if isinstance(engine, HasHead) and engine.head is not None else None
    facts = [engine.name, engine.cache_layout, kernels_of(engine), engine.vocab_size, head]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    tokens = np.linspace(0, engine.vocab_size - 1, PROBES).astype(np.int32)
    chain = np.arange(-1, PROBES - 1, dtype=np.int32)
    cache: Any = engine.new_cache()
    output = engine.forward(Batch([cache], [PROBES], tokens, chain, OutputRequest(logits=True)))
    assert output.logits is not None
    cache.keep(list(range(PROBES)))
    assert isinstance(cache, ExportsCache)
    for found in (output.logits, cache.export_pages(0, PROBES), cache.export_state()):
        digest.update(np.ascontiguousarray(found).data)
    for file in [] if source is None else _files(source):
        _sample(file, digest)
    return digest.digest()


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    return sorted(file for file in source.iterdir() if file.suffix in _WEIGHTS and file.is_file())


def _sample(file: Path, digest: Any) -> None:
    """Add a file's size, its beginning, and parts at equal distances. A file that cannot be read adds its name only."""
    digest.update(file.name.encode())
    try:
        with file.open("rb", buffering=0) as content:
            size = content.seek(0, 2)
            content.seek(0)
            digest.update(f" {size} ".encode() + content.read(HEADER_BYTES))
            for number in range(SAMPLES):
                content.seek(number * size // SAMPLES)
                digest.update(content.read(SAMPLE_BYTES))
    except OSError:
        digest.update(b" unreadable")
