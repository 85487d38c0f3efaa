"""Files of causal language models that make vectors or scores: their differences from files of text models."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.architectures.spec import Place, Tensor
from ipex_lookahead.checkpoints import READERS, kind_of
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.gguf import GgufCheckpoint
from ipex_lookahead.checkpoints.placed import Run
from ipex_lookahead.checkpoints.safetensors import HEAD, SafetensorsCheckpoint
from ipex_lookahead.embedding.settings import labels
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats import dequantize
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.layout import FIRST, Layout
from ipex_lookahead.tokenization.text import TextTokenizer

Floats = npt.NDArray[np.float32]
MAX_LABELS = 1000
_CLASSIFIER = "cls.output.weight"
_SCORE = "score.weight"
_QWEN_END = "<|endoftext|>"

_log = logging.getLogger(__name__)


class CausalFolder(SafetensorsCheckpoint):
    """A folder of a causal model. Vectors and scores need no lm_head, so the files may lack it."""

    def _described(self, names: Mapping[str, tuple[int, ...]]) -> ModelSpec:
        if HEAD not in names and not (self.scheme is not None and self.scheme.parts(HEAD, names)):
            self.config["tie_word_embeddings"] = True
        return super()._described(names)

    def warn_of_unused(self, model_type: str, names: Sequence[str]) -> None:
        """Log a warning as for text models, without the classifier."""
        super().warn_of_unused(model_type, [name for name in names if name != _SCORE])

    def text_tokenizer(self) -> TextTokenizer | None:
        """Return the tokenizer with the special tokens that ``tokenizer.json`` adds."""
        return text_from_folder(self.path, self.config, keep_ends=True)

    def classifier(self) -> Floats | None:
        """Return the classifier of a ``ForSequenceClassification`` model, float32 [labels, hidden]."""
        if _SCORE not in self._tensors:
            return None
        found = np.asarray(dequantize(self.read(_SCORE)), np.float32)
        if found.ndim != 2 or found.shape[1] != self.config["hidden_size"]:
            raise ModelFormatError(
                self.path, _SCORE, None, f"has shape {list(found.shape)}; the model has {self.config['hidden_size']}"
            )
        return found


class CausalGguf(GgufCheckpoint):
    """A GGUF file of a causal model, perhaps with the classifier of a reranker."""

    def _check_names(self, unused: tuple[str, ...]) -> None:
        super()._check_names((*unused, _CLASSIFIER))

    def error_of(self, key: str, problem: str) -> ModelFormatError:
        """Return an error about a key of the metadata."""
        return self._file.error(key, self._file.offsets.get(key), problem)

    def classifier(self) -> Floats | None:
        """Return the classifier's weights, float32 [labels, hidden]; None if the file has none."""
        source = self._file.tensors.get(_CLASSIFIER)
        if source is None:
            return None
        hidden = int(self.config["hidden_size"])
        shape = (1,) * (2 - len(source.shape)) + tuple(source.shape)  # llama.cpp omits leading dimensions of 1
        if len(shape) != 2 or shape[1] != hidden or shape[0] > MAX_LABELS:
            raise source.error(source.entry, f"has shape {list(shape)}; it must be [labels, {hidden}]")
        place = Place(_CLASSIFIER, shape)
        weight = self._read(Tensor(_CLASSIFIER, shape, place, place), source, Run(0, shape[0], 1))
        return np.asarray(dequantize(weight), np.float32)

    def labels(self) -> Sequence[str]:
        """Return the names of the classifier's outputs."""
        return labels(self.metadata, self.error_of)

    def layout(self, tokenizer: TextTokenizer) -> Layout:
        """Return the layout of texts. Files that do not state whether an end token follows get one.

        Early files of Qwen3-Embedding have no ``add_eos_token``, and a vector without the end token ranks wrongly.
        """
        layout = tokenizer.layout
        if "tokenizer.ggml.add_eos_token" in self.metadata or layout.single[-1][0] != FIRST:
            return layout
        end = tokenizer.get_vocab().get(_QWEN_END) if self.config["model_type"] == "qwen3" else tokenizer.eos_token_id
        if end is None:
            return layout
        _log.info("%s: add_eos_token is missing; texts end with token %d", self.path, end)
        return Layout((*layout.single, (end, 0)), (*layout.pair, (end, 1)))


def open_causal(path: str | PathLike[str]) -> Checkpoint:
    """Open the checkpoint of a causal model. Raises as ``checkpoints.open_checkpoint``."""
    kind, found = kind_of(path)
    readers: dict[str, Any] = {**READERS, "gguf": CausalGguf, "safetensors": CausalFolder}
    opened: Checkpoint = readers[kind](Path(found))
    return opened


def yes_and_no(names: Sequence[str], outputs: int, path: Path) -> tuple[int, int | None]:
    """Return the outputs of a classifier that mean relevant and irrelevant; None: there is one output.

    Raises UnsupportedModelError for a classifier that does not rank.
    """
    if outputs == 1:
        return 0, None
    lower = [name.lower() for name in names]
    if len(lower) == outputs and "yes" in lower and "no" in lower:
        return lower.index("yes"), lower.index("no")
    raise UnsupportedModelError(
        f"{path}: a classifier with {outputs} labels ({', '.join(names[:4]) or 'without names'}) ranks no documents",
        hint="a reranker has one output, or the outputs yes and no",
    )
