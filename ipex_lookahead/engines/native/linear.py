"""Single linear layers of the native core, and conversion of weights to and from the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipex_lookahead.engines.machine import check_threads, default_threads
from ipex_lookahead.engines.native.core import chosen_isa, native_core
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import STREAMS, PackedWeight


def linear_layer(weight: PackedWeight, *, threads: int, isa: str = "") -> Callable[[Any], Any]:
    """Return one linear layer: float32 [rows, n_in] -> float32 [rows, n_out], with the kernels of a step."""
    layer: Callable[[Any], Any] = native_core().LinearLayer(
        native_core().LinearPool(threads, isa), *streams(weight), None
    )
    return layer


class LinearPool:
    """Memory, scratch and threads that the linear layers of one model share.

    The threads are the process's pool: one layer, or one step of a decoder, runs at a time, with the GIL released.

    Raises:
        EngineError: there is no compiled core, or the requested instruction set is not available.
    """

    __slots__ = ("raw",)

    def __init__(self, threads: int | None = None) -> None:
        core, isa = native_core(), chosen_isa()
        self.raw = core.LinearPool(default_threads() if threads is None else check_threads(threads), isa)

    @property
    def threads(self) -> int:
        """Number of threads that share a layer's outputs, including the caller."""
        return int(self.raw.threads)

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return str(self.raw.isa)

    def __reduce__(self) -> Any:
        """Return a new pool with the same number of threads and no layers."""
        return LinearPool, (self.threads,)

    def layer(self, weight: PackedWeight, bias: Any | None = None) -> LinearLayer:
        """Prepack a weight and an optional bias float32 [n_out]; both live as long as any layer of this pool.

        Raises InputError if streams or bias do not have the shapes and dtypes of the format.
        """
        try:
            return LinearLayer(native_core().LinearLayer(self.raw, *streams(weight), bias))
        except (ValueError, TypeError) as error:
            raise InputError(f"not a {weight.format} weight of shape {list(weight.shape)}: {error}") from None


class LinearLayer:
    """One weight of a ``LinearPool``. Row i of the output depends on row i of the input alone."""

    __slots__ = ("into", "n_in", "n_out", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.n_in, self.n_out = int(raw.n_in), int(raw.n_out)
        self.into: Callable[[Any, Any], None] = raw.into
        """``into(x, out)``: float32 [rows, n_in] and float32 [rows, n_out], C order; ``out`` is overwritten.

        Calls the core directly: ValueError for other shapes, TypeError for an ``out`` of another dtype or order.
        """

    def weight(self) -> PackedWeight:
        """Return the weight in plain order, bit-equal to the input."""
        return plain(self.raw.export())


def streams(weight: PackedWeight) -> tuple[Any, ...]:
    """Return a weight as arguments of the core: format, outputs, inputs, group size, codes, scales, minimums.

    Raises InputError for a weight with an input order; a caller that has one reorders the inputs itself.
    """
    if weight.order is not None:
        raise InputError("the weight has an input order, which this layer does not support")
    arrays = (getattr(weight, name) for name in STREAMS)
    return (weight.format, *weight.shape, weight.group_size, *(None if a is None else _in_order(a) for a in arrays))


def _in_order(array: Any) -> Any:
    """Return the array in C order and aligned; copies only an array at an unaligned file offset."""
    return np.require(array, requirements=("C", "A"))


def plain(exported: tuple[Any, ...]) -> PackedWeight:
    """Return a weight that the core exported."""
    name, n_out, n_in, group, codes, scales, minimums = exported
    return PackedWeight(name, (n_out, n_in), codes.view(FORMATS[name].streams[0].dtype), group, scales, minimums)


Tiles = tuple[Any, Any | None, Any | None, Any | None]
"""A matrix as kernels read it (csrc/kernels/kernels.h): codes uint8, scales and minimums uint16, steps uint8, each of
one dimension; None for a stream that the format does not have."""


def prepacked(weight: PackedWeight, threads: int | None = None) -> Tiles:
    """Return a matrix in tiles, for kernels of other devices.

    Raises EngineError without a core, InputError if the streams do not match the format.
    """
    count = default_threads() if threads is None else check_threads(threads)
    try:
        tiles: Tiles = native_core().prepack(*streams(weight), count)
    except (ValueError, TypeError) as error:
        raise InputError(f"not a {weight.format} weight of shape {list(weight.shape)}: {error}") from None
    return tiles


def unpacked(
    name: str, shape: tuple[int, int], group_size: int, tiles: Tiles, threads: int | None = None
) -> PackedWeight:
    """Invert :func:`prepacked`, bit for bit."""
    count = default_threads() if threads is None else check_threads(threads)
    return plain(native_core().unpack(name, *shape, group_size, *tiles, count))
