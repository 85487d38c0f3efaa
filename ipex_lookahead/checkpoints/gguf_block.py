"""The multi-token prediction (MTP) block of a GGUF file, read as a drafter for a model in another file.

llama.cpp's converter writes such files with names that begin with ``mtp-``: embedding, final norm, lm_head and the
block. Complete models that contain one work as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from ipex_lookahead.architectures import ModelSpec, family
from ipex_lookahead.checkpoints.gguf import GgufCheckpoint, refuse_unread_types
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.checkpoints.placed import head_tensors, with_old_names


class GgufBlock(GgufCheckpoint):
    """A checkpoint with the tensors of ``model.mtp`` and, if the file has one, the embedding.

    The file's metadata do not describe the block without the rest of the model, so its tensors and shapes follow from
    the model's own config.

    Attributes:
        blocks: number of MTP blocks according to the file.
        of: sizes of the model that the block was made for, as far as the file states them; keys as in
            ``drafters.sizes_of``.
    """

    def __init__(self, path: str | PathLike[str], model: ModelSpec) -> None:
        """Open the file without reading tensors. Raises ModelFormatError or UnsupportedModelError."""
        self._file = GgufParts(path)
        self.path, self.metadata = self._file.path, self._file.metadata
        self._stored_formats, self._numbers = {}, {}
        self.config, self.generation_config = {}, {}
        try:
            self._file.read_tensor_table()
            refuse_unread_types(self._file)
            there = self._file.tensors
            self.of = self._sizes(model)
            self.blocks = self._number_of("nextn_predict_layers") or 0
            wanted = head_tensors(model)
            if model.embedding.gguf.name in there:
                wanted[model.embedding.name] = model.embedding
            self.spec = model
            self._tensors = {name: with_old_names(tensor, there) for name, tensor in wanted.items()}
        except BaseException:
            self._file.close()
            raise

    def names(self) -> Sequence[str]:
        return list(self._tensors)

    def check(self) -> None:
        """Raise ModelFormatError if a tensor of the block is missing or has the wrong shape."""
        self._check_tensors()

    def _sizes(self, model: ModelSpec) -> dict[str, Any]:
        declared = family(model.model_type).GGUF
        architecture = self.metadata.get("general.architecture")
        ours = declared is not None and architecture in declared.architectures
        embedding = self._file.tensors.get(model.embedding.gguf.name)
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        vocab = len(tokens) if isinstance(tokens, list) else self._number_of("vocab_size")
        blocks, drafting = self._number_of("block_count"), self._number_of("nextn_predict_layers") or 0
        said = {
            "family": model.model_type if ours else architecture,
            "hidden size": self._number_of("embedding_length"),
            "vocabulary": vocab if embedding is None else embedding.shape[0],
            "number of layers": None if blocks is None else blocks - drafting,
        }
        return {word: value for word, value in said.items() if value is not None}

    def _number_of(self, key: str) -> int | None:
        value = self.metadata.get(f"{self.metadata.get('general.architecture')}.{key}")
        return value if type(value) is int else None
