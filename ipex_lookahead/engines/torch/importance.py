"""How much each input of a model's matrices matters: sums of squares over a text, as llama.cpp's imatrix has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ipex_lookahead.architectures.spec import Experts, ModelSpec
from ipex_lookahead.engines.machine import check_threads
from ipex_lookahead.engines.torch.device import torch_threads
from ipex_lookahead.errors import EngineError, InputError, UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Importance:
    """What a text says of a model's inputs.

    Attributes:
        sums: name of a GGUF tensor -> float64 [n_in], sums over tokens of the squares of its inputs.
        tokens: how many tokens there were.
    """

    sums: dict[str, npt.NDArray[np.float64]]
    tokens: int


def check_measurable(spec: ModelSpec) -> None:
    """Raise UnsupportedModelError for a mixture: transformers has its experts in one tensor, which is no layer."""
    if any(isinstance(block.mlp, Experts) for block in spec.layers):
        raise UnsupportedModelError(
            "a mixture of experts has no layers whose inputs could be measured",
            hint="llama-imatrix makes an importance matrix of it, which --imatrix reads",
        )


def measure_importance(
    model: Any,
    spec: ModelSpec,
    ids: Sequence[int],
    *,
    window: int = 512,
    threads: int | None = None,
    progress: Callable[[], None] | None = None,
) -> Importance:
    """Run a text through a model and add up the squares of the inputs of all of its matrices, in float64.

    Args:
        model: transformers' model of ``spec``, as the torch engine has it.
        spec: the same model in our words.
        ids: the text.
        window: tokens that are run at a time; each window starts afresh.
        threads: of torch; None = as it is set.
        progress: called after each window.

    Raises:
        InputError: there is no token, or ``window`` is below 1.
        UnsupportedModelError: see :func:`check_measurable`.
        EngineError: sums are not finite.
    """
    check_measurable(spec)
    if not ids or window < 1:
        raise InputError(f"measuring takes a token or more in windows of 1 or more, not {len(ids)} in {window}")
    sums: dict[str, torch.Tensor] = {}
    with (
        torch.no_grad(),
        torch_threads(None if threads is None else check_threads(threads)),
        _hooked(model, spec, sums),
    ):
        for start in range(0, len(ids), window):
            part = torch.tensor([list(ids[start : start + window])], device=model.device)
            hidden = model.base_model(input_ids=part, use_cache=False).last_hidden_state
            _add(sums, spec.head_weight.gguf.name, hidden)  # without the head's products, which nobody reads
            if progress is not None:
                progress()
    found = {name: total.cpu().numpy() for name, total in sums.items()}
    for name, total in found.items():
        if not np.isfinite(total).all():
            raise EngineError(f"the inputs of {name} are not all finite numbers, so that nothing follows from them")
    return Importance(found, len(ids))


@contextmanager
def _hooked(model: Any, spec: ModelSpec, sums: dict[str, torch.Tensor]) -> Iterator[None]:
    """While it lasts, every matrix adds the squares of what comes in."""
    outside = {*spec.kept(), spec.embedding.name, spec.head_weight.name}
    layers = {
        tensor.gguf.name: tensor.hf.name.removesuffix(".weight")
        for tensor in spec.tensors()
        if tensor.is_matrix and tensor.name not in outside
    }
    handles = []
    try:
        for name, layer in layers.items():
            hook = partial(_of_inputs, sums, name)
            handles.append(model.get_submodule(layer).register_forward_pre_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _of_inputs(sums: dict[str, torch.Tensor], name: str, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    _add(sums, name, inputs[0])


def _add(sums: dict[str, torch.Tensor], name: str, rows: torch.Tensor) -> None:
    squares = rows.reshape(-1, rows.shape[-1]).double().square().sum(dim=0)
    sums[name] = sums[name] + squares if name in sums else squares
