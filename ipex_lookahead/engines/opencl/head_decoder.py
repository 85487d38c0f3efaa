"""A drafting head's steps on a device: rows with the target's features, then rows that continue with the head's own.

A chain's tokens are chosen on the device, so that all of its rows are enqueued at once and read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.engines.opencl.cache import Pages
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.launches import branch_launches, top_launch
from ipex_lookahead.engines.opencl.layers import Weights
from ipex_lookahead.engines.opencl.linear import GROUP, LANES, STEP_WANTED, STEPS, Matrix, Rows, rows_at_once
from ipex_lookahead.engines.opencl.operations.base import Binder, Launch, sized
from ipex_lookahead.engines.opencl.operations.features import FeatureBuffers
from ipex_lookahead.engines.opencl.recording import Recorded, Sized
from ipex_lookahead.engines.opencl.scratch import PIECE, RopeTable, Scratch, ropes_of
from ipex_lookahead.engines.opencl.step import BLOCK, SPLIT_ROWS, Plan, StepRows

i32, f32 = np.int32, np.float32
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

MOST_TILES = 256
"""Most tiles of 16 tokens outside a head's part of the lm_head that one sequence may draft; the latest ones remain."""
MOST_STEPS = 256
"""Most tokens of a chain, with the copied ones before it."""
MOST_RECORDED = 32
"""Most recorded chains, each of a different length."""


class Seen:
    """A target's cache as a head with ``target_keys`` sees it: the row is at the last committed position."""

    state = None

    def __init__(self, cache: Any) -> None:
        self.held, self.length = cache.held, cache.length - 1


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a head's outputs stand for.

    Attributes:
        ids: int32 [outputs], the token of each.
        whole: the target's lm_head or the head's own for all tokens, in pieces; () if there is none.
        tiles: number of tiles of ``whole``.
    """

    ids: Ints
    whole: Sequence[Matrix] = ()

    @property
    def tiles(self) -> int:
        return sum(piece.tiles for piece in self.whole)


class HeadDecoder:
    """A head on a device.

    Args:
        device: the device.
        spec: the head, with the outputs that it has.
        weights: its own weights; ``head`` may be the target's.
        embedding: the matrix of embeddings.
        pages: its own pages, or with ``target_keys`` the target's.
        outputs: what its outputs stand for.
    """

    def __init__(
        self, device: Device, spec: ModelSpec, weights: Weights, embedding: Matrix, pages: Pages, outputs: Outputs
    ) -> None:
        self.device, self.spec, self.weights, self.pages, self.outputs = device, spec, weights, pages, outputs
        self._embedding = embedding
        assert spec.features is not None
        self.width, self.layers, self._feeds_back = (
            spec.features.width, spec.features.layers, spec.features.feeds_back,
        )  # fmt: skip
        first = 1 if spec.target_keys else 0  # rows are one position behind the last one that they see
        self.ropes = {id(rope): RopeTable(device, rope, first) for rope in ropes_of(spec)}
        self._joint_rows = min((one.cached.joint_rows for one in weights.attentions), default=1)
        self._moves = i32(0 if spec.target_keys else 1)
        self._step, self._chain_step = device.empty(0), device.empty(0)
        self._chain, self._chances = device.empty(4 * (1 + MOST_STEPS)), device.empty(4 * MOST_STEPS)
        self._scratch: Scratch | None = None
        self._bound: object = None
        self._firsts: dict[int, list[Launch]] = {}
        self._parts: tuple[list[Launch], list[Launch], Launch] | None = None
        self._recorded: dict[tuple[int, ...], Recorded] = {}
        self._is_output = np.zeros(spec.vocab, np.bool_)
        self._is_output[outputs.ids] = True
        self._make_outputs()

    def _make_outputs(self) -> None:
        device, candidates, ids = self.device, self.spec.candidates, self.outputs.ids
        if candidates is None:
            part = -(-len(ids) // PIECE) * PIECE if self.outputs.whole else len(ids)
            self.logits_count = part + (MOST_TILES * LANES if self.outputs.whole else 0)
            self.tokens = np.full(self.logits_count, -1, np.int32)
            self.tokens[: len(ids)] = ids
            self._first_of_tiles = part
        else:
            centroids = candidates.centroids.weight.shape[0]
            self._each = len(ids) // centroids
            self.logits_count = candidates.used * self._each
            self.tokens = np.full(self.logits_count, -1, np.int32)
            self._ordering = device.upload(ids)
            self._scores, self._best = device.empty(4 * centroids), device.empty(4 * candidates.used)
            self._centroids, self._places = device.empty(4 * candidates.used), _identity(device, centroids)
            self._sorted = device.empty(4 * candidates.used)
        self._logits = device.empty(4 * self.logits_count)
        self._ids = device.upload(self.tokens)
        self._pieces = -(-self.logits_count // PIECE)
        self._sums = device.empty(4 * self._pieces)
        self._tops = [(device.empty(4 * n), device.empty(4 * n)) for n in (self._pieces, 1)]
        self._tile_logits = device.empty(4 * MOST_TILES * LANES if self.outputs.whole else 0)
        self._tiles = device.upload(np.full(MOST_TILES, self.outputs.tiles, np.int32))
        self._allowed: tuple[int, ...] = ()
        self._tile_places = []
        begin = 0
        for piece in self.outputs.whole:
            places = np.full(self.outputs.tiles + 1, -1, np.int32)  # the last entry is for rows without a tile
            places[begin : begin + piece.tiles] = np.arange(piece.tiles)
            self._tile_places.append(device.upload(places))
            begin += piece.tiles

    def drafts(self, token: int) -> bool:
        """Return True if a token has an output."""
        return bool(self._is_output[token])

    def allow(self, tiles: Sequence[int]) -> None:
        """Select the tiles of the whole lm_head with tokens that may be drafted, too."""
        if not self.outputs.whole or tuple(tiles) == self._allowed:
            return
        numbers = np.full(MOST_TILES, self.outputs.tiles, np.int32)
        numbers[: len(tiles)] = tiles
        tokens = (numbers[:, None] * LANES + np.arange(LANES, dtype=np.int32)).reshape(-1)
        known = tokens < self.spec.vocab
        tokens[~known | self._is_output[np.where(known, tokens, 0)]] = -1
        self.tokens[self._first_of_tiles :] = tokens
        self.device.write(self._tiles, numbers)
        self.device.write(self._ids, self.tokens)
        self._allowed = tuple(tiles)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def feed(self, cache: Any, tokens: Sequence[int], features: Any, at: int, more: int = 0) -> None:
        """Enqueue rows with the target's features. The next row, of :meth:`chain` or :meth:`place`, follows the last.

        Args:
            cache: the head's keys, which are prepared here, or a ``Seen``.
            tokens: the token of each row.
            features: buffer, float32 [n][width].
            at: the row of ``features`` with those of the first row.
            more: number of rows that a chain may add.
        """
        rows, device = len(tokens), self.device
        with device.errors("run"), self.pages.lock:
            positions = cache.length + rows + (0 if self.spec.target_keys else more)
            if not self.spec.target_keys:
                cache.prepare(rows + more)
            plan = _plan(cache, tokens)
            self._reserve(rows, positions)
            joint = plan.joint(self._joint_rows)
            self._step = self._written(self._step, plan.encoded(joint))
            self.place(cache, 0, cache.length + int(self._moves) * (rows - 1), positions)
            launches = self._bind(rows)
            device.copy(features, self._buffers.features, 4 * rows * self.width, 4 * at * self.width)
            self._enqueue(list(sized(launches, plan, plan.blocks, joint)))

    def place(self, cache: Any, token: int, position: int, positions: int) -> None:
        """Write a chain's row: its token, its position, and one more than the highest position of the chain."""
        view = Seen(cache)
        view.length = position
        encoded = _plan(view, [token]).encoded(1)
        encoded[3] = (positions - 1) // BLOCK + 1
        self._chain_step = self._written(self._chain_step, encoded)

    def chain(self, given: int, steps: int, positions: int) -> tuple[Ints, Floats]:
        """Run the rows of a chain behind :meth:`feed`, and return the tokens and probabilities of all ``steps`` places.

        Args:
            given: number of tokens of :meth:`start`, which have no probability.
            steps: number of places.
            positions: one more than the highest position of the chain.

        Returns:
            Tokens, negative where logits are not finite, and probabilities.
        """
        assert self._parts is not None
        device = self.device
        answer, after, choose = self._parts
        key = (given, steps, self._blocks(positions))
        with device.errors("run"), self.pages.lock:
            if device.recorder is not None and key in self._recorded:
                self._recorded[key].enqueue()
            else:
                launches = [
                    launch
                    for place in range(steps)
                    for launch in (*(after if place else ()), *(answer if place >= given else ()), choose)
                ]
                all_sized = self._sized(launches, key[2])
                if device.recorder is not None:
                    if len(self._recorded) >= MOST_RECORDED:
                        del self._recorded[next(iter(self._recorded))]
                    self._recorded[key] = device.recorder.record(all_sized)
                    self._recorded[key].enqueue()
                else:
                    self._enqueue(all_sized)
        reads = ((self._chain, (steps,), np.int32, 4), (self._chances, (steps,), np.float32, 0))
        tokens, chances = device.read_all(*reads)
        return tokens, chances

    def start(self, given: Sequence[int]) -> None:
        """Write the first tokens of a chain; called before :meth:`feed`, which would be waited for."""
        chain = np.full(1 + MOST_STEPS, -1, np.int32)
        chain[0], chain[1 : 1 + len(given)] = 0, given
        self.device.write(self._chain, chain)

    def answer(self, positions: int) -> tuple[Floats, Ints]:
        """Return the logits behind the last row, float32 [n], and their tokens, int32 [n], -1 for none."""
        assert self._parts is not None
        with self.device.errors("run"), self.pages.lock:
            self._enqueue(self._sized(self._parts[0], self._blocks(positions)))
        logits, tokens = self.device.read_all(
            (self._logits, (self.logits_count,), np.float32, 0), (self._ids, (self.logits_count,), np.int32, 0)
        )
        return logits, tokens

    def follow(self, cache: Any, token: int, position: int) -> None:
        """Enqueue a row of a token with the head's own features, at a position of a cache that has room for it."""
        with self.device.errors("run"), self.pages.lock:
            if not self.spec.target_keys:
                cache.prepare(position + 1 - cache.length)
            self._reserve(1, position + 1)
            self.place(cache, token, position, position + 1)
            self._bind(1)
            assert self._parts is not None
            self._enqueue(self._sized(self._parts[1], self._blocks(position + 1)))

    # ---- binding -----------------------------------------------------------------------------------------------------

    def _written(self, buffer: Any, encoded: Ints) -> Any:
        if buffer.size < encoded.nbytes:
            buffer = self.device.empty(2 * encoded.nbytes)
        self.device.write(buffer, encoded)
        return buffer

    def _blocks(self, positions: int) -> int:
        return 1 << ((positions - 1) // BLOCK).bit_length()

    def _sized(self, launches: list[Launch], blocks: int) -> list[Sized]:
        return list(sized(launches, _ONE_ROW, blocks, 1))

    def _enqueue(self, launches: Sequence[Sized]) -> None:
        enqueue, queue = self.device.launch, self.device.queue
        for kernel, size, local in launches:
            enqueue(queue, kernel, size, local)

    def _reserve(self, rows: int, positions: int) -> None:
        for rope in self.ropes.values():
            rope.reserve(positions, self.spec.max_context)
        blocks = (positions - 1) // BLOCK + 1
        need = (rows, 1, max(rows * blocks if rows <= SPLIT_ROWS else rows, blocks), 1)
        if self._scratch is None or not self._scratch.holds(need):
            have = (0, 0, 0, 0) if self._scratch is None else self._scratch.sizes
            most, partials = (n if n <= old else max(n, 2 * old) for n, old in ((need[0], have[0]), (need[2], have[2])))
            self._scratch = None  # its memory first
            self._forget()
            self._buffers = FeatureBuffers(self.spec, self.device, most)
            self._scratch = Scratch(self.device, self.spec, most, 1, partials, 1)

    def _bind(self, rows: int) -> list[Launch]:
        """Return the launches of a step with the target's features; those of chains are bound too."""
        generations = (self.pages.generation, *(rope.positions for rope in self.ropes.values()))
        bound = (self._scratch, self._step, self._chain_step, generations)
        if bound != self._bound:
            self._forget()
            self._bound = bound
        if self._parts is None:
            chain = self._binder(self._chain_step, 1)
            self._parts = list(self._answer(chain)), list(self._own(chain)), self._choose(chain)
        most = rows_at_once(rows, STEPS)
        if most not in self._firsts:
            binder = self._binder(self._step, most)
            self._firsts[most] = [*self._rows(binder, own=False), self._feed_back(binder)]
        return self._firsts[most]

    def _binder(self, step: Any, rows: int) -> Binder:
        return Binder(
            device=self.device, spec=self.spec, pages=self.pages, ropes=self.ropes, scratch=self._scratch, step=step,
            rows=rows,
        )  # fmt: skip

    def _forget(self) -> None:
        self._firsts, self._parts, self._recorded, self._bound = {}, None, {}, None

    def failed(self) -> None:
        """Drop buffers that may hold anything after a step that failed."""
        self._scratch = None
        self._forget()

    # ---- launches ----------------------------------------------------------------------------------------------------

    def _rows(self, b: Binder, own: bool) -> Iterator[Launch]:
        """Yield a step without the lm_head; ``own``: of one row with the head's own features."""
        weights = self.weights
        assert weights.features is not None
        first = self.spec.layers[0]
        yield from weights.features.launches(b, self._buffers, self._embedding, own)
        yield weights.features.before_layers(b, self._buffers, weights.branches[0].before, first.mixer)
        for launch in branch_launches(b, weights):
            assert isinstance(launch, Launch)  # all of a head's experts are on the device
            yield launch
        yield b.norm(weights.final_norm, b.scratch.head_x, wanted=True)

    def _own(self, b: Binder) -> Iterator[Launch]:
        yield from self._rows(b, own=True)
        yield self._feed_back(b)

    def _feed_back(self, b: Binder) -> Launch:
        """Return the launch that copies the head's own features of the wanted row."""
        hidden, own = self.spec.hidden, self._buffers.own
        if self._feeds_back >= 0:
            return b.copy_rows(b.scratch.hidden, hidden, hidden, own, hidden, wanted=True)
        x = b.scratch.head_x
        return self._binder(self._chain_step, 1).copy_rows(x.buffers[0], x.blocks * GROUP, hidden, own, hidden)

    def _answer(self, b: Binder) -> Iterator[Launch]:
        """Yield the logits of the wanted row and their largest."""
        spec, x, n = self.spec, b.scratch.head_x, self.logits_count
        if self.weights.centroids is not None:
            yield from self._candidates(b)
        else:
            column = 0
            for piece in self.weights.head:
                yield b.linear(piece, x, self._logits, n, column, wanted=True)
                column += piece.n_out
            for piece, places in zip(self.outputs.whole, self._tile_places, strict=True):
                yield self._tiles_of(b, piece, x, self._tiles, MOST_TILES, places, 1, self._tile_logits)
            if self.outputs.whole:
                some = MOST_TILES * LANES
                yield b.copy_rows(self._tile_logits, some, some, self._logits, n, self._first_of_tiles)
        if spec.logit_multiplier != 1 or spec.logit_softcap:
            caps = (i32(n), f32(spec.logit_multiplier), f32(spec.logit_softcap or 0))
            kernel = b.kernel("cap", self._logits, i32(n), *caps, b.step, i32(STEP_WANTED))
            yield Launch(kernel, -(-n // 64) * 64, 64, wanted=True)
        tops = self._tops
        yield top_launch(b, self._pieces, (self._logits, self._ids), n, PIECE, tops[0])
        if self._pieces > 1:
            yield top_launch(b, 1, tops[0], self._pieces, self._pieces, tops[1])
        highest = tops[0 if self._pieces == 1 else 1][0]
        sizes = (i32(n), i32(PIECE), highest, self._sums, i32(self._pieces))
        yield b.lanes(self._kernel("exponential_sums", self._logits, self._ids, *sizes), self._pieces)

    def _candidates(self, b: Binder) -> Iterator[Launch]:
        """Yield the logits of the tokens of the best centroids, which become the ids of the logits."""
        candidates, matrix, each = self.spec.candidates, self.weights.centroids, self._each
        assert candidates is not None
        assert matrix is not None
        x, count = b.scratch.head_x, matrix.n_out
        yield b.linear(matrix, x, self._scores, count, wanted=True)
        yield top_launch(b, 1, (self._scores, None), count, count, (self._best, self._centroids), candidates.used)
        chosen = (self._centroids, i32(candidates.used), i32(each), self._ordering, self._sorted, self._ids)
        yield Launch(self._kernel("candidate_tokens", *chosen), 64, 64)
        (head,) = self.weights.head
        yield self._tiles_of(b, head, x, self._sorted, candidates.used, self._places, each // LANES, self._logits)

    def _tiles_of(
        self, b: Binder, w: Matrix, x: Rows, numbers: Any, count: int, places: Any, tiles: int, out: Any
    ) -> Launch:
        """Return the products of one row and ``count`` groups of ``tiles`` tiles of a matrix, next to each other."""
        own = (b.step, numbers, i32(0), i32(count), places, i32(tiles), i32(count))
        n = i32(tiles * LANES)
        return b.product("expert_linear", w, *x.arguments(), *own, out, n, tiles=tiles, pairs=count)

    def _choose(self, b: Binder) -> Launch:
        ids = self._tops[0 if self._pieces == 1 else 1][1]
        arguments = (b.step, ids, self._sums, i32(self._pieces), self._chain, self._chances, self._moves)
        return Launch(self._kernel("choose_token", *arguments), 1, 1)

    def _kernel(self, name: str, *arguments: Any) -> Any:
        return self.device.kernel(self.device.program("draft"), name, *arguments)


def _plan(cache: Any, tokens: Sequence[int]) -> Plan:
    """Return a step of a chain, the last row of which has outputs."""
    rows = len(tokens)
    own = StepRows(cache=cache, first=0, rows=rows, depths=None, parents=list(range(-1, rows - 1)))
    return Plan([own], np.array(tokens, np.int32), np.array([rows - 1], np.int32), np.empty(0, np.int32))


def _identity(device: Device, count: int) -> Any:
    return device.upload(np.arange(count, dtype=np.int32))


_ONE_ROW = _plan(None, [0])
