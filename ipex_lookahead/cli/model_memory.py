"""The memory of a served model, computed from its headers and options before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.low_bit import packed_bytes
from ipex_lookahead.cli.adapters import adapter_facts, named_adapters
from ipex_lookahead.cli.model_facts import describe
from ipex_lookahead.embedding.purpose import purpose_of
from ipex_lookahead.engines.adapters import is_on_hub
from ipex_lookahead.engines.load_weights import walk
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.weights import PlannedWeights, label_in
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.paths import given_path

PROCESS_BYTES = 256 << 20
"""Memory of a worker besides weights and KV cache: Python, the packages, the tokenizer, buffers of a step."""

BATCH_BYTES = 256 << 20
"""Memory of a batch of an embedding or reranking model: its rows in all layers."""


def memory_of(path: Path, options: Mapping[str, Any]) -> int:
    """Return the bytes of a served model: weights, its drafter and adapters, the KV cache, and its process.

    Args:
        path: file or folder.
        options: values of ``serve``'s options by parameter name. Drafters and adapters that are not on this machine
            count nothing.

    Raises InputError or ModelFormatError for a model that cannot be read.
    """
    low_bit = options.get("low_bit")
    if purpose_of(path) != "text":
        return weight_bytes(path, low_bit) + BATCH_BYTES + PROCESS_BYTES
    total = weight_bytes(path, low_bit) + int(options["cache_memory"]) + PROCESS_BYTES
    if (draft := here(options.get("draft_model"))) is not None:
        total += weight_bytes(draft, low_bit)
    for adapter in named_adapters(options.get("lora") or ()).values():
        if not is_on_hub(adapter):
            total += int(adapter_facts(given_path(adapter)).get("bytes", 0))
    head = describe(path, here(options.get("drafter"))).get("drafter")
    return total + (head["bytes"] if isinstance(head, dict) else 0)


def memory_if_here(name: str, options: Mapping[str, Any]) -> int | None:
    """Return the memory of a model on this machine; None for one that may have to be downloaded first."""
    path = here(name)
    return None if path is None else memory_of(path, options)


def here(name: str | None) -> Path | None:
    """Return the path of a model that is given by its path; None for one of the hub."""
    from ipex_lookahead.hub import parse_name

    found = None if name is None else parse_name(name)
    return found if isinstance(found, Path) else None


def weight_bytes(path: Path, low_bit: str | None) -> int:
    """Return the bytes of a model's weights in a format, the largest one where the values decide.

    Args:
        path: file or folder.
        low_bit: as for ``LoadRequest``; None: the formats of the file.

    Raises InputError or ModelFormatError for a model that cannot be read.
    """
    try:
        checkpoint = open_checkpoint(path)
    except UnsupportedModelError:  # a family of transformers, which has no format of this package
        return int(describe(path)["bytes"])
    try:
        spec = checkpoint.spec
        label = label_in(checkpoint, spec) if low_bit is None else low_bit
        planned = PlannedWeights(checkpoint, spec, LoadRequest(path, low_bit=low_bit).plan(label).of_spec(spec))
        return sum(
            max(map(packed_bytes, planned.choices(tensor))) if tensor.is_matrix else 4 * prod(tensor.shape)
            for _, tensor in walk(spec)
        )
    finally:
        checkpoint.close()
