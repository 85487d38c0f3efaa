"""Hugging Face folders: ``config.json`` and safetensors in one file or in shards with an index.

Tensors are floats, or quantized by one of the schemes in ``quantized.py``.
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
    by_any_name,
    constant,
    fused_experts,
    head_tensors,
    in_blocks,
    stored_rows,
    tensors_by_name,
    transpose,
    transposed_experts,
    transposed_format,
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
"""Suffixes of tensors that old releases of transformers saved and that follow from the config."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors", re.ASCII)

_log = logging.getLogger(__name__)


class SafetensorsCheckpoint(Folder):
    """A folder with float or quantized weights.

    Attributes:
        scheme: quantization scheme; None for float weights and families with a format of their own.
        read_past: number of ignored tensors that belong to MTP blocks.
        own_head: True if the config ties the lm_head to the embedding but the files have a different lm_head, which is
            used.
    """

    spec: ModelSpec
    scheme: Scheme | None = None
    own_head: bool = False
    read_past: int = 0
    as_safetensors = "transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
    """Python expression that converts pickles to safetensors, for a hint."""

    def __init__(self, path: str | PathLike[str], *, other_family: bool = False) -> None:
        """Open and validate the config, the index and every header, without reading tensors.

        With ``other_family``, for families that only transformers supports, ``config`` and ``generation_config`` stay
        empty, and tensors may be of any kind. Raises ModelFormatError or UnsupportedModelError.
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
            raise ModelFormatError(self.path, "tensors", None, "the checkpoint has no tensors")

    def _described(self, names: Mapping[str, tuple[int, ...]]) -> ModelSpec:
        """Return the spec of the model that the config and the tensors' names describe."""
        said = self.config["tie_word_embeddings"]
        if said is not False:
            self.config["tie_word_embeddings"] = not self._has_own_head(names)
            self.own_head = said is True and not self.config["tie_word_embeddings"]
        return with_mtp(
            spec_for(self.config, file=self.path),
            lambda tensor: self._is_there(self._placed(tensor, names).hf.name, names),
        )

    def _place(self) -> None:
        """Find the model's weights among the tensors, by the names in its spec."""
        names = {self._renamed(name) or "": stored.shape for name, (_, stored) in self._tensors.items()}
        self.spec = self._described(names)
        every = {**tensors_by_name(self.spec), **head_tensors(self.spec)}
        self._weights = {name: self._placed(tensor, names) for name, tensor in every.items()}
        wanted = {one.hf.name: len(one.hf.shape) for one in self._weights.values() if one.constant is None}
        bytes_of = {tensor.hf.name: tensor for tensor in self._weights.values() if tensor.hf.layout == "mxfp4"}
        tokens = {tensor.hf.name for tensor in self._weights.values() if tensor.hf.layout == "whole"}
        bytes_of |= {scales_name(tensor): tensor for tensor in bytes_of.values()}
        parts_of = self._parts(wanted, names)
        parts = {name for parts in parts_of.values() for name in parts.values()}
        found: dict[str, tuple[SafetensorsFile, StoredTensor]] = {}
        scaled = scaled_names(self._tensors)
        unused: list[str] = []
        for in_file, (file, tensor) in self._tensors.items():
            if (name := self._renamed(in_file)) is None:
                continue
            if name in found:
                raise ModelFormatError(file.path, in_file, tensor.entry, f"is also stored under another name of {name}")
            if name not in bytes_of and name not in parts:
                past = name.startswith(self.spec.read_past)  # may hold all experts in one tensor
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

    def _renamed(self, name: str) -> str | None:
        """Return the spec's name of a tensor in the files; None if it does not belong to the model."""
        return renamed(name)

    def _placed(self, tensor: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
        """Return the weight with its place in a folder that has tensors with these names and shapes."""
        return transposed_experts(fused_experts(in_blocks(by_any_name(tensor, shapes), shapes), shapes), shapes)

    def _is_there(self, name: str, names: Collection[str]) -> bool:
        return name in names or (self.scheme is not None and bool(self.scheme.parts(name, names)))

    def _has_own_head(self, names: Collection[str]) -> bool:
        """Return True if the files hold an lm_head that differs from the embedding, whatever the config states.

        This follows transformers 5, which then uses the file's lm_head. A quantized lm_head counts as different.
        """
        if self.scheme is not None and self.scheme.parts(HEAD, names):
            return True
        stored = {renamed(name): found for name, found in self._tensors.items()}
        if HEAD not in stored or EMBEDDING not in stored:
            return HEAD in stored
        return not same_values(stored[HEAD], stored[EMBEDDING])

    def _parts(self, wanted: Mapping[str, int], names: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the tensors of each quantized matrix, by the name of the float matrix."""
        if self.scheme is None:
            return {}
        found = {name: self.scheme.parts(name, names) for name, dimensions in wanted.items() if dimensions > 1}
        return {name: parts for name, parts in found.items() if parts}

    def _open_layers(self, scheme: Scheme) -> None:
        """Check the tensors of quantized matrices against each other, and choose formats for their values."""
        for name, tensor in self._weights.items():
            if (layer := self._layers.get(tensor.hf.name)) is not None:
                self._infos[name] = self._transposed_info(scheme, tensor, layer)
        for (source, low_bit), count in Counter(
            (info.decoded_from, info.format) for info in self._infos.values() if info.decoded_from
        ).items():
            _log.warning("%s: %d matrices of %s (%s) are decoded to %s", self.path, count, scheme.name, source, low_bit)

    @staticmethod
    def _transposed_info(scheme: Scheme, tensor: Tensor, layer: Layer) -> TensorInfo:
        if tensor.hf.layout != "by_input":
            return scheme.info(tensor, layer)
        info = scheme.info(stored_rows(tensor, tensor.hf), layer)
        return TensorInfo(tensor.shape, transposed_format(info.format), decoded_from=info.decoded_from or info.format)

    def _is_zero_bias(self, name: str) -> bool:
        """Return True for a zero bias that a quantizer added to a layer without bias.

        Raises:
            UnsupportedModelError: if such a bias is not zero.
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
                raise ModelFormatError(path, name, tensor.entry, f"is in {other} as well")
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
            # Only plain names: a path could leave the folder, and another extension could select a format that runs
            # code.
            if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard) or ".." in shard:
                raise source.error(
                    name, f"is in {shown(shard)}; a shard must be a plain file name that ends in .safetensors"
                )
            if shard not in shards:
                if len(shards) == MAX_SHARDS:
                    raise source.error(name, f"is in shard {MAX_SHARDS + 1}; the maximum is {MAX_SHARDS}")
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
        """Return the tensors that are present, in the order of a step, then those that the model does not have.

        For other families, return the names in the files.
        """
        if not self._weights:
            return list(self._tensors)
        held = {*self._tensors, *self._layers}
        own = (tensor.name for tensor in self.spec.own_tensors())
        there = (name for name in own if self._weights[name].hf.name in held or self._is_constant(name))
        return [*there, *self._unused]

    def _is_constant(self, name: str) -> bool:
        return name in self._weights and self._weights[name].constant is not None

    def info(self, name: str) -> TensorInfo:
        if name in self._infos:
            return self._infos[name]
        if self._is_constant(name):
            return TensorInfo(self._weights[name].shape, "fp32")
        file, stored = self.stored(name)
        if name not in self._weights:
            return float_info(stored.dtype, stored.shape)
        tensor = self._weights[name]
        if tensor.hf.layout == "mxfp4":
            check_blocks(tensor, (file, stored), self.stored(scales_name(tensor)))
            return TensorInfo(tensor.shape, "mxfp4")
        if stored.shape == tensor.hf.shape:
            return float_info(stored.dtype, tensor.shape)
        if tensor.shape == tensor.hf.shape:  # the whole tensor: the caller compares shapes
            return float_info(stored.dtype, stored.shape)
        raise wrong_shape(file, tensor, stored)

    def read(self, name: str) -> PackedWeight:
        """Read a tensor; takes no memory in addition to the result, or twice an expert's.

        Reading a quantized matrix temporarily takes several times its memory.

        Raises:
            ModelFormatError: if a value is NaN or infinite, or the file was truncated meanwhile.
        """
        if name in self._infos and self.scheme is not None:
            quantized = self._weights[name]
            layer = self._layers[quantized.hf.name]
            if quantized.hf.layout != "by_input":
                return self.scheme.read(quantized, layer, self._infos[name])
            rows = stored_rows(quantized, quantized.hf)
            return transpose(self.scheme.read(rows, layer, self.scheme.info(rows, layer)))
        if self._is_constant(name):
            return constant(self._weights[name])
        file, stored = self.stored(name)
        tensor = self._weights.get(name)
        if tensor is None:
            return read_float(file, name, stored)
        if tensor.hf.shape != tensor.shape:
            self.info(name)
        if tensor.hf.layout == "mxfp4":
            return read_blocks(tensor, (file, stored), self.stored(scales_name(tensor)))
        if tensor.hf.layout == "by_input":
            return transpose(read_placed(file, stored_rows(tensor, tensor.hf), stored))
        return read_placed(file, tensor, stored)

    def stored(self, name: str) -> tuple[SafetensorsFile, StoredTensor]:
        """Return a tensor's file and entry; raise ModelFormatError if there is none with this name."""
        in_file = self._weights[name].hf.name if name in self._weights else name
        if in_file not in self._tensors:
            also = self._weights[name].hf.also if name in self._weights else ()
            either = "".join(f" or the name {one}" for one in also)
            raise ModelFormatError(self.path, in_file, None, f"no tensor has this name{either}")
        return self._tensors[in_file]

    def close(self) -> None:
        for file in self._files:
            file.close()


def refuse_without_safetensors(folder: Path) -> None:
    """Raise an error if a folder has neither ``model.safetensors`` nor its index."""
    if not os.path.exists(folder / SINGLE) and not os.path.exists(folder / INDEX):
        raise _no_weights(folder, SafetensorsCheckpoint.as_safetensors)


def _no_weights(folder: Path, as_safetensors: str) -> Exception:
    """Return the error for a folder without readable weights; it names the files found instead."""
    present = sorted(os.listdir(folder))
    pickles = [name for name in present if name.endswith(_PICKLES) and not name.startswith("training_args")]
    if pickles:
        return UnsupportedModelError(
            f"{folder}: the weights are in {pickles[0]}, a pickle, which can run code when loaded and is therefore"
            f" refused; {SINGLE} or {INDEX} is needed",
            hint=f"convert it on an isolated machine: in Python, {as_safetensors}",
        )
    others = [name for name in present if name.endswith((".safetensors", ".gguf"))]
    return ModelFormatError(
        folder,
        SINGLE,
        None,
        f"is missing, and so is {INDEX}" + (f"; found {', '.join(others[:3])}" if others else ""),
        hint=f"give the GGUF file itself: {folder / others[0]}" if others and others[0].endswith(".gguf") else "",
    )
