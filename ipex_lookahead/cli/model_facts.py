"""Facts about a model from its headers, also of one that cannot run here: for ``info``, ``list`` and ``pull``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures import encoder_type, gguf_encoder, model_types
from ipex_lookahead.checkpoints import (
    Checkpoint,
    IpexLlmCheckpoint,
    family_of,
    kind_of,
    open_checkpoint,
    open_other_family,
)
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.draft_vocab import ids_of
from ipex_lookahead.checkpoints.drafters import IN_A_MODEL, drafter_of
from ipex_lookahead.checkpoints.encoders import open_encoder
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.checkpoints.low_bit import FLOATS, packed_bytes
from ipex_lookahead.checkpoints.safetensors_reader import SafetensorsFile
from ipex_lookahead.cli.embedding_facts import with_purpose
from ipex_lookahead.cli.names import in_options
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.hub.choosing import PICKLES

MAX_SETTINGS = 4 << 20
MAX_TOKENIZER = 64 << 20
_TOKENIZERS = {"llama": "SentencePiece", "gpt2": "byte pairs", "bert": "WordPiece", "t5": "Unigram"}
_KIND = re.compile(rb'"model"\s*:\s*\{\s*"type"\s*:\s*"(BPE|WordPiece|WordLevel|Unigram)"')
OWN_HEAD = "the file's own lm_head.weight, though config.json ties it to the embedding"

_SIZES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "vocab_size": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length"),
}
"""Size -> its names in the configs of different families."""
_GGUF_SIZES = {
    "layers": "block_count",
    "hidden_size": "embedding_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "vocab_size": "vocab_size",
    "context": "context_length",
}

Formats = dict[str, dict[str, int]]


def describe(
    path: Path,
    drafter: Path | None = None,
    draft_vocab: int | Path | None = None,
    mmproj: Path | None = None,
) -> dict[str, Any]:
    """Return kind, architecture, engine, parameters, bytes, formats with counts, sizes and tokenizer of a model.

    Reads headers and configs, no weights, and imports neither torch nor transformers. ``drafter`` and ``draft_vocab``
    are those of ``LoadRequest``, ``mmproj`` is the file with the vision part, by default the one next to it.

    Returns:
        Plain values, and ``config`` with the sizes under Llama's names. For a model that cannot run, ``engine`` and
        ``config`` are None, ``problem`` has the reason and ``hint`` the remedy. ``formats`` has our names of formats,
        or the file's own name of a type that is decoded to one of them, as listed in ``decoded``. A model that takes
        images has ``images``, see ``vision_facts``. ``purpose`` is "text", "embedding" or "reranking".

    Raises:
        InputError, ModelFormatError: No model, invalid bytes, or a drafter of another model.
    """
    kind, where = kind_of(path)
    if kind == "gguf":
        return with_purpose(path, _gguf(where, drafter, draft_vocab, mmproj))
    return with_purpose(path, _folder(where, kind, drafter, draft_vocab, mmproj))


def main_format(formats: Mapping[str, Mapping[str, int]]) -> str | None:
    """Return the format with the most bytes."""
    return max(formats, key=lambda name: formats[name]["bytes"]) if formats else None


def low_bit_in(path: Path) -> str | None:
    """Return the low-bit format of most weights, or None for a float model."""
    found = main_format(describe(path)["formats"])
    return None if found in FLOATS else found


# --- GGUF files ---------------------------------------------------------------------------------------------------


def _gguf(path: Path, drafter: Path | None, draft_vocab: int | Path | None, mmproj: Path | None) -> dict[str, Any]:
    file = GgufParts(path)
    try:
        file.read_tensor_table()
    finally:
        file.close()
    formats: Formats = {}
    for tensor in file.tensors.values():
        kind = tensor.type
        _count(formats, kind.name if kind.decoded or not kind.format else kind.format, tensor.nbytes)
    decoded = sorted({(t.type.name, t.type.format) for t in file.tensors.values() if t.type.decoded})
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    sizes = {word: metadata.get(f"{architecture}.{key}") for word, key in _GGUF_SIZES.items()}
    embedding = file.tensors.get("token_embd.weight")
    if sizes["vocab_size"] is None and embedding is not None:
        sizes["vocab_size"] = embedding.shape[0]
    encoder = gguf_encoder(architecture) is not None
    checkpoint, problem = _opened(lambda: open_encoder(path) if encoder else open_checkpoint(path))
    decoder = None if encoder else checkpoint
    model = metadata.get("tokenizer.ggml.model")
    return {
        "kind": "gguf",
        "config": None if decoder is None else decoder.config,
        "architecture": architecture if isinstance(architecture, str) else None,
        "engine": "native" if checkpoint is not None else None,
        "parameters": sum(prod(tensor.shape) for tensor in file.tensors.values()),
        **_weights(formats),
        **({"decoded": [f"{name} as {low_bit}" for name, low_bit in decoded]} if decoded else {}),
        **{word: size if type(size) is int else None for word, size in sizes.items()},
        "tokenizer": _TOKENIZERS.get(str(model), str(model)) if model else None,
        "chat_template": isinstance(metadata.get("tokenizer.chat_template"), str),
        "license": metadata.get("general.license") if isinstance(metadata.get("general.license"), str) else None,
        **_drafting(decoder, path, drafter, draft_vocab),
        **_images(decoder, path, mmproj),
        "unknown_keys": list(getattr(checkpoint, "unknown_keys", [])),
        **problem,
    }


# --- folders ------------------------------------------------------------------------------------------------------


def _folder(
    folder: Path, kind: str, drafter: Path | None, draft_vocab: int | Path | None, mmproj: Path | None
) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    family = family_of(folder)
    encoder = encoder_type(config) is not None
    native = family in model_types() or encoder

    def opened() -> Checkpoint:
        if encoder:
            return open_encoder(folder)
        if config.get("quantization_config") is not None and not native:
            raise UnsupportedModelError(
                f"{folder}: the checkpoint is quantized already (quantization_config), in a format that is not read",
                hint="load it with transformers and put lookahead on it with ipex_lookahead.wrap(model)",
            )
        return open_checkpoint(folder) if native or family is None else open_other_family(folder)

    checkpoint, why = _opened(opened)
    decoder = None if encoder else checkpoint
    formats: Formats = {}
    parameters: int | None = 0
    decoded: set[str] = set()
    if checkpoint is not None:
        for name in checkpoint.names():
            info = checkpoint.info(name)
            if info.decoded_from:
                decoded.add(f"{info.decoded_from} as {info.format}")
            _count(formats, info.format, packed_bytes(info))
            parameters = (parameters or 0) + prod(info.shape)
    else:
        parameters = _survey(folder, formats)
    quantized = config.get("quantization_config")
    inner = config.get("text_config")
    sizes = {**config, **inner} if isinstance(inner, dict) else config
    found = {
        word: next((sizes[key] for key in keys if sizes.get(key) is not None), None) for word, keys in _SIZES.items()
    }
    before = getattr(checkpoint, "low_bit", {}).get("requantized_from")
    llama_sizes = {_SIZES[word][0]: size for word, size in found.items()}  # for families of transformers
    return {
        "kind": kind,
        "config": None if decoder is None else decoder.config or {"model_type": family, **llama_sizes},
        "architecture": family,
        "engine": None if checkpoint is None else "native" if native else "torch",
        "parameters": parameters if quantized is None or checkpoint is not None else None,
        **_weights(formats),
        **({"decoded": sorted(decoded)} if decoded else {}),
        **{word: size if type(size) is int else None for word, size in found.items()},
        **({"quantized_by": by} if (by := _quantizer(quantized, checkpoint)) else {}),
        **({"output_layer": OWN_HEAD} if getattr(checkpoint, "own_head", False) else {}),
        **_drafting(decoder, folder, drafter, draft_vocab),
        **_images(decoder, folder, mmproj),
        **({"requantized_from": before} if isinstance(before, str) and before else {}),
        "tokenizer": _tokenizer(folder),
        "chat_template": _has_chat_template(folder),
        "license": None,
        "unknown_keys": [],
        **why,
    }


def _survey(folder: Path, formats: Formats) -> int | None:
    """Count tensors by dtype, and pickles by size, of an unsupported folder; return the number of parameters."""
    ours = {dtype: name for name, dtype in FLOATS.items()}
    parameters = 0
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            file = SafetensorsFile(path)
            file.close()
            for tensor in file.tensors.values():
                _count(formats, ours.get(tensor.dtype, tensor.dtype.lower()), tensor.nbytes)
                parameters += prod(tensor.shape)
        elif path.suffix in PICKLES and not path.name.startswith("training_args"):
            _count(formats, "pickle", path.stat().st_size)
    return None if "pickle" in formats else parameters


def _quantizer(settings: object, checkpoint: Checkpoint | None) -> str:
    """Return ``gptq, 4 bits, groups of 128`` for a quantization_config, ipex-llm with its format, or ""."""
    if settings is None:
        return f"ipex-llm, {checkpoint.saved_as}" if isinstance(checkpoint, IpexLlmCheckpoint) else ""
    if not isinstance(settings, dict):
        return "another program"
    bits, group = settings.get("bits", settings.get("w_bit")), settings.get("group_size", settings.get("q_group_size"))
    parts = [str(settings.get("quant_method", "another program"))[:40]]
    return ", ".join(
        parts
        + ([f"{bits} bits"] if type(bits) is int else [])
        + ([f"groups of {group}"] if type(group) is int and group > 0 else [])
    )


def _tokenizer(folder: Path) -> str | None:
    if (folder / "tokenizer.json").is_file():
        with (folder / "tokenizer.json").open("rb") as file:
            kind = _KIND.search(file.read(MAX_TOKENIZER))
        name = kind[1].decode() if kind else "BPE"
        return f"{'byte pairs' if name == 'BPE' else name} (tokenizer.json)"
    return "SentencePiece (tokenizer.model)" if (folder / "tokenizer.model").exists() else None


def _has_chat_template(folder: Path) -> bool:
    if any((folder / f"chat_template.{kind}").exists() for kind in ("jinja", "json")):
        return True
    settings = folder / "tokenizer_config.json"
    return settings.exists() and read_json(settings, limit=MAX_SETTINGS).get("chat_template") is not None


# --- both ---------------------------------------------------------------------------------------------------------


def _opened(open_it: Callable[[], Checkpoint]) -> tuple[Checkpoint | None, dict[str, str]]:
    """Open, check and close a checkpoint; return it, or the problem and a hint."""
    try:
        checkpoint = open_it()
        checkpoint.close()
    except UnsupportedModelError as error:
        problem, hint = in_options(error)
        return None, {"problem": problem, "hint": hint}
    return checkpoint, {}


def _drafting(
    checkpoint: Checkpoint | None, path: Path, drafter: Path | None, vocab: int | Path | None
) -> dict[str, Any]:
    """Return facts of the drafting head, or of unused tensors for drafting."""
    if checkpoint is None or getattr(checkpoint, "spec", None) is None:  # a family of transformers
        return {}
    if (found := drafter_of(checkpoint, path, drafter)) is None:
        tensors = getattr(checkpoint, "read_past", 0)
        return {"drafting": f"{tensors} tensors of blocks for drafting (MTP), which are not used"} if tensors else {}
    head, where = found
    sizes = [packed_bytes(head.checkpoint.info(tensor.name)) for tensor in head.tensors()]
    unread: list[str] = []
    if head.checkpoint is not checkpoint:
        if head.kind not in IN_A_MODEL:  # the file should have the head only
            own = {tensor.name for tensor in head.tensors()}
            unread = [name for name in head.checkpoint.names() if name not in own]
        head.checkpoint.close()
    ids = ids_of(vocab, head.spec.vocab) if head.ids is None else head.ids
    facts: dict[str, Any] = {"kind": head.kind, "bytes": sum(sizes), "draft_vocab": len(ids)}
    if unread:
        facts["unread"] = unread
    return {"drafter": facts if where == path else {**facts, "file": str(where)}}


def _images(checkpoint: Checkpoint | None, path: Path, mmproj: Path | None) -> dict[str, Any]:
    """Return facts of the vision part of a model that takes images."""
    from ipex_lookahead.vision.facts import vision_facts

    takes = getattr(getattr(checkpoint, "spec", None), "images", None)
    return {} if takes is None else {"images": vision_facts(path, takes.hidden, mmproj)}


def _weights(formats: Formats) -> dict[str, Any]:
    return {"bytes": sum(entry["bytes"] for entry in formats.values()), "formats": formats}


def _count(formats: Formats, name: str, size: int) -> None:
    entry = formats.setdefault(name, {"tensors": 0, "bytes": 0})
    entry["tensors"] += 1
    entry["bytes"] += size


def license_of(path: Path, described: Mapping[str, Any]) -> str | None:
    """Return the license of the file itself, its model card, or the name of a license file; None if unknown."""
    if isinstance(found := described.get("license"), str):
        return found
    folder = path if path.is_dir() else path.parent
    if card := _read(folder / "README.md"):
        matched = re.match(r"---\n(?:.*\n)*?license:[ \t]*([^\n]+)\n", card)
        if matched:
            return matched[1].strip()
    try:
        names = sorted(os.listdir(folder)) if path.is_dir() else []
    except OSError:
        names = []
    return next((name for name in names if re.match(r"LICEN[SC]E", name, re.I)), None)


def _read(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as source:
            return source.read(20_000)
    except OSError:
        return ""
