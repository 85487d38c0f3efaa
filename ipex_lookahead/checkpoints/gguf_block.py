"""The block for drafting (MTP) of a GGUF file, read for a model that lies elsewhere.

llama.cpp's converter writes such files under names that begin with ``mtp-``: embedding, final norm, lm_head and that
block. Whole models that hold one will do too.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from ipex_lookahead.architectures import ModelSpec, family
from ipex_lookahead.checkpoints.gguf import GgufCheckpoint, refuse_unread_types
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.checkpoints.placed import head_tensors, in_old_place


class GgufBlock(GgufCheckpoint):
    """A checkpoint whose tensors are those of ``model.mtp``, and the embedding where the file has one.

    The file's metadata say too little of the block without the model's other tensors, so its parts and shapes are those
    that the model's own config implies.

    Attributes:
        blocks: blocks for drafting that the file says it holds.
        of: the sizes of the model that it is for, by the words of ``drafters.sizes_of``; without those that it does not
            say.
    """

    def __init__(self, path: str | PathLike[str], model: ModelSpec) -> None:
        """Open the file; reads no tensor yet. Raises ModelFormatError or UnsupportedModelError."""
        self._file = GgufParts(path)
        self.path, self.metadata = self._file.path, self._file.metadata
        self._kept, self._numbers = {}, {}
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
            self._tensors = {name: in_old_place(tensor, there) for name, tensor in wanted.items()}
        except BaseException:
            self._file.close()
            raise

    def names(self) -> Sequence[str]:
        """The tensors of the block, and the embedding where it is there."""
        return list(self._tensors)

    def check(self) -> None:
        """Raise ModelFormatError where a tensor of the block is missing or has another shape."""
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
