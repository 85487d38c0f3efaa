"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437): the drafting block in a model's own files.

Row p of such a head is computed from token p and the target's row p - 1 after its final norm. The head is one more
block of the target's kind, with the target's embedding and lm_head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import Block, FeatureInputs, Linear, ModelSpec, Norm, Place, Tensor

QWEN = {
    "project": "mtp.fc",
    "embedding_norm": "mtp.pre_fc_norm_embedding",
    "norm": "mtp.pre_fc_norm_hidden",
    "final_norm": "mtp.norm",
}
"""Names in folders of Qwen3-Next and Qwen3.5 of the head's parts other than its block."""
_GGUF = {"project": "eh_proj", "embedding_norm": "enorm", "norm": "hnorm", "final_norm": "shared_head_norm"}


def with_mtp_block(target: ModelSpec, names: Names, block: Callable[[int], Block], drafting: int) -> ModelSpec:
    """Return the model with its head, for families with one MTP block after the others (GLM, DeepSeek)."""
    if drafting != 1:
        return target
    layer = len(target.layers)
    parts = {"project": "eh_proj", "embedding_norm": "enorm", "norm": "hnorm", "final_norm": "shared_head.norm"}
    folder = {part: f"model.layers.{layer}.{name}" for part, name in parts.items()}
    return replace(target, mtp=mtp_head(target, names, block(layer), folder))


def mtp_head(target: ModelSpec, names: Names, block: Block, folder: dict[str, str]) -> ModelSpec:
    """Return the head with this block, numbered ``len(target.layers)``; ``folder`` names its other parts."""
    layer, hidden = len(target.layers), target.hidden

    def weight(part: str, shape: tuple[int, ...]) -> Tensor:
        offset = 0.0 if part == "project" else names.norm_offset
        return names.tensor(f"{folder[part]}.weight", f"blk.{layer}.nextn.{_GGUF[part]}.weight", shape, offset=offset)

    def norm(part: str) -> Norm:
        return Norm(weight(part, (hidden,)), names.epsilon)

    features = FeatureInputs(
        width=hidden,
        embedding_norm=norm("embedding_norm"),
        norms=(norm("norm"),),
        project=Linear(weight("project", (hidden, 2 * hidden))),
    )
    return replace(
        target,
        features=features,
        layers=(block,),
        final_norm=norm("final_norm"),
        head=Linear(target.head_weight),
        read_past=(),
    )


def renamed(part: Any, old: str, new: str) -> Any:
    """Replace the prefix ``old`` of tensor names in folders by ``new`` in a part of a spec."""
    if isinstance(part, Tensor):
        return replace(part, name=_with(part.name, old, new), hf=replace(part.hf, name=_with(part.hf.name, old, new)))
    if isinstance(part, tuple):
        return tuple(renamed(one, old, new) for one in part)
    if not is_dataclass(part) or isinstance(part, Place | type):
        return part
    changed = {one.name: renamed(getattr(part, one.name), old, new) for one in fields(part)}
    return replace(part, **changed)


def _with(name: str, old: str, new: str) -> str:
    return new + name.removeprefix(old) if name.startswith(old) else name
