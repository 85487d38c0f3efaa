"""Where the model is and in what dtype: it stays where its engine runs, and says so when asked to move."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from ipex_lookahead.errors import InputError

Model = TypeVar("Model", bound="Placement")


class Placement:
    """What torch's ``Module`` offers for moving, converting and training."""

    engine: Any

    @property
    def device(self) -> torch.device:
        """Where the engine runs."""
        return torch.device(getattr(self.engine, "device", "cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """What the engine computes activations in."""
        return getattr(self.engine, "dtype", torch.float32)

    def to(self: Model, *args: Any, **kwargs: Any) -> Model:
        """A dtype or the engine's own device changes nothing; another device raises InputError."""
        for value in (*args, *kwargs.values()):
            if not isinstance(value, (str, torch.device)):
                continue
            device = torch.device(value)
            if device.type != self.device.type or device.index not in (None, self.device.index):
                here = "the CPU" if self.device.type == "cpu" else str(self.device)
                raise InputError(
                    f"the model runs on {here} and cannot move to {value}; leave .to({str(value)!r}) out, or load it"
                    f" with device={str(value)!r}"
                )
        return self

    def cpu(self: Model) -> Model:
        """As ``to("cpu")``."""
        return self.to("cpu")

    def cuda(self: Model, device: Any = None) -> Model:
        """As ``to("cuda")``."""
        return self.to("cuda")

    def xpu(self: Model, device: Any = None) -> Model:
        """As ``to("xpu")``."""
        return self.to("xpu")

    def ipu(self: Model, device: Any = None) -> Model:
        """As ``to("ipu")``."""
        return self.to("ipu")

    def mtia(self: Model, device: Any = None) -> Model:
        """As ``to("mtia")``."""
        return self.to("mtia")

    def half(self: Model, *args: Any) -> Model:
        """Nothing to convert: the format was chosen when the model was loaded."""
        return self

    float = bfloat16 = double = type = half

    def train(self: Model, mode: bool = True) -> Model:
        """``train(False)`` is ``eval()``; True raises InputError."""
        if mode:
            raise InputError("the engine cannot train the model; train the original with transformers, and load that")
        return super().train(False)  # type: ignore[misc, no-any-return]

    def requires_grad_(self: Model, requires_grad: bool = True) -> Model:
        """No gradient is ever kept: False changes nothing, True raises InputError."""
        return self.train(requires_grad)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """There are no gradients."""
