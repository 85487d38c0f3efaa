"""Encoders in the native core: float32 rows in slices, between which other work can use the threads.

``NativeEncoder`` runs rows that are given, as for images, with float weights. ``NativeTextEncoder`` runs tokens, with
weights in every format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.encoder import EncoderSpec
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.engines.machine import check_threads, default_threads
from ipex_lookahead.engines.native.core import CORE_RAISES, chosen_isa, core_error, native_core
from ipex_lookahead.engines.native.decoder import set_weight
from ipex_lookahead.errors import InputError, NonFiniteError, UnsupportedModelError
from ipex_lookahead.formats import FLOATS, as_floats
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import widen

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.integer[Any]]
Pause = Callable[[], None]
"""Called between slices of an encoder's work."""


PASS_ROWS = 4096
"""Number of tokens of texts that go through the layers together: more need memory, and are not faster."""


def no_pause() -> None:
    """Continue with the next slice."""


class Table:
    """A matrix of which rows are read, in the file's float format."""

    def __init__(self, weight: PackedWeight) -> None:
        self._weight = weight if weight.format in FLOATS else as_floats(weight)

    def __len__(self) -> int:
        return self._weight.shape[0]

    def __getitem__(self, rows: Any) -> Floats:
        """Return rows, or values of a vector, as float32."""
        return widen(self._weight.codes[rows], self._weight.format)


class NativeEncoder:
    """An encoder in the native core. One input at a time; calls from several threads take turns.

    Args:
        spec: the encoder.
        read: returns a tensor's weight.
        threads: number of threads; None: see ``default_threads``.

    Raises:
        UnsupportedModelError: the core does not support the shape.
        EngineError: no compiled core, or a forced instruction set that this processor lacks.
    """

    def __init__(
        self, spec: EncoderSpec, read: Callable[[Tensor], PackedWeight], *, threads: int | None = None
    ) -> None:
        count, isa = default_threads() if threads is None else check_threads(threads), chosen_isa()
        self.spec = spec
        try:
            self._raw = native_core().Encoder(spec, count, isa)
        except (ValueError, TypeError) as error:
            raise UnsupportedModelError(f"the native engine cannot hold an encoder of this shape: {error}") from None
        tables = []
        for name, tensor in spec.named_tensors():
            weight = read(tensor)
            if name.startswith("tables."):
                tables.append(Table(weight))
            elif tensor.is_matrix:
                set_weight(self._raw, name, weight if self._is_kept(name, weight) else as_floats(weight))
            else:
                values = widen(weight.codes.reshape(-1), weight.format)
                set_weight(self._raw, name, PackedWeight("fp32", values.shape, values))
        self.tables = tuple(tables)

    def _is_kept(self, name: str, weight: PackedWeight) -> bool:
        """Return True for a matrix that stays in its format, False for one that becomes floats."""
        return weight.format in FLOATS

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in the core."""
        return int(self._raw.weight_bytes)

    def chain(self, number: int, x: Floats, pause: Pause = no_pause) -> Floats:
        """Return a chain of rows x [rows, inputs]."""
        x, size = np.ascontiguousarray(x), int(self._raw.slice_rows)
        found = []
        for first in range(0, len(x), size):
            if first:
                pause()
            found.append(self._call(self._raw.chain, number, x[first : first + size]))
        return np.concatenate(found)

    def layers(
        self,
        x: Floats,
        cos: Floats | None = None,
        sin: Floats | None = None,
        *,
        after: Collection[int] = (),
        pause: Pause = no_pause,
    ) -> Mapping[int, Floats]:
        """Return the rows after all layers, and after numbers of layers.

        Args:
            x: rows [rows, hidden].
            cos: cosines [rows, head_dim / 2], for an encoder with rope.
            sin: sines.
            after: further numbers of layers.
            pause: called between slices.

        Returns:
            Number of layers -> rows [rows, hidden].

        Raises:
            NonFiniteError: the rows have NaN or infinity.
        """
        tables = (None if table is None else np.ascontiguousarray(table) for table in (cos, sin))
        one = self._call(native_core().EncoderPass, self._raw, np.ascontiguousarray(x), *tables)
        return self._finish(one, after, pause)

    def _finish(self, one: Any, after: Collection[int], pause: Pause) -> Mapping[int, Floats]:
        """Run the remaining slices of a pass, as ``layers``."""
        found: dict[int, Floats] = {}
        last = len(self.spec.layers)
        for layer in sorted({last, *(number for number in after if 0 < number < last)}):
            while one.layer < layer:
                self._call(one.advance, layer)
                if one.layer < last:
                    pause()
            found[layer] = np.asarray(self._call(one.rows, self._raw))
        if not np.isfinite(found[last]).all():
            raise NonFiniteError("an encoder's rows are not finite", hint="the checkpoint's weights are damaged")
        return found

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except CORE_RAISES as error:
            raise core_error(error, "the encoder's input does not fit: ") from None


class NativeTextEncoder(NativeEncoder):
    """A text encoder in the native core: tokens in, a row per token out.

    A text's rows have the same bits alone and with any other texts, for any number of threads and instruction set.

    Args:
        spec: an encoder with an embedding.
        read: returns a tensor's weight.
        threads: number of threads; None: see ``default_threads``.

    Raises:
        UnsupportedModelError: the core does not support the shape.
        EngineError: no compiled core, or a forced instruction set that this processor lacks.
    """

    def _is_kept(self, name: str, weight: PackedWeight) -> bool:
        return weight.format in FLOATS or not name.startswith("chains.")

    def rows(
        self,
        inputs: Sequence[Ids],
        types: Sequence[Ids | None] | None = None,
        *,
        pause: Pause = no_pause,
    ) -> list[Floats]:
        """Return the rows of texts after all layers and the final norm.

        Args:
            inputs: token ids of each text, at least one.
            types: token types of each text; None: 0.
            pause: called between slices.

        Returns:
            One array [tokens, hidden] per text.

        Raises:
            InputError: an empty text, or a token, type or position without a row.
            NonFiniteError: the rows have NaN or infinity.
        """
        kinds = [None] * len(inputs) if types is None else types
        for ids, of in zip(inputs, kinds, strict=True):
            if not len(ids) or (of is not None and len(of) != len(ids)):
                got = f"a text of {len(ids)} tokens" + ("" if of is None else f" with {len(of)} token types")
                raise InputError(argument="inputs", got=got, allowed="at least one token, and a type for each or none")
        return [rows for part in _parts(inputs, kinds) for rows in self._pass(*part, pause)]

    def _pass(self, inputs: Sequence[Ids], kinds: Sequence[Ids | None], pause: Pause) -> list[Floats]:
        """Return the rows of texts that go through the layers together."""
        lengths = np.array([len(ids) for ids in inputs], np.int32)
        joined = None
        if any(of is not None for of in kinds):
            given = (np.zeros(n, np.int32) if of is None else of for n, of in zip(lengths, kinds, strict=True))
            joined = _ids("types", np.concatenate([*given]))
        tokens = _ids("inputs", np.concatenate([*inputs]))
        one = self._call(native_core().EncoderPass.texts, self._raw, tokens, lengths, joined)
        rows = self._finish(one, (), pause)[len(self.spec.layers)]
        return np.split(rows, np.cumsum(lengths)[:-1])


def _parts(inputs: Sequence[Ids], kinds: Sequence[Ids | None]) -> Iterator[tuple[Sequence[Ids], Sequence[Ids | None]]]:
    """Divide texts into parts of at most ``PASS_ROWS`` tokens, or one longer text."""
    first = tokens = 0
    for number, ids in enumerate(inputs):
        if number > first and tokens + len(ids) > PASS_ROWS:
            yield inputs[first:number], kinds[first:number]
            first, tokens = number, 0
        tokens += len(ids)
    if tokens:
        yield inputs[first:], kinds[first:]


def _ids(argument: str, ids: Ids) -> npt.NDArray[np.int32]:
    """Return ids as the core reads them; a value without a row there is the core's to refuse."""
    if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
        got = f"ids of dtype {ids.dtype} from {ids.min()} to {ids.max()}"
        raise InputError(argument=argument, got=got, allowed="integers from 0 to 2147483647")
    return ids.astype(np.int32)
