"""Other families' ``config.json`` on its way to transformers: cleaned of what would import code, numbers bounded.

transformers believes every number: a hundred thousand layers are built one by one, a hundred million labels are listed
before anything else. What a config may want is therefore measured by the tensors that are there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_lookahead.checkpoints import Checkpoint, open_other_family
from ipex_lookahead.checkpoints.low_bit import MARKER
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError

_DROPPED = ("auto_map", "custom_pipelines", "attn_implementation", "experts_implementation", MARKER)
"""Keys that make transformers import code or choose kernels, and our own. They go wherever they stand."""

_COUNTS = re.compile(r"(^n_|^num_|_num$|^depth$)")
"""Names of what transformers loops over: layers, heads, experts, labels, stages, ..."""
_NO_COUNTS = re.compile(r"(positions|embeddings|tokens|ctx|return_sequences|beams)")
"""Names of that form that only give a length, ``n_positions``: what is made of them is bounded when it is made."""
_WHOLE = 1 << 53
"""Beyond this a number is no size of anything, and Python's integers would go on for ever."""
_MOST = 1 << 16
"""Of anything that is counted, where the tensors are not known."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is in a checkpoint.

    Attributes:
        tensors: how many.
        elements: of all of them together.
        longest: the largest dimension.
    """

    tensors: int
    elements: int
    longest: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Extent:
        """Read off the header."""
        shapes = [checkpoint.info(name).shape for name in checkpoint.names()]
        longest = max((max(shape, default=1) for shape in shapes), default=1)
        return cls(len(shapes), sum(math.prod(shape) for shape in shapes), longest)

    @classmethod
    def of_folder(cls, path: Path) -> Extent:
        """Of a folder of another family. Raises ModelFormatError where a header is damaged."""
        checkpoint = open_other_family(path)
        try:
            return cls.of(checkpoint)
        finally:
            checkpoint.close()


def foreign_config(raw: Mapping[str, Any], path: Path, extent: Extent | None = None) -> tuple[Any, dict[str, Any]]:
    """A config that only transformers knows, without the keys that would make it import code.

    Args:
        raw: what ``config.json`` holds.
        path: the checkpoint's folder.
        extent: what the checkpoint holds; None where nothing will be built from the config.

    Returns:
        transformers' config, and the plain values it was made of.

    Raises:
        ModelFormatError: a number that the tensors contradict, or values that the family's config refuses.
        UnsupportedModelError: transformers does not know the family, or the checkpoint is quantised by another library.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    file = path / "config.json"
    if raw.get("quantization_config") is not None:
        raise UnsupportedModelError(
            f"{path}: the checkpoint is quantised already (quantization_config), in a format that is not read",
            hint="load it with transformers and put lookahead on it with ipex_lookahead.wrap(model)",
        )
    plain = _cleaned(raw)
    _check_numbers(plain, file, extent, "")
    family = plain["model_type"]
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
    except Exception as error:  # whatever the code of any family makes of values that it does not expect
        raise ModelFormatError(file, "values", None, f"are refused by transformers' {family}: {said(error)}") from None
    return config, plain


def said(error: BaseException) -> str:
    """The first line of what a library said, 200 characters at most; its kind where it said nothing that helps.

    Of an error of huggingface_hub's checks of configs, that is what the failed check said.
    """
    if type(error).__name__.startswith("StrictDataclass") and error.__cause__ is not None:
        error = error.__cause__
    first = (str(error).strip().splitlines() or [""])[0][:200]
    known = isinstance(error, (ValueError, RuntimeError, OSError))
    return first if first and known else f"{type(error).__name__}: {first}".rstrip(": ")


def _cleaned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what would import code or choose kernels, at every depth."""
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
    """Raise ModelFormatError for a count beyond what the tensors can hold, and for numbers that are no size."""
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
