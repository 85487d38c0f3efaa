"""The choice of a linear layer's kernel: the first of its device's list that passes a test with dequantized weights.

For a kernel that is missing or fails the test, the reason is in the log and in ``describe``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ipex_lookahead.engines.native.linear import LinearPool
from ipex_lookahead.engines.torch.linear_kernels import (
    GenericKernel,
    LinearKernel,
    NativeKernel,
    has_operators,
    reference,
)
from ipex_lookahead.engines.weights import random_matrix
from ipex_lookahead.errors import EngineError, LookaheadError, first_line
from ipex_lookahead.formats.base import PackedWeight

log = logging.getLogger("ipex_lookahead")

BACKENDS = {"cpu": ("native", "generic")}
"""Device type -> kernels in the order of preference. Other devices have the generic one."""

TOLERANCE = 0.02
"""Largest error of a self-test, relative to the result's norm. Activations in int8 cost 0.5 %, bfloat16 0.3 %, a wrong
layout more than 100 %."""

TEST_SHAPES = ((64, 256), (40, 172))
"""Shapes of the self-tests: a regular one, and one that no tile, group or work-group size divides."""
TEST_ROWS = (1, 2, 5, 17)

FEW_ROWS = 512
"""Most rows for which torch's own operators are faster on one thread if linear layers run in the native core."""


def has_native_layers(model: nn.Module) -> bool:
    """Return True if a layer of the model runs in the compiled core."""
    return any(isinstance(module, NativeKernel) for module in model.modules())


def torch_threads_with_native(rows: int) -> int | None:
    """Return the number of torch's threads for a forward of ``rows`` rows with native layers; None = torch's setting.

    The native kernel's threads spin until the next layer, and OpenMP's until the next operator; on the same cores they
    slow each other down. Measured on two cores with a model of 135 million weights, for one and two threads of torch:
    12 and 17 ms for one row, 70 and 109 for 64 rows, 314 and 436 for 256. With 1024 rows two threads are slightly
    faster, since attention dominates.
    """
    return 1 if rows <= FEW_ROWS else None


class LinearBackends:
    """Kernels for the linear layers of one model on one device.

    Args:
        device: the model's device.
        threads: number of the native kernel's threads; None: the physical cores.
        dtype: the dtype of the model's activations, which the self-tests use.
        only: name of the only backend to use. If its self-test fails, loading raises EngineError.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        threads: int | None = None,
        dtype: torch.dtype = torch.float32,
        only: str | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self.order = BACKENDS.get(self.device.type, ("generic",))
        if only is not None:
            if only not in self.order:
                raise EngineError(
                    f"there is no linear backend {only!r} for {self.device.type}; there is {', '.join(self.order)}"
                )
            self.order = (only,)
        self.threads = threads
        self._pool: LinearPool | None = None
        self._tested: dict[tuple[str, str, int], str | None] = {}
        self._said: set[str] = set()
        self._factories: dict[str, Callable[[PackedWeight], LinearKernel]] = {
            "generic": lambda weight: GenericKernel(weight, self.device),
            "native": lambda weight: NativeKernel(weight, self.pool),
        }

    @property
    def pool(self) -> LinearPool:
        """The pool of the native layers. Raises EngineError without a compiled core."""
        if self._pool is None:
            self._pool = LinearPool(self.threads)
        return self._pool

    def kernel(self, weight: PackedWeight) -> LinearKernel:
        """Make a kernel with ``weight``.

        Raises:
            EngineError: none of the backends passes its self-test.
        """
        reasons = []
        for name in self.order:
            reason = self.problem(name, weight.format, weight.group_size)
            if reason is None:
                if name == "generic" and not has_operators(weight.format) and weight.format not in self._said:
                    self._said.add(weight.format)
                    log.warning(
                        "torch has no operators for %s: its weights are dequantized on the CPU for every product, "
                        "which is slow (the native engine runs the format as it is)", weight.format,
                    )  # fmt: skip
                return self._factories[name](weight)
            reasons.append(f"{name}: {reason}")
        raise EngineError(
            f"no linear kernel for {weight.format} on {self.device} passes its self-test ({'; '.join(reasons)})",
            hint="ipex-lookahead doctor shows what this machine can run",
        )

    def problem(self, name: str, low_bit: str, group_size: int) -> str | None:
        """Return the reason why a backend does not support a format, or None. Tested on the first call."""
        key = (name, low_bit, group_size)
        if key not in self._tested:
            self._tested[key] = reason = self._test(name, low_bit, group_size)
            if reason is not None:
                log.warning("linear backend %s is not used for %s on %s: %s", name, low_bit, self.device, reason)
        return self._tested[key]

    def _test(self, name: str, low_bit: str, group_size: int) -> str | None:
        try:
            errors = [self._error(name, low_bit, group_size, shape) for shape in TEST_SHAPES]
        except (LookaheadError, RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError) as error:
            # A library that is too old, too new or not built for this device may raise any of these.
            return first_line(error)
        worst = max(errors)
        if worst <= TOLERANCE:
            return None
        return f"its self-test is wrong by {100 * worst:.1f} % ({100 * TOLERANCE:.0f} % allowed)"

    def _error(self, name: str, low_bit: str, group_size: int, shape: tuple[int, int]) -> float:
        """Return the largest relative error over ``TEST_ROWS``. Raises EngineError if the kernel changes the weight."""
        rng = np.random.default_rng(1)
        weight = random_matrix(shape, low_bit, group_size, rng)
        kernel = self._factories[name](weight)
        if not same_bits(kernel.weight(), weight):
            raise EngineError("its self-test gave the weight back with other bits")
        worst = 0.0
        for rows in TEST_ROWS:
            x = torch.from_numpy(rng.standard_normal((rows, shape[1]), dtype=np.float32)).to(self.dtype)
            expected = reference(weight, x)
            got = kernel.run(x.to(self.device)).float().cpu()
            error = float((got - expected).norm() / expected.norm())
            worst = max(worst, error if error == error else float("inf"))
        return worst

    def describe(self) -> dict[str, Any]:
        """Return the backend of each format, and the declined backends with reasons."""
        chosen: dict[str, str] = {}
        declined = []
        for (name, low_bit, group_size), reason in self._tested.items():
            label = low_bit if group_size in (0, 32) else f"{low_bit} (groups of {group_size})"
            if reason is None:
                chosen.setdefault(label, name)
            else:
                declined.append({"backend": name, "format": label, "reason": reason})
        facts: dict[str, Any] = {"linear": chosen, "declined": declined}
        if self._pool is not None:
            facts |= {"isa": self._pool.isa, "threads": self._pool.threads}
        return facts


def same_bits(a: PackedWeight, b: PackedWeight) -> bool:
    """Return True if two packed weights have equal streams."""
    if (a.format, a.shape, a.group_size) != (b.format, b.shape, b.group_size):
        return False
    bits = [{name: array.tobytes() for name, array in weight.arrays()} for weight in (a, b)]
    return bits[0] == bits[1]
