"""Where the model is and in what dtype: it moves from the CPU to an Intel GPU, and else stays where its engine runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ipex_lookahead.engines.opencl.device import device_of
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.head import OpenClHead
from ipex_lookahead.errors import InputError

_log = logging.getLogger(__name__)

Model = TypeVar("Model", bound="Placement")


class Placement:
    """What torch's ``Module`` offers for moving, converting and training."""

    engine: Any
    _run_on: Callable[[Any], None]

    @property
    def device(self) -> torch.device:
        """Where the engine runs."""
        return torch.device(getattr(self.engine, "device", "cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """What the engine computes activations in."""
        return getattr(self.engine, "dtype", torch.float32)

    def to(self: Model, *args: Any, **kwargs: Any) -> Model:
        """A dtype or the engine's own device changes nothing; what ipex-llm's scripts write for an Intel GPU works.

        "xpu" moves a model and its head from the native engine to the first GPU of OpenCL, bit for bit. On the OpenCL
        engine it changes nothing, and neither does "cpu": ids and logits are the CPU's already, and ``save_low_bit``
        reads the weights back.

        Raises:
            InputError: another device.
            EngineError: pyopencl is not installed, there is no GPU, or it has no memory for the model.
        """
        for value in (*args, *kwargs.values()):
            if not isinstance(value, (str, torch.device)):
                continue
            device = torch.device(value)
            if self.engine.name == "opencl" and device.type in ("cpu", "xpu"):
                facts = self.engine.describe()
                _log.info("the model stays on %s (%s): .to(%r)", facts["device"], facts["device_name"], str(value))
            elif self.engine.name == "native" and device.type == "xpu":
                moved = OpenClEngine.moved(self.engine, device_of(str(device)))
                if self.engine.head is not None:
                    moved.head = OpenClHead.moved(self.engine.head, moved)
                    moved.facts["drafter"] = moved.head.describe()
                self._run_on(moved)
            elif device.type != self.device.type or device.index not in (None, self.device.index):
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
