"""Hugging Face folders: ``config.json`` and safetensors, one file or shards with an index.

Tensors are floats, or quantised by one of the schemes in ``quantized.py``.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures import ModelSpec, family, spec_for
from ipex_lookahead.architectures.hparams import Source, shown
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import Folder, TensorInfo
from ipex_lookahead.checkpoints.config_json import checked_config, read_json
from ipex_lookahead.checkpoints.float_tensors import (
    READ,
    WHOLE,
    check_kind,
    float_info,
    read_float,
    read_placed,
    refuse_scales,
    same_values,
    scaled_names,
    wrong_shape,
)
from ipex_lookahead.checkpoints.generation_config import read_generation_config
from ipex_lookahead.checkpoints.mxfp4_blocks import check_blocks, read_blocks, scales_name
from ipex_lookahead.checkpoints.placed import (
    fused_experts,
    head_tensors,
    in_blocks,
    lying,
    tensors_by_name,
    turned,
    turned_format,
    with_mtp,
)
from ipex_lookahead.checkpoints.quantized import KEY, scheme_of, without_scheme
from ipex_lookahead.checkpoints.quantized_layers import Layer, Scheme
from ipex_lookahead.checkpoints.safetensors_reader import MAX_NAME, SafetensorsFile, StoredTensor
from ipex_lookahead.checkpoints.tensor_names import renamed
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.formats import dequantize
from ipex_lookahead.formats.base import PackedWeight

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 << 20
MAX_SHARDS = 512

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_UNUSED = (".rotary_emb.inv_freq", ".masked_bias", ".attn.bias")
"""Ends of the names of tensors that old releases of transformers saved and that follow from the config."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors", re.ASCII)

_log = logging.getLogger(__name__)


class SafetensorsCheckpoint(Folder):
    """A folder with float weights, or quantised ones. See :class:`ipex_lookahead.checkpoints.base.Checkpoint`.

    Attributes:
        scheme: how its matrices are quantised; None: they are floats, or the family has a way of its own.
        read_past: how many tensors are of blocks for drafting, and not of the decoder.
        own_head: the config has the embedding for the lm_head, and the files hold another one, which is used.
    """

    spec: ModelSpec
    scheme: Scheme | None = None
    own_head: bool = False
    read_past: int = 0
    as_safetensors = "transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
    """What makes safetensors of pickles, in Python."""

    def __init__(self, path: str | PathLike[str], *, other_family: bool = False) -> None:
        """Open and validate the config, the index and every header.

        ``other_family`` is for a family that only transformers knows: ``config`` and ``generation_config`` stay empty,
        and tensors may be of any kind. Raises ModelFormatError or UnsupportedModelError; reads no tensor yet.
        """
        self.path = Path(path)
        self.config: dict[str, Any] = {}
        self.generation_config: dict[str, Any] = {}
        if not other_family:
            self.config = self._read_config(self.path / "config.json")
            settings = self.path / "generation_config.json"
            self.generation_config = read_generation_config(settings, self.config["vocab_size"])
        self._files: list[SafetensorsFile] = []
        self._tensors: dict[str, tuple[SafetensorsFile, StoredTensor]] = {}
        self._weights: dict[str, Tensor] = {}
        self._layers: dict[str, Layer] = {}
        self._infos: dict[str, TensorInfo] = {}
        try:
            self._open()
            if not other_family:
                self._place()
        except BaseException:
            self.close()
            raise

    def _read_config(self, path: Path) -> dict[str, Any]:
        raw = read_json(path)
        model_type = raw.get("model_type")
        if isinstance(model_type, str) and KEY in family(model_type, file=str(path)).KEYS.used:
            return checked_config(raw, path)
        self.scheme = scheme_of(raw, path)
        return checked_config(without_scheme(raw), path)

    def _open(self) -> None:
        if os.path.exists(self.path / SINGLE):
            self._add(self.path / SINGLE)
        elif os.path.exists(self.path / INDEX):
            self._open_shards(self.path / INDEX)
        else:
            raise _no_weights(self.path, self.as_safetensors)
        if not self._tensors:
            raise ModelFormatError(self.path, "tensors", None, "the checkpoint holds no tensor")

    def _described(self, names: Collection[str]) -> ModelSpec:
        """The model that the config and the tensors' names describe."""
        said = self.config["tie_word_embeddings"]
        if said is not False:
            self.config["tie_word_embeddings"] = not self._has_own_head(names)
            self.own_head = said is True and not self.config["tie_word_embeddings"]
        return with_mtp(
            spec_for(self.config, file=self.path), lambda tensor: self._is_there(_placed(tensor, names).hf.name, names)
        )

    def _place(self) -> None:
        """Find the model's weights among the tensors, under the names that its spec knows them by."""
        names = {renamed(name) or "" for name in self._tensors}
        self.spec = self._described(names)
        every = {**tensors_by_name(self.spec), **head_tensors(self.spec)}
        self._weights = {name: _placed(tensor, names) for name, tensor in every.items()}
        wanted = {tensor.hf.name: len(tensor.hf.shape) for tensor in self._weights.values()}
        bytes_of = {tensor.hf.name: tensor for tensor in self._weights.values() if tensor.hf.layout == "mxfp4"}
        tokens = {tensor.hf.name for tensor in self._weights.values() if tensor.hf.layout == "whole"}
        bytes_of |= {scales_name(tensor): tensor for tensor in bytes_of.values()}
        parts_of = self._parts(wanted, names)
        parts = {name for parts in parts_of.values() for name in parts.values()}
        found: dict[str, tuple[SafetensorsFile, StoredTensor]] = {}
        scaled = scaled_names(self._tensors)
        unused: list[str] = []
        for in_file, (file, tensor) in self._tensors.items():
            if (name := renamed(in_file)) is None:
                continue
            if name in found:
                raise ModelFormatError(file.path, in_file, tensor.entry, f"is there under another name of {name} too")
            if name not in bytes_of and name not in parts:
                past = name.startswith(self.spec.read_past)  # all experts in one tensor, perhaps
                dimensions = 3 if past else wanted.get(name, 2)
                kinds = WHOLE if name in tokens else READ
                check_kind(
                    file, in_file, tensor, most_dimensions=max(2, dimensions), dtypes=kinds, number=dimensions == 0
                )
                refuse_scales(file, in_file, tensor, scaled)
            found[name] = (file, tensor)
            known_here = name in wanted or name in bytes_of or name in parts or name.startswith(self.spec.read_past)
            known_here = known_here or name.startswith(self.spec.unread)
            if not known_here and not name.endswith(_UNUSED) and name != HEAD:
                unused.append(in_file)
        self._tensors = found
        self.read_past = sum(name.startswith(self.spec.read_past) and name not in wanted for name in found)
        self._layers = {
            name: Layer({part: found[full] for part, full in parts.items()}) for name, parts in parts_of.items()
        }
        if self.scheme is not None:
            self._open_layers(self.scheme)
        self._unused = unused = [name for name in unused if not self._is_zero_bias(name)]
        self.warn_of_unused(self.spec.model_type, unused)

    def _is_there(self, name: str, names: Collection[str]) -> bool:
        return name in names or (self.scheme is not None and bool(self.scheme.parts(name, names)))

    def _has_own_head(self, names: Collection[str]) -> bool:
        """Whether the files hold an lm_head that is not the embedding, whatever the config says of it.

        As transformers 5 has it: where both are there and differ, the file's is the head. A quantised one differs.
        """
        if self.scheme is not None and self.scheme.parts(HEAD, names):
            return True
        stored = {renamed(name): found for name, found in self._tensors.items()}
        if HEAD not in stored or EMBEDDING not in stored:
            return HEAD in stored
        return not same_values(stored[HEAD], stored[EMBEDDING])

    def _parts(self, wanted: Mapping[str, int], names: Collection[str]) -> dict[str, dict[str, str]]:
        """The tensors of each quantised matrix, by the name that a float one would have."""
        if self.scheme is None:
            return {}
        found = {name: self.scheme.parts(name, names) for name, dimensions in wanted.items() if dimensions > 1}
        return {name: parts for name, parts in found.items() if parts}

    def _open_layers(self, scheme: Scheme) -> None:
        """Check the tensors of quantised matrices against each other, and find the formats that hold their values."""
        for name, tensor in self._weights.items():
            if (layer := self._layers.get(tensor.hf.name)) is not None:
                self._infos[name] = self._turned_info(scheme, tensor, layer)
        for (source, low_bit), count in Counter(
            (info.decoded_from, info.format) for info in self._infos.values() if info.decoded_from
        ).items():
            _log.warning(
                "%s: %d matrices of %s (%s) are decoded and kept in %s", self.path, count, scheme.name, source, low_bit
            )

    @staticmethod
    def _turned_info(scheme: Scheme, tensor: Tensor, layer: Layer) -> TensorInfo:
        if tensor.hf.layout != "turned":
            return scheme.info(tensor, layer)
        info = scheme.info(lying(tensor, tensor.hf), layer)
        return TensorInfo(tensor.shape, turned_format(info.format), decoded_from=info.decoded_from or info.format)

    def _is_zero_bias(self, name: str) -> bool:
        """Whether it is a bias of zeros that a quantiser has given a layer which has none in this model.

        Raises UnsupportedModelError for such a bias that is not zero.
        """
        if not name.endswith(".bias") or f"{name.removesuffix('.bias')}.weight" not in self._layers:
            return False
        file, stored = self._tensors[name]
        if dequantize(read_float(file, name, stored)).any():
            raise UnsupportedModelError(
                f"{file.path}: tensor {name} is not zero, but a {self.spec.model_type} model has no bias there"
            )
        return True

    def _add(self, path: Path) -> SafetensorsFile:
        file = SafetensorsFile(path)
        self._files.append(file)
        for name, tensor in file.tensors.items():
            if name in self._tensors:
                other = self._tensors[name][0].path.name
                raise ModelFormatError(path, name, tensor.entry, f"is in {other} too")
            self._tensors[name] = (file, tensor)
        return file

    def _open_shards(self, index: Path) -> None:
        raw = read_json(index, limit=MAX_INDEX_BYTES, max_depth=4, any_float=False)
        weight_map = raw.get("weight_map")
        if not isinstance(weight_map, JsonObject) or not weight_map:
            raise Source.of(raw, index).error("weight_map", "must be an object of tensor names and file names")
        source = Source.of(weight_map, index)
        shards: dict[str, SafetensorsFile] = {}
        for name, shard in weight_map.items():
            if not 0 < len(name) <= MAX_NAME:
                problem = f"names a tensor {shown(name)}: 1 to {MAX_NAME} characters"
                raise ModelFormatError(index, "weight_map", weight_map.at[name], problem)
            # A name only: a path could lead out of the folder, another extension to a format that runs code.
            if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard) or ".." in shard:
                raise source.error(
                    name, f"is in {shown(shard)}; a shard is a plain file name that ends in .safetensors"
                )
            if shard not in shards:
                if len(shards) == MAX_SHARDS:
                    raise source.error(name, f"is in shard {MAX_SHARDS + 1}; at most {MAX_SHARDS} are read")
                if not os.path.exists(self.path / shard):
                    raise source.error(
                        name,
                        f"is in {shard}, which is not in the folder",
                        hint="the checkpoint is incomplete: download it again",
                    )
                shards[shard] = self._add(self.path / shard)
            if name not in shards[shard].tensors:
                raise source.error(name, f"is not in {shard}")
        for name, (file, tensor) in self._tensors.items():
            if name not in weight_map:
                raise ModelFormatError(file.path, name, tensor.entry, f"is not listed in {INDEX}")

    def names(self) -> Sequence[str]:
        """Names of the tensors that are there, in the order of a step, then those that the model does not have.

        Of another family: as in the files.
        """
        if not self._weights:
            return list(self._tensors)
        held = {*self._tensors, *self._layers}
        own = (tensor.name for tensor in self.spec.own_tensors())
        return [*(name for name in own if self._weights[name].hf.name in held), *self._unused]

    def info(self, name: str) -> TensorInfo:
        """Shape and format of a tensor. Raises ModelFormatError if there is none of that name."""
        if name in self._infos:
            return self._infos[name]
        file, stored = self.stored(name)
        if name not in self._weights:
            return float_info(stored.dtype, stored.shape)
        tensor = self._weights[name]
        if tensor.hf.layout == "mxfp4":
            check_blocks(tensor, (file, stored), self.stored(scales_name(tensor)))
            return TensorInfo(tensor.shape, "mxfp4")
        if stored.shape == tensor.hf.shape:
            return float_info(stored.dtype, tensor.shape)
        if tensor.shape == tensor.hf.shape:  # all of a tensor: the caller compares
            return float_info(stored.dtype, stored.shape)
        raise wrong_shape(file, tensor, stored)

    def read(self, name: str) -> PackedWeight:
        """The tensor as it is in the file; takes the tensor's own memory and no more, or an expert's twice.

        A quantised matrix takes a few times its memory. Raises ModelFormatError for NaN and infinity, and if the file
        has been cut meanwhile.
        """
        if name in self._infos and self.scheme is not None:
            quantised = self._weights[name]
            layer = self._layers[quantised.hf.name]
            if quantised.hf.layout != "turned":
                return self.scheme.read(quantised, layer, self._infos[name])
            rows = lying(quantised, quantised.hf)
            return turned(self.scheme.read(rows, layer, self.scheme.info(rows, layer)))
        file, stored = self.stored(name)
        tensor = self._weights.get(name)
        if tensor is None:
            return read_float(file, name, stored)
        if tensor.hf.shape != tensor.shape:
            self.info(name)
        if tensor.hf.layout == "mxfp4":
            return read_blocks(tensor, (file, stored), self.stored(scales_name(tensor)))
        if tensor.hf.layout == "turned":
            return turned(read_placed(file, lying(tensor, tensor.hf), stored))
        return read_placed(file, tensor, stored)

    def stored(self, name: str) -> tuple[SafetensorsFile, StoredTensor]:
        """A tensor's file and entry. Raises ModelFormatError if there is none of that name."""
        in_file = self._weights[name].hf.name if name in self._weights else name
        if in_file not in self._tensors:
            raise ModelFormatError(self.path, in_file, None, "there is no tensor of this name")
        return self._tensors[in_file]

    def close(self) -> None:
        """Release the files. Tensors already read stay valid."""
        for file in self._files:
            file.close()


def _placed(tensor: Tensor, names: Collection[str]) -> Tensor:
    """The weight where a folder with tensors of these names has it."""
    return fused_experts(in_blocks(tensor, names), names)


def refuse_without_safetensors(folder: Path) -> None:
    """Raise the error of a folder that holds neither ``model.safetensors`` nor its index."""
    if not os.path.exists(folder / SINGLE) and not os.path.exists(folder / INDEX):
        raise _no_weights(folder, SafetensorsCheckpoint.as_safetensors)


def _no_weights(folder: Path, as_safetensors: str) -> Exception:
    """The error for a folder without weights that can be read; it names what lies there instead."""
    present = sorted(os.listdir(folder))
    pickles = [name for name in present if name.endswith(_PICKLES) and not name.startswith("training_args")]
    if pickles:
        return UnsupportedModelError(
            f"{folder}: the weights are in {pickles[0]}, a pickle, which can run code when it is read and is never "
            f"opened here; {SINGLE} or {INDEX} is needed",
            hint=f"convert it on a machine you can lose: in Python, {as_safetensors}",
        )
    others = [name for name in present if name.endswith((".safetensors", ".gguf"))]
    return ModelFormatError(
        folder,
        SINGLE,
        None,
        f"is missing, and so is {INDEX}" + (f"; found {', '.join(others[:3])}" if others else ""),
        hint=f"give the GGUF file itself: {folder / others[0]}" if others and others[0].endswith(".gguf") else "",
    )
