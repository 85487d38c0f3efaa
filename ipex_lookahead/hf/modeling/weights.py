"""The engine's weights in the terms of torch and transformers: counted, named, dequantized; and saved packed."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.drafters import IN_A_MODEL, counting
from ipex_lookahead.engines.hf_config import config_to_save
from ipex_lookahead.engines.torch.low_bit_linear import LowBitLinear
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import FORMATS, dequantize

log = logging.getLogger(__name__)

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Weights:
    """The model's parameters. They are the engine's: what is handed out here are copies, one at a time, float32.

    A transformers model that was wrapped, or runs on the torch engine as it is, answers with its own parameters.
    """

    engine: Any
    config: Any
    generation_config: Any
    low_bit: str
    tokenizer: Any
    source: Any
    _checkpoint_config: dict[str, Any] | None

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """How many weights there are, tied ones once; trainable there are none.

        Raises InputError where the engine has no list of them.
        """
        if only_trainable:
            return 0
        if (own := _own_model(self.engine)) is not None:
            return int(own.num_parameters(exclude_embeddings=exclude_embeddings))
        shapes = dict(self._shapes())
        if self.config.tie_word_embeddings and EMBEDDING in shapes:
            shapes.pop(HEAD, None)  # packed apart from the embedding, and the same weights
        if exclude_embeddings:
            shapes.pop(EMBEDDING, None)
        return sum(torch.Size(shape).numel() for shape in shapes.values())

    def get_memory_footprint(self, return_buffers: bool = True) -> int:
        """Bytes of the weights as they lie in memory, packed."""
        return int(self.engine.describe()["weight_bytes"])

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """(the checkpoint's name, a float32 copy) of each tensor, dequantized when it is taken.

        Changing a copy changes nothing. Raises InputError where the engine cannot give its weights back.
        """
        before = f"{prefix}." if prefix else ""
        if (own := _own_model(self.engine)) is not None:
            yield from own.named_parameters(prefix, recurse, remove_duplicate)
            return
        for name, weight in self._weights():
            values = torch.from_numpy(dequantize(weight).copy())
            yield before + name, torch.nn.Parameter(values, requires_grad=False)

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """As ``named_parameters``, without names."""
        return (value for _, value in self.named_parameters(recurse=recurse))

    def get_parameter(self, target: str) -> torch.nn.Parameter:
        """One tensor, as in ``named_parameters``. Raises InputError where there is none of that name."""
        for name, value in self.named_parameters():
            if name == target:
                return value
        raise InputError(f"there is no parameter {target!r}; the names are those of model.named_parameters()")

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """All tensors, dequantized: float32, four bytes a weight, which is much more than the packed model takes.

        transformers' model of the same config loads them (``load_state_dict``), and then computes with what the packed
        weights stand for. Raises InputError where the engine cannot give its weights back.
        """
        found: dict[str, Any] = OrderedDict() if destination is None else destination
        if (own := _own_model(self.engine)) is not None:
            return own.state_dict(destination=found, prefix=prefix, keep_vars=keep_vars)  # type: ignore[no-any-return]
        for name, value in self.named_parameters(prefix.removesuffix(".")):
            found[name] = value if keep_vars else value.data
        if prefix + EMBEDDING in found and self.config.tie_word_embeddings:
            found.setdefault(prefix + HEAD, found[prefix + EMBEDDING])
        return found

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: what the checkpoint ties is tied."""

    def save_low_bit(self, folder: str | PathLike[str], **kwargs: Any) -> Path:
        """Write the packed weights, config and tokenizer, so that ``load_low_bit`` need not quantize again.

        Args:
            folder: where to; a head that drafts for the model goes along: one more of its blocks (MTP) with the others,
                and one in files of its own as these are. See :func:`ipex_lookahead.checkpoints.low_bit_save.save` for
                what is refused.
            **kwargs: ``overwrite`` and ``progress`` of that function.
        """
        from ipex_lookahead.checkpoints.low_bit_save import save

        packed = {name: TensorInfo.of(w) for name, w in self._weights()}
        groups = {info.group_size for info in packed.values() if info.group_size}
        head = packed.get(HEAD, packed.get(EMBEDDING))
        mixed = head is not None and head.format == "sym_int8" != self.low_bit and self.low_bit in FORMATS
        config, head = self._checkpoint_config or self.config.to_dict(), getattr(self.engine, "head", None)
        apart: Path | None = None
        if head is not None and head.describe()["kind"] not in IN_A_MODEL:
            apart, head = head.source, None
        drafting = {} if head is None else {name: TensorInfo.of(w) for name, w in head.weights()}
        return save(
            folder,
            config=config_to_save(config if head is None else counting(config, 1), packed),
            generation_config=self.generation_config.to_diff_dict(),
            infos=packed | drafting,
            weights=chain(self._weights(), () if head is None else head.weights()),
            low_bit={
                "low_bit": self.low_bit,
                "group_size": max(groups, default=0),
                "mixed_precision": mixed,
                **{key: value for key, value in self.engine.describe().items() if key == "requantized_from"},
            },
            tokenizer=self.tokenizer,
            source=self.source,
            drafter=apart,
            **kwargs,
        )

    def _weights(self) -> Iterator[tuple[str, Any]]:
        weights = getattr(self.engine, "weights", None)
        if weights is None:
            raise InputError(
                f"the {self.engine.name} engine cannot return its weights; load the model on another engine"
            )
        found: Iterator[tuple[str, Any]] = weights()
        return found

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        spec = getattr(self.engine, "spec", None)
        if spec is not None:
            yield from ((tensor.name, tensor.shape) for tensor in spec.tensors())
        else:
            yield from ((name, weight.shape) for name, weight in self._weights())


def _own_model(engine: Any) -> Any:
    """Return the torch model if its parameters are all the weights, None if this package has packed some."""
    model = getattr(engine, "model", None)
    if model is None or any(isinstance(module, LowBitLinear) for module in model.modules()):
        return None
    return model
