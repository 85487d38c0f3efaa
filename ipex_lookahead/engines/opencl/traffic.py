"""The bytes that a step's kernels must read: weights, and keys and values, each counted once per launch."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.engines.cache_images import PAGE
from ipex_lookahead.engines.opencl.decoder import Decoder


class Traffic:
    """The bytes that each kernel of one step must read. Activations are not counted.

    Args:
        decoder: the model on a device, after a step of the same rows.
        rows: rows of the step.
        positions: positions of the sequence after the step. Attention is charged all of them, in layers with a sliding
            window too.
        experts: number of experts that the step reads, over all layers; 0 for models without.
    """

    def __init__(self, decoder: Decoder, rows: int, positions: int, experts: int = 0) -> None:
        weights, pages = decoder.weights, decoder.pages
        matrices = {id(one): one for parts in weights.held.matrices.values() for one, _ in parts}.values()
        buffers = [buffer for one in matrices for buffer in one.buffers if buffer is not None]
        self._weights = {one.int_ptr: int(one.size) for one in (*buffers, *weights.held.vectors.values())}
        self._pages = {
            buffer.int_ptr: nbytes // PAGE for buffer, nbytes in zip(pages.buffers, pages.sizes, strict=True)
        }
        self._positions = positions
        self._embedded = min(1.0, rows / decoder.spec.vocab)
        mixtures = [one for _, one in weights.mixtures]
        if every := sum(len(one.mixture.experts) for one in mixtures):
            stacks = [stack for one in mixtures for stacks in (one.gate, one.up, one.down) for stack in stacks]
            for buffer in (buffer for stack in stacks for buffer in stack.matrix.buffers if buffer is not None):
                self._weights[buffer.int_ptr] = int(buffer.size) * experts // every

    def __call__(self, kernel: Any) -> int:
        """Return the bytes of a launch of a kernel."""
        name, handles = str(kernel.function_name), kernel.handles
        read = sum(self._weights.get(one, 0) for one in handles)
        if name == "embed":
            return int(read * self._embedded)
        if name.startswith("attend"):
            read += self._positions * sum(self._pages.get(one, 0) for one in handles)
        return read
