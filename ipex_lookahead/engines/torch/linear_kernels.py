"""Kernels that multiply activations by a packed weight, each a class with the interface of ``LinearKernel``.

A kernel has the weight in the layout that it reads, and can return it in plain layout. Its buffers are integers, bit
patterns of floats included, so that ``model.to(dtype)`` cannot change the weight's values.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from ipex_lookahead.engines.native.linear import LinearLayer, LinearPool
from ipex_lookahead.errors import EngineError, InputError
from ipex_lookahead.formats import FORMATS, dequantize
from ipex_lookahead.formats.base import GROUP, NIBBLES, STREAMS, ZEROS, PackedWeight

FLOAT_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Float formats and the torch dtypes of their values."""

CPU_CHUNK = 1 << 20
DEVICE_CHUNK = 1 << 24
"""Weights dequantized at a time: a number that fits a core's cache, and one that hides a device's launch latency."""


class LinearKernel(Protocol):
    """x W^T for one packed weight [n_out, n_in]."""

    name: str

    @property
    def device(self) -> torch.device:
        """The weight's device."""
        ...

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., n_in] float32, float16 or bfloat16 on ``device`` to a new tensor [..., n_out] of the same dtype."""
        ...

    def weight(self) -> PackedWeight:
        """Return the weight in plain layout, bit for bit as the kernel was given it."""
        ...


class GenericKernel(nn.Module):
    """Dequantizes and multiplies some rows of the weight at a time: correct on any device, fast on none.

    At most ``CPU_CHUNK`` (``DEVICE_CHUNK``) values are dequantized at a time, or one row if a row is longer.
    """

    name = "generic"

    def __init__(self, weight: PackedWeight, device: torch.device) -> None:
        super().__init__()
        self.format = weight.format
        self.shape = (weight.shape[0], weight.shape[1])
        self.group_size = weight.group_size
        self.zero = getattr(FORMATS[weight.format], "zero", 0)
        self.nibbles = FORMATS[weight.format].streams[0] == NIBBLES
        self.zero_points = ZEROS in FORMATS[weight.format].streams
        self.codes: torch.Tensor
        self.scales: torch.Tensor | None
        self.minimums: torch.Tensor | None
        for stream in STREAMS:
            values = getattr(weight, stream)
            self.register_buffer(stream, None if values is None else as_bits(values, device), persistent=False)

    @property
    def device(self) -> torch.device:
        """The weight's device."""
        return self.codes.device

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """See ``LinearKernel.run``. The weight is rounded to ``x``'s dtype; torch does the product."""
        if x.is_cpu and x.dtype is torch.float16:  # which CPUs multiply slowly, and older releases of torch not at all
            return self.run(x.float()).to(x.dtype)
        n_out, n_in = self.shape
        step = max(1, (CPU_CHUNK if x.device.type == "cpu" else DEVICE_CHUNK) // n_in)
        if step >= n_out:
            return functional.linear(x, self.rows(0, n_out).to(x.dtype))
        out = x.new_empty(*x.shape[:-1], n_out)
        for start in range(0, n_out, step):
            end = min(start + step, n_out)
            out[..., start:end] = functional.linear(x, self.rows(start, end).to(x.dtype))
        return out

    def rows(self, start: int, end: int) -> torch.Tensor:
        """Return rows of the weight [end - start, n_in] on the device, with the values of ``formats.dequantize``.

        The dtype is float32; of a float format, its own.
        """
        codes = self.codes[start:end]
        if self.format in FLOAT_DTYPES:
            return codes.view(FLOAT_DTYPES[self.format])
        if not has_operators(self.format):
            whole = PackedWeight(self.format, (end - start, self.shape[1]), codes.cpu().numpy(), self.group_size)
            return torch.from_numpy(dequantize(whole)).to(self.device)
        assert self.scales is not None
        if self.nibbles:
            blocks = codes.view(end - start, -1, GROUP // 2)
            codes = torch.cat((blocks & 15, blocks >> 4), dim=2).view(end - start, -1)
        n_in, size = self.shape[1], self.group_size
        values = codes.float()
        if self.zero:
            values -= self.zero
        values = functional.pad(values, (0, self.scales.shape[1] * size - values.shape[1])).view(end - start, -1, size)
        scales = self.scales[start:end].view(torch.float16).float()[:, :, None]
        if self.minimums is None:
            values *= scales
        elif self.zero_points:
            values = (values - self.minimums[start:end].view(torch.float16).float()[:, :, None]) * scales
        else:
            values = values * scales + self.minimums[start:end].view(torch.float16).float()[:, :, None]
        return values.view(end - start, -1)[:, :n_in]

    def weight(self) -> PackedWeight:
        """See ``LinearKernel.weight``."""
        arrays = {
            stream.name: getattr(self, stream.name).cpu().numpy().view(stream.dtype)
            for stream in FORMATS[self.format].streams
        }
        return PackedWeight(self.format, self.shape, group_size=self.group_size, **arrays)


def has_operators(low_bit: str) -> bool:
    """Return True if torch's operators dequantize the format. If not, every product dequantizes rows on the CPU."""
    return len(FORMATS[low_bit].streams) > 1 or low_bit in FLOAT_DTYPES


def as_bits(array: Any, device: torch.device) -> torch.Tensor:
    """Return a NumPy stream as a tensor of signed or byte integers of the same width."""
    whole = {1: array.dtype, 2: np.dtype(np.int16), 4: np.dtype(np.int32)}[array.dtype.itemsize]
    return torch.from_numpy(np.ascontiguousarray(array).view(whole)).to(device)


class NativeKernel(nn.Module):
    """The native core's linear kernel: row-invariant, with activations quantized to int8 in groups of 32."""

    name = "native"
    device: torch.device = torch.device("cpu")

    def __init__(self, weight: PackedWeight, pool: LinearPool) -> None:
        super().__init__()
        self._pool = pool
        self.layer: LinearLayer = pool.layer(weight)
        self._run = self.layer.raw.run_at
        self._n_out, self._n_in = weight.shape

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """See ``LinearKernel.run``; computed in float32 and int8 for any dtype of ``x``."""
        if not x.is_cpu:
            raise EngineError(
                f"this layer was loaded for the CPU, but its input is on {x.device}",
                hint="load the model with the device it is to run on (device=...)",
            )
        if x.shape[-1] != self._n_in:  # the core gets addresses without sizes
            raise InputError(f"the layer takes [..., {self._n_in}], got {list(x.shape)}")
        rows = x if x.dtype is torch.float32 else x.float()
        if not rows.is_contiguous():
            rows = rows.contiguous()
        out = torch.empty(*x.shape[:-1], self._n_out)
        # Addresses, because wrapping two arrays takes longer than a layer of a small model.
        self._run(rows.data_ptr(), rows.numel() // self._n_in, out.data_ptr())
        return out if x.dtype is torch.float32 else out.to(x.dtype)

    def weight(self) -> PackedWeight:
        """See ``LinearKernel.weight``."""
        return self.layer.weight()

    def __deepcopy__(self, memo: dict[int, Any]) -> NativeKernel:
        """Return the kernel itself: the weight never changes."""
        return self

    def __reduce__(self) -> Any:
        """Pickle the weight in plain layout. Layers that share a pool share one after unpickling."""
        return NativeKernel, (self.weight(), self._pool)


def reference(weight: PackedWeight, x: torch.Tensor) -> torch.Tensor:
    """Return the reference of self-tests: ``x`` times the dequantized weight, in float32 on the CPU."""
    return functional.linear(x.float().cpu(), torch.from_numpy(dequantize(weight)))
