"""Checks of other families' ``config.json`` for transformers: keys that import code are removed, numbers bounded.

transformers trusts every number: it builds a hundred thousand layers one by one, and lists a hundred million labels.
Counts in a config are therefore bounded by the checkpoint's tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures import model_types
from ipex_lookahead.checkpoints import Checkpoint, open_other_family
from ipex_lookahead.checkpoints.low_bit import MARKER
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError, arg

_DROPPED = ("auto_map", "custom_pipelines", "attn_implementation", "experts_implementation", MARKER)
"""Keys that make transformers import code or choose kernels, and our own. They are removed at every depth."""

_COUNTS = re.compile(r"(^n_|^num_|_num$|^depth$)")
"""Names of counts that transformers loops over: layers, heads, experts, labels, stages, ..."""
_NO_COUNTS = re.compile(r"(positions|embeddings|tokens|ctx|return_sequences|beams)")
"""Names of that form that are lengths, such as ``n_positions``; allocations by them are bounded elsewhere."""
_WHOLE = 1 << 53
"""Largest integer in a config."""
_MOST = 1 << 16
"""Largest count if the tensors are not known."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a checkpoint.

    Attributes:
        tensors: number of tensors.
        elements: number of elements of all tensors.
        longest: the largest dimension.
    """

    tensors: int
    elements: int
    longest: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Extent:
        """Return the extent of an open checkpoint."""
        shapes = [checkpoint.info(name).shape for name in checkpoint.names()]
        longest = max((max(shape, default=1) for shape in shapes), default=1)
        return cls(len(shapes), sum(math.prod(shape) for shape in shapes), longest)

    @classmethod
    def of_folder(cls, path: Path) -> Extent:
        """Return the extent of a folder of another family. Raises ModelFormatError for a damaged header."""
        checkpoint = open_other_family(path)
        try:
            return cls.of(checkpoint)
        finally:
            checkpoint.close()


def foreign_config(raw: Mapping[str, Any], path: Path, extent: Extent | None = None) -> tuple[Any, dict[str, Any]]:
    """Make transformers' config of a family that only transformers knows, without keys that import code.

    Args:
        raw: the content of ``config.json``.
        path: the checkpoint's folder.
        extent: the checkpoint's size; None if no model is built from the config.

    Returns:
        transformers' config, and the values it was made of.

    Raises:
        ModelFormatError: a number that contradicts the tensors, or values that the family's config refuses.
        UnsupportedModelError: transformers does not know the family, or another library quantized the checkpoint.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    file = path / "config.json"
    if raw.get("quantization_config") is not None:
        raise UnsupportedModelError(
            f"{path}: the checkpoint is quantized already (quantization_config), in a format that is not read",
            hint="load it with transformers and put lookahead on it with ipex_lookahead.wrap(model)",
        )
    plain = _cleaned(raw)
    _check_numbers(plain, file, extent, "")
    family = plain["model_type"]
    if family in model_types() and family not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"{path}: model type {family!r} is not in transformers, so it does not run on the torch engine",
            hint=f"use {arg('engine', 'native')}",
        )
    if family not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"{path}: model type {family!r} is known neither to this package nor to transformers",
            hint=(
                "the checkpoint brings code for it, which is never run here; look for a conversion of the model to a"
                " family that transformers has (often named -hf)"
                if raw.get("auto_map")
                else "upgrade transformers, if a newer release has it"
            ),
        )
    try:
        config = AutoConfig.for_model(family, **{key: value for key, value in plain.items() if key != "model_type"})
    except Exception as error:  # the code of a family may raise anything for unexpected values
        raise ModelFormatError(file, "values", None, f"are refused by transformers' {family}: {said(error)}") from None
    return config, plain


def said(error: BaseException) -> str:
    """Return the first line of a library's message, at most 200 characters, or the exception's class.

    For errors of huggingface_hub's config checks, it is the message of the failed check.
    """
    if type(error).__name__.startswith("StrictDataclass") and error.__cause__ is not None:
        error = error.__cause__
    first = (str(error).strip().splitlines() or [""])[0][:200]
    known = isinstance(error, (ValueError, RuntimeError, OSError))
    return first if first and known else f"{type(error).__name__}: {first}".rstrip(": ")


def _cleaned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without keys that import code or choose kernels, at every depth."""
    return {
        key: _cleaned_value(value)
        for key, value in values.items()
        if key not in _DROPPED and not key.startswith("_") and not key.endswith("_internal")
    }


def _cleaned_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _cleaned(value)
    if isinstance(value, list):
        return [_cleaned_value(item) for item in value]
    return value


def _check_numbers(value: Any, file: Path, extent: Extent | None, name: str) -> None:
    """Raise ModelFormatError for a count beyond the tensors, and for numbers beyond any size."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_numbers(inner, file, extent, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner, file, extent, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > _WHOLE:
            raise ModelFormatError(file, name, None, f"is {str(value)[:40]}; no model has such a number")
        last = name.rpartition(".")[2]
        most = max(extent.tensors, extent.longest) if extent is not None else _MOST
        if value > most and _COUNTS.search(last) and not _NO_COUNTS.search(last):
            raise ModelFormatError(
                file,
                name,
                None,
                f"is {value}; it must be at most {most}"
                + (", the most that the checkpoint's tensors can make use of" if extent is not None else ""),
            )
