"""Text encoders from files: the encoder with its weights, its classifier and dense layers, and what the files state."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.encoder import EncoderSpec
from ipex_lookahead.architectures.hparams import shown
from ipex_lookahead.architectures.text_encoder import DENSE, LABELS
from ipex_lookahead.checkpoints import TensorInfo, save
from ipex_lookahead.checkpoints.encoders import EncoderGguf, open_encoder
from ipex_lookahead.checkpoints.low_bit_save import Progress
from ipex_lookahead.engines.convert import Conversion
from ipex_lookahead.engines.native.encoder import NativeTextEncoder
from ipex_lookahead.engines.requantize import requantized
from ipex_lookahead.engines.weights import PlannedWeights, WeightPlan, check_low_bit, matrices
from ipex_lookahead.errors import InputError

Floats = npt.NDArray[np.float32]

POOLINGS = ("none", "mean", "cls", "last", "rank")
"""Names of ``pooling_type`` 0 to 4 in GGUF files."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A classifier, or dense layers, for pooled rows.

    Attributes:
        encoder: the encoder that has the weights.
        number: number of the chain.
        pooling: pooling before a classifier: "cls" or "mean"; "" for dense layers.
        outputs: number of labels, or width of the vectors.
    """

    encoder: NativeTextEncoder
    number: int
    pooling: str
    outputs: int

    def __call__(self, rows: Floats) -> Floats:
        """Return the outputs [n, outputs] for pooled rows [n, hidden]. A row's bits depend on that row alone."""
        found: Floats = self.encoder.chain(self.number, rows)
        return found


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """A text encoder and what its files state.

    Attributes:
        path: the folder or GGUF file.
        encoder: the encoder.
        config: the checked config with Hugging Face's keys, ``max_length``: the largest number of tokens of a text, and
            for GGUF files with one ``pooling``, a name of ``POOLINGS``.
        metadata: a GGUF file's metadata; empty for folders.
        head: the classifier of a cross-encoder, which returns logits; None: none.
        heads: dense layers after pooling in a GGUF file; None: none.
        tokenizer: the tokenizer; None: the files have none.
        low_bit: format of the matrices of the layers; None: that of the files.
    """

    path: Path
    encoder: NativeTextEncoder
    config: Mapping[str, Any]
    metadata: Mapping[str, Any]
    head: Chain | None = None
    heads: Chain | None = None
    tokenizer: Any = None
    low_bit: str | None = None


def open_text_encoder(
    path: str | PathLike[str],
    load_in_low_bit: str | None = None,
    threads: int | None = None,
    *,
    tokenizer: bool = True,
) -> LoadedEncoder:
    """Load a text encoder from a folder, a folder in low bits, or a GGUF file.

    Args:
        path: the folder or file.
        load_in_low_bit: format of the layers' matrices; None: that of the files. Tables, classifiers and dense layers
            keep the files' format.
        threads: number of threads; None: see ``default_threads``.
        tokenizer: True to read the tokenizer as well.

    Raises:
        InputError: there is nothing to open, or the format does not exist.
        ModelFormatError: the checkpoint is invalid.
        UnsupportedModelError: it is not a supported text encoder.
    """
    low_bit = None if load_in_low_bit is None else check_low_bit(load_in_low_bit)
    checkpoint = open_encoder(path)
    try:
        spec: Any = checkpoint.spec
        weights = PlannedWeights(checkpoint, spec, plan_of(spec, low_bit), threads)
        encoder = NativeTextEncoder(spec, weights.read, threads=threads)
        made = checkpoint.text_tokenizer() if tokenizer else None
        config = {**checkpoint.config, "max_length": longest(spec, checkpoint.config)}
        metadata = checkpoint.metadata if isinstance(checkpoint, EncoderGguf) else {}
        if (pooling := _pooling(checkpoint)) is not None:
            config["pooling"] = pooling
        labels, dense = config[LABELS], config[DENSE]
        pooled = config.get("classifier_pooling", "cls")
        return LoadedEncoder(
            checkpoint.path,
            encoder,
            config,
            metadata,
            Chain(encoder, 0, pooled, labels) if labels else None,
            Chain(encoder, int(bool(labels)), "", dense[-1][1]) if dense else None,
            made,
            low_bit,
        )
    finally:
        checkpoint.close()


def format_of(path: str | PathLike[str]) -> str:
    """Return the format of most matrices of a text encoder's layers. Raises as :func:`open_text_encoder`."""
    checkpoint = open_encoder(path)
    try:
        return _most_common(
            {tensor.name: checkpoint.info(tensor.name) for tensor in checkpoint.spec.tensors()}, checkpoint
        )
    finally:
        checkpoint.close()


def _most_common(infos: Mapping[str, TensorInfo], checkpoint: Any) -> str:
    kept = {*checkpoint.spec.kept()}
    formats = Counter(info.format for name, info in infos.items() if len(info.shape) == 2 and name not in kept)
    return formats.most_common(1)[0][0]


def plan_of(spec: EncoderSpec, low_bit: str | None, group_size: int = 32) -> WeightPlan:
    """Return the formats of an encoder's matrices."""
    model: Any = spec
    assert spec.embedding is not None  # text encoders have a table of tokens
    plan = WeightPlan(low_bit, group_size, head="", embedding=spec.embedding.name, label=low_bit or "")
    return plan.over(matrices(model))


def longest(spec: EncoderSpec, config: Mapping[str, Any]) -> int:
    """Return the largest number of tokens of a text."""
    return int(config["max_position_embeddings"] if spec.positions is None else spec.positions.shape[0])


def _pooling(checkpoint: Any) -> str | None:
    """Return the pooling that a GGUF file states; raise ModelFormatError for one that does not exist."""
    if not isinstance(checkpoint, EncoderGguf):
        return None
    key = f"{checkpoint.metadata['general.architecture']}.pooling_type"
    kind = checkpoint.metadata.get(key)
    if kind is None:
        return None
    if not isinstance(kind, int) or isinstance(kind, bool) or not 0 <= kind < len(POOLINGS):
        raise checkpoint.error(key, f"is {shown(kind)}; it must be a whole number from 0 to {len(POOLINGS) - 1}")
    return POOLINGS[kind]


# ---- saving ----------------------------------------------------------------------------------------------------------

_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
_MODULES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
_MODULE = re.compile(r"[0-9]_(Pooling|Dense|Normalize|LayerNorm)", re.ASCII)
_MODULE_FILES = ("config.json", "model.safetensors")
_MODES = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
_PACKAGE = "sentence_transformers.models"


def save_encoder(
    path: str | PathLike[str],
    folder: str | PathLike[str],
    low_bit: str | None = None,
    *,
    group_size: int = 32,
    threads: int | None = None,
    overwrite: bool = False,
    allow_requantize: bool = False,
    progress: Progress | None = None,
) -> str:
    """Write a text encoder as a folder in low bits that :func:`open_text_encoder` reads, and return its format.

    Files of sentence-transformers and of the tokenizer are copied from a folder. Of a GGUF file, the pooling is written
    as sentence-transformers has it.

    Args:
        path: the folder or GGUF file.
        folder: target; must not exist, be empty, or (with ``overwrite``) hold only an earlier save.
        low_bit: format of the layers' matrices; None: that of the files.
        group_size: number of weights that share a scale, 32 or 64, in formats that offer both.
        threads: number of threads that quantize.
        overwrite: replace an earlier save.
        allow_requantize: quantize weights that already are in another low-bit format.
        progress: see ``checkpoints.low_bit_save.Progress``.

    Raises:
        InputError: the folder holds something else, or the weights are in another low-bit format.
        ModelFormatError, UnsupportedModelError: as :func:`open_text_encoder`.
        SaveError: writing failed; the folder's former content is unchanged.
    """
    label = None if low_bit is None else check_low_bit(low_bit)
    checkpoint = open_encoder(path)
    try:
        spec: Any = checkpoint.spec
        plan = plan_of(spec, label, group_size)
        found = requantized(checkpoint, plan, kept=spec.kept())
        if found is not None and not allow_requantize:
            raise InputError(str(found), hint="use the float original of this model, or keep its format")
        made = Conversion(checkpoint, spec, spec.tensors(), plan, threads)
        infos = made.infos()
        label = label or _most_common(infos, checkpoint)
        config = {key: value for key, value in checkpoint.config.items() if key not in (LABELS, DENSE)}
        save(
            folder,
            config=config,
            generation_config={},
            infos=infos,
            weights=made.weights(),
            low_bit={
                "low_bit": label,
                "group_size": max(info.group_size for info in infos.values()),
                "mixed_precision": False,
                **({} if found is None else {"requantized_from": found.source}),
            },
            tokenizer=_Files(checkpoint),
            source=checkpoint.path,
            progress=progress,
            overwrite=overwrite,
        )
        return label
    finally:
        checkpoint.close()


class _Files:
    """What a saved encoder has in addition to its weights: tokenizer, pooling, prompts."""

    def __init__(self, checkpoint: Any) -> None:
        self._checkpoint = checkpoint

    def save_pretrained(self, folder: str) -> None:
        """Copy or write the files."""
        source, target = Path(self._checkpoint.path), Path(folder)
        if source.is_dir():
            for name in (*_TOKENIZER, *_MODULES):
                if (source / name).is_file():
                    shutil.copyfile(source / name, target / name)
            for module in sorted(one for one in source.iterdir() if one.is_dir() and _MODULE.fullmatch(one.name)):
                (target / module.name).mkdir()
                for name in _MODULE_FILES:
                    if (module / name).is_file():
                        shutil.copyfile(module / name, target / module.name / name)
            return
        if (tokenizer := self._checkpoint.text_tokenizer()) is not None:
            tokenizer.save_pretrained(folder)
        if (mode := _MODES.get(str(_pooling(self._checkpoint)))) is None:
            return
        (target / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": self._checkpoint.config["hidden_size"], f"pooling_mode_{mode}": True}
        (target / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"{_PACKAGE}.{kind}"}
            for i, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
        ]
        (target / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
