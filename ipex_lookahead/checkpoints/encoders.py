"""Checkpoints of text encoders: the readers of decoders' checkpoints, with the families and names of encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

from ipex_lookahead.architectures import ModelSpec, TextEncoder, encoder_families, encoder_type, gguf_encoder
from ipex_lookahead.architectures.hparams import Source, shown
from ipex_lookahead.architectures.keys import GgufKeys
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.architectures.text_encoder import LABELS
from ipex_lookahead.checkpoints import kind_of
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.config_json import by_keys, read_json
from ipex_lookahead.checkpoints.float_tensors import wrong_shape
from ipex_lookahead.checkpoints.gguf import GgufCheckpoint, refuse_unread_types
from ipex_lookahead.checkpoints.gguf_config import config_by
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.checkpoints.low_bit import LowBitCheckpoint
from ipex_lookahead.checkpoints.quantized import scheme_of, without_scheme
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.checkpoints.safetensors_reader import StoredTensor
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.safe_json import JsonObject


class EncoderFolder(SafetensorsCheckpoint):
    """A Hugging Face folder with a text encoder. ``family`` is a row of ``families/text_encoders.py``."""

    family: TextEncoder
    as_safetensors = "transformers.AutoModel.from_pretrained(folder).save_pretrained(new_folder)"

    def _read_config(self, path: Path) -> dict[str, Any]:
        raw = read_json(path)
        self.scheme = scheme_of(raw, path)
        self.family, config = checked_encoder(without_scheme(raw), path)
        return config

    def _described(self, names: Mapping[str, tuple[int, ...]]) -> ModelSpec:
        return _spec_of(self.family, self.config, self.path, names)

    def _renamed(self, name: str) -> str | None:
        return self.family.renamed(name)

    def info(self, name: str) -> TensorInfo:
        """Return shape and format of a tensor; errors have its name in the files."""
        tensor = self._weights.get(name)
        if tensor is not None and name not in self._infos:
            file, stored = self.stored(name)
            if stored.shape != tensor.hf.shape:
                raise wrong_shape(file, tensor, stored)
        return super().info(name)

    def warn_of_unused(self, model_type: str, names: Sequence[str]) -> None:
        """Log a warning as for decoders, without the parts of a classifier that is not one."""
        parts = tuple({name.partition(".")[0] + "." for name in self.family.classifier})
        super().warn_of_unused(model_type, [one for one in names if not str(self._renamed(one)).startswith(parts)])

    def _placed(self, tensor: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
        return self.family.placed(tensor, shapes)


class EncoderLowBit(LowBitCheckpoint):
    """A folder with a text encoder that :func:`ipex_lookahead.embedding.checkpoint.save_encoder` wrote."""

    family: TextEncoder

    def _checked_config(self, raw: JsonObject, path: Path) -> dict[str, Any]:
        self.family, config = checked_encoder(raw, path)
        return config

    def _spec_of(self, held: Mapping[str, StoredTensor]) -> ModelSpec:
        return _spec_of(self.family, self.config, self.path, {name: stored.shape for name, stored in held.items()})

    def _renamed(self, name: str) -> str | None:
        return name


class EncoderGguf(GgufCheckpoint):
    """A GGUF file with a text encoder."""

    family: TextEncoder

    def _described(self) -> tuple[ModelSpec, GgufKeys]:
        key = "general.architecture"
        name = gguf_encoder(architecture := self._file.scalar(key))
        if name is None:
            known = (one.GGUF for one in encoder_families().values())
            names = ", ".join(sorted(name for keys in known if keys is not None for name in keys.architectures))
            raise UnsupportedModelError(
                f"{self.path}: {key} is {shown(architecture)}, which is not a supported text encoder; supported are"
                f" {names}"
            )
        self._file.read_tensor_table()
        refuse_unread_types(self._file)
        self.family = encoder_families()[name]
        assert self.family.GGUF is not None  # gguf_encoder selects only families with GGUF keys
        keys = self.family.GGUF.of(self._file)
        self.config = config_by(self._file, _model_type(name), self.family.KEYS, keys)
        if self.config[LABELS]:
            self.config["architectures"] = [keys.class_name.replace("Model", "ForSequenceClassification")]
        return _spec_of(self.family, self.config, self.path), keys

    def _in_file(self, tensor: Tensor) -> Tensor:
        """Return the weight as rows of ``attn_qkv``, which some files have instead of q, k and v."""
        place = tensor.gguf
        for number, part in enumerate(("attn_q.", "attn_k.", "attn_v.")):
            name = place.name.replace(part, "attn_qkv.")
            if name != place.name and place.name not in self._file.tensors and name in self._file.tensors:
                rows = place.shape[0]
                whole = (3 * rows, *place.shape[1:])
                return replace(tensor, gguf=replace(place, name=name, shape=whole, rows=(number * rows, 1)))
        return self._in_up(tensor)

    def _in_up(self, tensor: Tensor) -> Tensor:
        """Return the weight as rows of ``ffn_up`` where that has the gate before them."""
        place, there = tensor.gguf, self._file.tensors
        for number, part in enumerate(("ffn_gate.", "ffn_up.")):
            name = place.name.replace(part, "ffn_up.")
            gate = place.name.replace(part, "ffn_gate.")
            fused = part in place.name and place.rows is None and gate not in there and name in there
            if fused and there[name].shape[0] == 2 * place.shape[0]:
                rows = place.shape[0]
                whole = (2 * rows, *place.shape[1:])
                return replace(tensor, gguf=replace(place, name=name, shape=whole, rows=(number * rows, 1)))
        return tensor

    def error(self, key: str, problem: str) -> ModelFormatError:
        """Return an error about a key of the metadata."""
        return self._file.error(key, self._file.offsets.get(key), problem)


def open_encoder(path: str | PathLike[str]) -> EncoderFolder | EncoderLowBit | EncoderGguf:
    """Open the checkpoint of a text encoder: a folder, a folder in low bits, or a GGUF file.

    Raises:
        InputError: if there is nothing to open.
        ModelFormatError: if the checkpoint is invalid.
        UnsupportedModelError: if it is not a supported text encoder.
    """
    kind, found = kind_of(path)
    if kind == "gguf":
        return EncoderGguf(found)
    return EncoderLowBit(found) if kind == "low_bit" else EncoderFolder(found)


def is_encoder(path: str | PathLike[str]) -> bool:
    """Return True if the config of a folder, or the architecture of a GGUF file, is a supported text encoder's.

    Raises as :func:`open_encoder` for damaged files.
    """
    kind, found = kind_of(path)
    if kind != "gguf":
        return encoder_type(read_json(found / "config.json")) is not None
    file = GgufParts(found)
    try:
        return gguf_encoder(file.metadata.get("general.architecture")) is not None
    finally:
        file.close()


def checked_encoder(raw: JsonObject, path: str | PathLike[str]) -> tuple[TextEncoder, dict[str, Any]]:
    """Return the family of a text encoder's ``config.json``, and the allow-listed part of the config.

    Raises:
        ModelFormatError: if a value is invalid.
        UnsupportedModelError: if the family or an option is not supported.
    """
    source = Source.of(raw, path)
    name = encoder_type(raw)
    if name is None:
        raise UnsupportedModelError(
            f"{path}: model type {shown(raw.get('model_type'))} is not a supported text encoder; supported are "
            f"{', '.join(sorted(encoder_families()))}",
            hint="gemma_embedding is a gemma3_text with use_bidirectional_attention",
        )
    family = encoder_families()[name]
    if family.respelled is not None:
        raw = JsonObject(_objects(family.respelled(raw, source)), raw._text, raw._number)
    family.KEYS.refuse(raw, source)
    return family, by_keys(raw, source, family.KEYS, _model_type(name))


def _objects(value: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping in which plain dicts are JSON objects, without places in a file."""
    return {
        key: JsonObject(_objects(one)) if isinstance(one, dict) and not isinstance(one, JsonObject) else one
        for key, one in value.items()
    }


def _model_type(name: str) -> str:
    return {"gemma_embedding": "gemma3_text", "jina_bert": "bert"}.get(name, name)


def _spec_of(
    family: TextEncoder, config: dict[str, Any], path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> ModelSpec:
    """Return the encoder that a config describes, as what the readers walk; ``shapes``: those of a folder's tensors.

    Raises UnsupportedModelError, with the path.
    """
    try:
        if shapes is not None:
            family.complete(config, shapes)
        return cast(ModelSpec, family.spec(config))  # the readers use what both kinds of specs have
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {error}", hint=error.hint) from None
