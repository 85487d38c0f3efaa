"""Routed experts of a model's layers in the native core, for an engine that runs the rest on another device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Experts
from ipex_lookahead.engines.machine import check_threads, default_threads
from ipex_lookahead.engines.native.core import CORE_RAISES, chosen_isa, core_error, native_core
from ipex_lookahead.engines.native.decoder import set_weight
from ipex_lookahead.engines.native.linear import plain
from ipex_lookahead.errors import EngineError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight

Floats = npt.NDArray[np.float32]


class RoutedExperts:
    """The routed experts of layers, without routers, norms and shared experts.

    Args:
        layers: the mixture of each layer; None: the layer has no experts here.
        hidden: number of values of a row.
        threads: number of threads; None: see ``default_threads``.

    Raises:
        UnsupportedModelError: the core does not support the sizes.
        EngineError: no compiled core, or one that was built from older sources.
    """

    def __init__(self, layers: Sequence[Experts | None], hidden: int, threads: int | None = None) -> None:
        count, isa, core = default_threads() if threads is None else check_threads(threads), chosen_isa(), native_core()
        if not hasattr(core, "RoutedExperts"):
            raise EngineError("the native core was built from older sources, without experts of their own",
                              hint="build it again: pip install .")  # fmt: skip
        try:
            self._raw: Any = core.RoutedExperts([*layers], hidden, count, isa)
        except (ValueError, TypeError) as error:
            raise UnsupportedModelError(f"the native core cannot hold experts of this shape: {error}") from None

    @property
    def nbytes(self) -> int:
        """The bytes of all weights."""
        return int(self._raw.weight_bytes)

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return str(self._raw.isa)

    def set(self, name: str, weight: PackedWeight) -> None:
        """Copy a weight into the core under its decoder's name, layers.0.feed_forward.experts.0.up.weight."""
        set_weight(self._raw, name, weight)

    def matrix(self, name: str) -> PackedWeight:
        """Return a matrix in plain layout, bit for bit as it was set."""
        return plain(self._raw.export_matrix(name))

    def vector(self, name: str) -> Floats:
        """Return a vector, float32."""
        found: Floats = self._raw.export_vector(name)
        return found

    def run(self, layer: int, x: Floats, experts: npt.NDArray[np.int32], weights: Floats) -> tuple[Floats, int]:
        """Return the weighted sums of the chosen experts' outputs, in order of rank, and the number of experts read.

        The call releases the GIL.

        Args:
            layer: index of the layer.
            x: float32 [rows, hidden], as the experts' first products read it.
            experts: int32 [rows, used], best first.
            weights: float32 [rows, used].

        Returns:
            float32 [rows, hidden] with the bits of the native engine, and the number of experts.

        Raises:
            InputError: the layer has no experts here, an expert does not exist, or shapes do not fit.
            EngineError: a weight is missing.
        """
        try:
            sums, touched = self._raw(layer, x, experts, weights)
        except CORE_RAISES as error:
            raise core_error(error, "the rows of the experts do not fit: ") from None
        return sums, int(touched)
