"""LoRA adapters in files: PEFT folders and GGUF files. Each gives the matrices of a loaded base model's description.

An adapter's tensors name matrices of the base model's files, so they are found by ``Tensor.hf`` or ``Tensor.gguf``, and
the rows of B are those that the reader of the base model takes from the whole matrix.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.adapter import MAX_RANK, Adapter, LowRank, adapter_refusals
from ipex_lookahead.architectures.spec import GatedDeltaNet, ModelSpec, Place, Tensor, named_tensors
from ipex_lookahead.checkpoints.adapter_base import CONFIG, AdapterFile, Floats, LowRankPair
from ipex_lookahead.checkpoints.adapter_folder import AdapterFolder
from ipex_lookahead.checkpoints.adapter_gguf import GgufAdapter, is_gguf_adapter
from ipex_lookahead.checkpoints.placed import row_order, run_of
from ipex_lookahead.errors import InputError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.paths import given_path

_MOST_LISTED = 64
"""Maximum number of GGUF files in a folder that are opened to find adapters."""
_NEVER = {
    ".experts.": "experts of a mixture take no adapter",
    "_exps.": "experts of a mixture take no adapter",
    "lm_head.": "the lm_head takes no adapter",
    "kv_b": "kv_b of latent attention takes no adapter, because it is split by head",
}
"""Parts of the names of matrices that a description may lack under this name -> why they are refused."""
_FACTORS_IN_GGUF = ("falcon_h1",)
"""Families with factors after matrices that their GGUF files hold in the matrices."""
_log = logging.getLogger(__name__)


def is_adapter(path: str | PathLike[str]) -> bool:
    """Return True for a folder with an adapter's config and no model, and for a GGUF file that declares an adapter."""
    found = given_path(path)
    if not found.is_dir():
        return found.is_file() and is_gguf_adapter(found)
    return (found / CONFIG).exists() and not holds_model(found)


def holds_model(folder: Path) -> bool:
    """Return True for a folder with the weights of a model."""
    names = os.listdir(folder)
    if any((one.startswith("model") and ".safetensors" in one) or one == "pytorch_model.bin" for one in names):
        return True
    return any(one.endswith(".gguf") and not is_gguf_adapter(folder / one) for one in names)


def open_adapter(path: str | PathLike[str]) -> AdapterFile:
    """Open a PEFT folder or a GGUF adapter.

    Raises:
        InputError: there is no adapter at ``path``.
        ModelFormatError: the adapter is invalid.
        UnsupportedModelError: it changes the model in a way that is not supported.
    """
    found = given_path(path)
    if found.name in (CONFIG, "adapter_model.safetensors") and found.is_file():
        found = found.parent
    if found.is_dir():
        if not (found / CONFIG).exists():
            files = sorted(name for name in os.listdir(found) if name.endswith(".gguf"))
            raise InputError(
                f"{found}: is not an adapter: it has no {CONFIG}",
                hint=f"give the file itself: {found / files[0]}" if files else "give a PEFT folder or a GGUF adapter",
            )
        return AdapterFolder(found)
    if not found.exists():
        raise InputError(f"{found}: no such adapter", hint="give a PEFT folder or a GGUF adapter")
    return GgufAdapter(found)


def read_adapter(path: str | PathLike[str], spec: ModelSpec, name: str, *, model: str = "") -> Adapter:
    """Read an adapter for a loaded base model.

    Args:
        path: a PEFT folder or a GGUF adapter.
        spec: the base model's description.
        name: name of the adapter in requests.
        model: the base model's path or name, for errors.

    Raises:
        InputError: there is no adapter at ``path``, or it is for another model.
        ModelFormatError: the adapter is invalid.
        UnsupportedModelError: it changes the model in a way that is not supported.
    """
    file = open_adapter(path)
    try:
        _check_factors(file, spec)
        file.check_family(spec)
        matrices = dict(_matrices(file, spec, model or f"this {spec.model_type} model"))
        for note in file.notes:
            _log.warning("%s: %s", file.path, note)
        return Adapter(name, matrices, file.path)
    finally:
        file.close()


def adapters_next_to(model: Path) -> list[Path]:
    """Return the adapters in a model's folder, or in the folder of a GGUF file."""
    folder = model if model.is_dir() else model.parent
    try:
        files = sorted(name for name in os.listdir(folder) if name.endswith(".gguf"))[:_MOST_LISTED]
    except OSError:
        return []
    found = [folder] if (folder / CONFIG).exists() and model.is_dir() else []
    return [*found, *(folder / name for name in files if folder / name != model and is_gguf_adapter(folder / name))]


def warn_of_adapters(model: Path) -> None:
    """Log which adapters next to a model are not applied."""
    for found in adapters_next_to(model):
        what = f"the folder also holds a LoRA adapter ({CONFIG})" if found == model else f"{found.name} is an adapter"
        level = logging.WARNING if found == model else logging.INFO
        _log.log(level, "%s: %s, which is not applied; --lora %s applies it", model, what, found)


def given_as_model(path: str | PathLike[str]) -> UnsupportedModelError:
    """Return the error for an adapter that was given as a model; it names the base model and the command."""
    try:
        file = open_adapter(path)
        base = file.base
        file.close()
    except (InputError, ModelFormatError, UnsupportedModelError):
        base = ""
    wants = f"; it changes {base}" if base else "; its files do not name the model that it changes"
    return UnsupportedModelError(
        f"{path}: is a LoRA adapter, not a model{wants}",
        hint=f"run the model with the adapter: ipex-lookahead chat -m {base or 'BASE_MODEL'} --lora {path}; in Python,"
        f" LLM({base or 'BASE_MODEL'!r}, adapters={{'NAME': {str(path)!r}}})",
    )


def _check_factors(file: AdapterFile, spec: ModelSpec) -> None:
    """Raise InputError if one of adapter and model has factors in its matrices and the other has not."""
    if spec.model_type not in _FACTORS_IN_GGUF:
        return
    has_factors = spec.embedding_multiplier != 1 or spec.logit_multiplier != 1  # a model from a folder
    if (file.kind == "GGUF") is has_factors:
        one, other = ("GGUF", "a folder") if has_factors else ("PEFT", "a GGUF file")
        raise InputError(
            f"{file.path}: a {one} adapter does not fit a {spec.model_type} model from {other}: GGUF files hold the"
            " model's factors in the matrices",
            hint="use the PEFT folder with the model's folder, or the GGUF adapter with its GGUF file",
        )


def _matrices(file: AdapterFile, spec: ModelSpec, model: str) -> Iterator[tuple[str, LowRank]]:
    """Yield the name and the change of each matrix; all shapes are checked before the first is read."""
    reasons, here = adapter_refusals(spec), _by_place(file, spec)
    reordered = _value_heads(spec) if file.tiled(spec) is not _is_tiled(spec) else {}
    pairs = file.pairs()
    changed: set[str] = set()
    for pair in pairs:
        _check(pair, here.get(pair.matrix, ()), file, spec, model, reasons)
        names = {tensor.name for tensor, _ in here[pair.matrix]}
        if twice := names & changed:
            raise pair.error(f"changes {twice.pop()}, which another tensor of the adapter changes too")
        changed |= names
    for pair in pairs:
        a, b = pair.read()
        for name, values in (("A", a), ("B", b)):
            if not np.isfinite(values).all():
                raise pair.error(f"{name} has a value that is NaN or infinite")
        for tensor, place in here[pair.matrix]:
            change = LowRank(a, _rows(tensor, place, b), pair.scale)
            yield tensor.name, reordered[tensor.name](change) if tensor.name in reordered else change


def _by_place(file: AdapterFile, spec: ModelSpec) -> Mapping[str, Sequence[tuple[Tensor, Place]]]:
    """Return the weights that each matrix of the base model's files holds, with their places."""
    found: dict[str, list[tuple[Tensor, Place]]] = {}
    for _, tensor in named_tensors(spec):
        for place in file.places(tensor, spec) if tensor.is_matrix else ():
            found.setdefault(place.name, []).append((tensor, place))
    return found


def _check(
    pair: LowRankPair,
    places: Sequence[tuple[Tensor, Place]],
    file: AdapterFile,
    spec: ModelSpec,
    model: str,
    reasons: Mapping[str, str],
) -> None:
    trained = f"the adapter was trained for {file.base}" if file.base else "the adapter was trained for another model"
    other = f"load {file.base or 'the model that it was trained for'}"
    if not places:
        if reason := next((why for part, why in _NEVER.items() if part in pair.matrix), ""):
            raise UnsupportedModelError(f"{file.path}: changes {pair.matrix}: {reason}")
        raise InputError(f"{file.path}: changes {pair.matrix}, which {model} does not have: {trained}", hint=other)
    if reason := next((reasons[tensor.name] for tensor, _ in places if tensor.name in reasons), ""):
        raise UnsupportedModelError(f"{file.path}: changes {pair.matrix}: {reason}")
    if len(pair.a) != 2 or len(pair.b) != 2 or pair.a[0] != pair.b[1] or not 1 <= pair.a[0] <= MAX_RANK:
        raise pair.error(
            f"A has shape {list(pair.a)} and B {list(pair.b)}; [rank, n_in] and [n_out, rank] are expected, with a rank"
            f" of 1 to {MAX_RANK}"
        )
    _, place = places[0]
    assert place.layout == "plain"  # others are refused
    if (whole := (pair.b[0], pair.a[1])) != place.shape:
        raise InputError(
            f"{file.path}: changes {pair.matrix} of shape {list(whole)}, which is {list(place.shape)} in {model}:"
            f" {trained}",
            hint=other,
        )


def _rows(tensor: Tensor, place: Place, b: Floats) -> Floats:
    """Return the rows of B for a weight that is a part of the file's matrix, in the weight's order."""
    if place.rows is None:
        rows = b
    else:
        run = run_of(tensor, place)
        rows = b[run.first : run.first + run.span][run.rows]
    order = row_order(tensor, place)
    if order is not None:
        in_file, rows = rows, np.empty_like(rows)
        rows[order] = in_file
    return np.ascontiguousarray(rows)


# ---- value heads of gated delta nets, which GGUF files of some families store in another order -----------------------


def _is_tiled(spec: ModelSpec) -> bool:
    return any(block.mixer.tiled for block in spec.layers if isinstance(block.mixer, GatedDeltaNet))


def _value_heads(spec: ModelSpec) -> dict[str, Callable[[LowRank], LowRank]]:
    """Return functions that move value heads from the other order to the model's, by the name of the matrix."""
    found: dict[str, Callable[[LowRank], LowRank]] = {}
    for block in spec.layers:
        mixer = block.mixer
        if not isinstance(mixer, GatedDeltaNet):
            continue
        each = mixer.heads // mixer.groups
        heads = np.arange(mixer.heads)
        order = heads.reshape(mixer.groups, each).T if mixer.tiled else heads.reshape(each, mixer.groups).T
        by_value = _expanded(order.reshape(-1), mixer.value_dim)
        keys = 2 * mixer.groups * mixer.key_dim
        rows: dict[str, Any] = {
            mixer.inputs.weight.name: np.concatenate([np.arange(keys), keys + by_value]),
            mixer.gate.weight.name: by_value,
            mixer.steps.weight.name: order.reshape(-1),
            mixer.beta.weight.name: order.reshape(-1),
        }
        found |= {name: _moved_rows(index) for name, index in rows.items()}
        found[mixer.out.weight.name] = _moved_columns(by_value)
    return found


def _expanded(heads: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    expanded: npt.NDArray[Any] = (heads[:, None] * size + np.arange(size)).reshape(-1)
    return expanded


def _moved_rows(index: npt.NDArray[Any]) -> Callable[[LowRank], LowRank]:
    return lambda change: LowRank(change.a, np.ascontiguousarray(change.b[index]), change.scale)


def _moved_columns(index: npt.NDArray[Any]) -> Callable[[LowRank], LowRank]:
    return lambda change: LowRank(np.ascontiguousarray(change.a[:, index]), change.b, change.scale)
