"""The importance of each input of a model's matrices: sums of squares over a text, as in llama.cpp's imatrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from ipex_lookahead.architectures.spec import Experts, LatentAttention, ModelSpec, Recurrent
from ipex_lookahead.checkpoints import Checkpoint, open_checkpoint
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.engines.foreign import Extent, foreign_config
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.machine import check_threads
from ipex_lookahead.engines.torch.device import torch_threads
from ipex_lookahead.engines.torch.load import load, read_floats, sentences
from ipex_lookahead.errors import EngineError, InputError, UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Importance:
    """An importance matrix.

    Attributes:
        sums: name of a GGUF tensor -> float64 [n_in], sums over tokens of the squares of its inputs; of stacked experts
            [experts, n_in].
        counts: the same names -> int64 [1] or [experts], the number of tokens in each sum.
        tokens: number of tokens of the text.
    """

    sums: dict[str, npt.NDArray[np.float64]]
    counts: dict[str, npt.NDArray[np.int64]]
    tokens: int


def model_to_measure(path: Path, *, threads: int | None = None, text: bool = True) -> tuple[Any, ModelSpec, Any]:
    """Load a model for ``measure_importance``: transformers' model in float32, its spec, and with ``text`` a tokenizer.

    A model with recurrent states is loaded by transformers itself, since the torch engine does not support states.

    Raises:
        InputError: there is no tokenizer.
        UnsupportedModelError: the model has recurrent states, and its weights are in no folder of floats.
        LookaheadError: as the torch engine's ``load``.
    """
    request = LoadRequest(path, text=text, threads=threads, dtype="float32")
    checkpoint = open_checkpoint(path)
    try:
        spec = checkpoint.spec
        if any(isinstance(mixer, Recurrent) for mixer in spec.mixers):
            model = _stateful(checkpoint)
            return model, spec, request.tokenizer(checkpoint.text_tokenizer)[0]
    finally:
        checkpoint.close()
    loaded = load(request)
    return loaded.engine.model, spec, loaded.tokenizer


def _stateful(checkpoint: Checkpoint) -> Any:
    path = checkpoint.path
    if type(checkpoint) is not SafetensorsCheckpoint:
        raise UnsupportedModelError(
            f"{path}: layers that keep a state are measured by transformers, which reads none from this kind of file",
            hint="give the folder that Hugging Face has; or let llama-imatrix make a matrix, which --imatrix reads",
        )
    config, _ = foreign_config(read_json(path / "config.json"), path, Extent.of(checkpoint))
    with sentences(path, config.model_type):
        return read_floats(path, config, "AutoModelForCausalLM", torch.float32).eval()


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
        spec: the same model's description.
        ids: the text.
        window: number of tokens in a forward; each window starts with an empty cache.
        threads: number of torch's threads; None = torch's setting.
        progress: called after each window.

    Raises:
        InputError: there is no token, or ``window`` is below 1.
        UnsupportedModelError: a mixture in a release of transformers that has its experts in another way.
        EngineError: sums are not finite.
    """
    if not ids or window < 1:
        raise InputError(f"measuring takes a token or more in windows of 1 or more, not {len(ids)} in {window}")
    totals = _Totals()
    with (
        torch.no_grad(),
        torch_threads(None if threads is None else check_threads(threads)),
        _hooked(model, spec, totals),
    ):
        for start in range(0, len(ids), window):
            part = torch.tensor([list(ids[start : start + window])], device=model.device)
            hidden = model.base_model(input_ids=part, use_cache=False).last_hidden_state
            totals.add(spec.head_weight.gguf.name, hidden)  # without the head's products, which are not needed
            if progress is not None:
                progress()
    found = {name: squares.cpu().numpy() for name, squares in totals.squares.items()}
    for name, squares in found.items():
        if not np.isfinite(squares).all():
            raise EngineError(f"the inputs of {name} are not all finite numbers, so that nothing follows from them")
    return Importance(found, {name: np.array(count, np.int64) for name, count in totals.counts.items()}, len(ids))


class _Totals:
    """Sums of squares, and numbers of rows, by tensor."""

    def __init__(self) -> None:
        self.squares: dict[str, torch.Tensor] = {}
        self.counts: dict[str, list[int]] = {}

    def add(self, name: str, rows: torch.Tensor, expert: int | None = None, experts: int = 1) -> None:
        """Add the inputs [..., n_in] of a matrix, or of one of ``experts`` stacked experts."""
        width = rows.shape[-1]
        if name not in self.squares:
            shape = (width,) if expert is None else (experts, width)
            self.squares[name] = torch.zeros(shape, dtype=torch.float64, device=rows.device)
            self.counts[name] = [0] * experts
        at = self.squares[name] if expert is None else self.squares[name][expert]
        at += rows.reshape(-1, width).double().square().sum(dim=0)
        self.counts[name][expert or 0] += rows.numel() // width


@contextmanager
def _hooked(model: Any, spec: ModelSpec, totals: _Totals) -> Iterator[None]:
    """Make every matrix add the squares of its inputs inside the context."""
    mixtures = {
        at: block.feed_forward for at, block in enumerate(spec.layers) if isinstance(block.feed_forward, Experts)
    }
    parts = (
        linear.weight.name
        for mixture in mixtures.values()
        for mlp in mixture.experts
        for linear in (mlp.gate, mlp.up, mlp.down)
        if linear is not None
    )
    latents = [block.mixer for block in spec.layers if isinstance(block.mixer, LatentAttention)]
    of_heads = {linear.weight.name for one in latents for linear in (*one.k_b, *one.v_b)}  # no module's inputs there
    outside = {*spec.kept(), *spec.tables(), *parts, *of_heads, spec.head_weight.name}
    layers = {
        tensor.gguf.name: tensor.hf.name.removesuffix(".weight")
        for tensor in spec.tensors()
        if tensor.is_matrix and tensor.name not in outside
    }
    handles = []
    try:
        for name, layer in layers.items():
            hook = partial(_of_inputs, totals, name)
            handles.append(model.get_submodule(layer).register_forward_pre_hook(hook))
        for at, mixture in mixtures.items():
            layer = model.get_submodule(f"model.layers.{at}")
            module = next(part for name, part in layer.named_modules() if name.rpartition(".")[2] == "experts")
            if missing := [name for name in ("is_transposed", "has_bias", "_apply_gate") if not hasattr(module, name)]:
                raise UnsupportedModelError(
                    f"transformers {transformers.__version__} has no {missing[0]} at a mixture's experts, so the "
                    "inputs of their last matrices are unknown",
                    hint="install transformers 5; or llama-imatrix makes an importance matrix, which --imatrix reads",
                )
            handles.append(module.register_forward_pre_hook(partial(_of_experts, totals, mixture)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _of_inputs(totals: _Totals, name: str, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    totals.add(name, inputs[0])


def _of_experts(totals: _Totals, mixture: Experts, module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    """Add the inputs of experts: rows [tokens, hidden], and the chosen experts [tokens, used].

    transformers has a layer's experts in one module, so gate and up are computed a second time for the inputs of down.
    """
    hidden, chosen = inputs[:2]
    for expert, mlp in enumerate(mixture.experts):
        rows = hidden[(chosen == expert).any(dim=1)]
        first = "up_proj" if mlp.gate is None else "gate_up_proj"
        weight = getattr(module, first)[expert]
        both = rows @ (weight if module.is_transposed else weight.T)
        if module.has_bias:
            both = both + getattr(module, f"{first}_bias")[expert]
        inner = module.act_fn(both) if mlp.gate is None else module._apply_gate(both)
        for linear, given in ((mlp.gate, rows), (mlp.up, rows), (mlp.down, inner)):
            if linear is not None:
                totals.add(linear.weight.gguf.name, given, expert, len(mixture.experts))
