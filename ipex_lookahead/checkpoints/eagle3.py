"""EAGLE-3 heads: folders of SpecForge, SGLang, AngelSlim, EAGLE and speculators, and GGUF files.

Most folders have a flat ``config.json`` of a Llama with additional keys and call the layer ``midlayer``. Folders of
speculators hold the layer's keys in ``transformer_layer_config`` and call it ``layers.0``. In folders ``d2t`` holds
differences of token ids, in GGUF files the token ids.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.architectures.eagle3 import (
    GGUF,
    GGUF_KEYS,
    HEAD,
    KEYS,
    LAYER_IDS,
    LAYERS,
    NESTED,
    REFUSED,
    check_fits,
    default_states,
    spec,
    wrong_id,
)
from ipex_lookahead.architectures.hparams import Source, one_of, shown
from ipex_lookahead.architectures.keys import GgufKeys, refuse
from ipex_lookahead.checkpoints.config_json import by_keys, inside, read_json
from ipex_lookahead.checkpoints.files import BinaryFile
from ipex_lookahead.checkpoints.gguf import GgufCheckpoint, refuse_unread_types
from ipex_lookahead.checkpoints.gguf_config import config_by
from ipex_lookahead.checkpoints.quantized import scheme_of, without_scheme
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files.safe_json import JsonObject

LAYER = "transformer_layer_config"
"""Key of the layer's config in folders of speculators."""
MAP = "d2t"
"""Tensor that maps outputs of the lm_head to tokens; in folders the difference between token id and output index."""
_OTHER_WAY = "t2d"
"""Mask of the tokens that the lm_head has; it follows from ``d2t`` and is ignored."""
FC = "fc.weight"
"""Matrix applied to hidden states; it has the same name in folders and GGUF files."""
_MIDLAYER = "midlayer."
_INTEGERS = {"I64": np.int64, "I32": np.int32}


def is_eagle3(raw: JsonObject) -> bool:
    """Return True if a folder's config describes an EAGLE-3 head, by its class or by a smaller ``draft_vocab_size``."""
    if raw.get("speculators_model_type") is not None:
        return bool(raw["speculators_model_type"] == "eagle3")
    names = raw.get("architectures")
    named = isinstance(names, list) and any(isinstance(one, str) and "eagle3" in one.lower() for one in names)
    return named or "draft_vocab_size" in raw


def head_config(raw: JsonObject, path: str | PathLike[str], target_layers: int) -> dict[str, Any]:
    """Return the checked config of a head for ``architectures.eagle3.spec``.

    Args:
        raw: content of ``config.json``.
        path: path of ``config.json``.
        target_layers: number of layers of the target, which determines the default hidden states.

    Raises:
        ModelFormatError: if a value is invalid.
        UnsupportedModelError: if an option is not supported.
    """
    source = Source.of(raw, path)
    layer, layer_source = inside(raw, LAYER, source)[:2] if LAYER in raw else (raw, source)
    kind = one_of(*LAYERS)(layer_source, "model_type", layer.get("model_type") or LAYERS[0])
    keys = replace(KEYS, defaults={**KEYS.defaults, "head_dim": 128}) if kind == "qwen3" else KEYS  # transformers' own
    keys.refuse(layer, layer_source)
    config = by_keys(layer, layer_source, keys, kind)
    said = _of_head(raw, source)
    if (nested := raw.get(NESTED)) is not None:
        if not isinstance(nested, JsonObject):
            raise source.error(NESTED, f"is {shown(nested)}; it must be an object")
        inner = _of_head(nested, Source.of(nested, path, NESTED))
        if LAYER_IDS in inner:  # SpecForge and SGLang count outputs, vLLM's keys outside this object count inputs
            inner[LAYER_IDS] = tuple(one + 1 for one in inner[LAYER_IDS])
        said = {**inner, **said}
    if said.get("norm_before_fc") and said.get("fc_norm"):
        raise source.error("fc_norm", "is true, but norm_before_fc is true as well; only one of them is supported")
    ids = said.pop(LAYER_IDS, None)
    states = default_states(target_layers) if ids is None else tuple(sorted(ids))
    outputs = said.pop("draft_vocab_size", config["vocab_size"])
    if outputs > config["vocab_size"]:
        raise source.error("draft_vocab_size", f"is {outputs}; the vocabulary has {config['vocab_size']} tokens")
    return {**config, **said, "states": states, "outputs": outputs}


def _of_head(raw: JsonObject, source: Source) -> dict[str, Any]:
    """Return the checked keys that describe the head; null counts as absent."""
    refuse(raw, source, REFUSED)
    return {key: check(source, key, raw[key]) for key, check in HEAD.items() if raw.get(key) is not None}


class Eagle3Folder(SafetensorsCheckpoint):
    """A head in a folder, with the weights that it does not share with the model.

    Attributes:
        ids: int32 [outputs], the token of each output of its lm_head; None: all tokens in order.
    """

    ids: npt.NDArray[np.int32] | None = None
    as_safetensors = (
        'safetensors.torch.save_file(torch.load("pytorch_model.bin", weights_only=True), "model.safetensors")'
    )

    def __init__(self, path: str | PathLike[str], target: ModelSpec) -> None:
        """Open and validate a head for ``target``.

        Raises:
            ModelFormatError: if the folder is invalid.
            UnsupportedModelError: if the head is not supported.
            InputError: if the head does not fit the target.
        """
        self._target = target
        super().__init__(path)

    def _read_config(self, path: Path) -> dict[str, Any]:
        raw = read_json(path)
        self.scheme = scheme_of(raw, path)
        return head_config(without_scheme(raw), path, len(self._target.layers))

    def _described(self, names: Collection[str]) -> ModelSpec:
        target, config = self._target, self.config
        config["tie_word_embeddings"] = False
        self.ids = self._read_ids()
        for name in (MAP, _OTHER_WAY):
            self._tensors.pop(name, None)
        first = _MIDLAYER if any(name.startswith(_MIDLAYER) for name in names) else ""
        if not self._is_there(FC, names):
            raise ModelFormatError(self.path, FC, None, "there is no tensor of this name")
        width = len(config["states"]) * target.hidden
        if FC in self._tensors:  # the shape of a quantized matrix is checked when it is read
            width = (self._tensors[FC][1].shape or (0,))[-1]
        check_fits(config, target, width, self.path)
        return spec(config, target, lambda tensor: self._is_there(tensor.hf.name, names), first=first)

    def _read_ids(self) -> npt.NDArray[np.int32] | None:
        """Read and check ``d2t``; raise ModelFormatError if it is invalid."""
        outputs, vocab = self.config["outputs"], self.config["vocab_size"]
        if MAP not in self._tensors:
            if outputs != vocab:
                raise ModelFormatError(
                    self.path, MAP, None, f"is missing; it maps the lm_head's {outputs} outputs to tokens"
                )
            return None
        file, stored = self._tensors[MAP]
        if stored.dtype not in _INTEGERS or stored.shape != (outputs,):
            raise ModelFormatError(
                file.path, MAP, stored.entry,
                f"is {stored.dtype} {list(stored.shape)}; it must be I64 [{outputs}], one per output of the lm_head",
            )  # fmt: skip
        values = _integers(file.file, stored.offset, outputs, stored.dtype)
        with np.errstate(over="ignore"):
            ids = values.astype(np.int64) + np.arange(outputs)
        return _checked(ids, vocab, file.file, stored.offset, values.itemsize)


class Eagle3Gguf(GgufCheckpoint):
    """A head in a GGUF file, see :class:`Eagle3Folder`."""

    ids: npt.NDArray[np.int32] | None = None

    def __init__(self, path: str | PathLike[str], target: ModelSpec) -> None:
        """Open and validate a head for ``target``. Raises as :class:`Eagle3Folder`."""
        self._target = target
        super().__init__(path)

    def _described(self) -> tuple[ModelSpec, GgufKeys]:
        file, target = self._file, self._target
        file.read_tensor_table()
        found = file.tensors.pop(MAP, None)
        refuse_unread_types(file)
        keys = GGUF
        if "token_embd.weight" not in file.tensors and "eagle3.vocab_size" not in file.metadata:
            keys = replace(keys, constants={"vocab_size": target.vocab})
        self.config = config = config_by(file, "eagle3", GGUF_KEYS, keys)
        for name in ("states", "target_hidden_size"):
            if name not in config:
                raise file.error(f"eagle3.{GGUF.used[name]}", None, "is missing")
        config["outputs"] = config["vocab_size"]
        if found is not None:
            if found.type.name not in _INTEGERS or len(found.shape) != 1 or found.shape[0] > config["vocab_size"]:
                raise found.error(
                    found.entry,
                    f"is {found.type.name} {list(found.shape)}; it must be I64, at most {config['vocab_size']}",
                )
            config["outputs"] = found.shape[0]
            values = _integers(found.file, found.offset, found.shape[0], found.type.name)
            self.ids = _checked(
                values.astype(np.int64), config["vocab_size"], found.file, found.offset, values.itemsize
            )
        if FC not in file.tensors:
            raise file.error(FC, None, "is missing from the file")
        check_fits(config, target, file.tensors[FC].shape[-1], self.path)
        return spec(config, target, lambda tensor: tensor.gguf.name in file.tensors, pairs=True), keys


def _integers(file: BinaryFile, offset: int, count: int, kind: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = np.empty(count, _INTEGERS[kind])
    file.read_into(offset, values, MAP)
    return values


def _checked(ids: npt.NDArray[np.int64], vocab: int, file: BinaryFile, offset: int, size: int) -> npt.NDArray[np.int32]:
    """Return the tokens of outputs, read from ``offset``, checked. Raises ModelFormatError."""
    if (wrong := wrong_id(ids, vocab)) is not None:
        at, problem = wrong
        raise ModelFormatError(file.path, MAP, offset + at * size, problem)
    return ids.astype(np.int32)
