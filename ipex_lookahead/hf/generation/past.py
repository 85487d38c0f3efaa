"""The engine's caches behind transformers' ``Cache``: ``past_key_values`` of ``forward`` and ``generate``."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import Cache as TransformersCache

from ipex_lookahead.decoding.cache_chunks import Record, read_records, write_records
from ipex_lookahead.decoding.prefix_cache import crop_to_shared
from ipex_lookahead.decoding.saved_cache import cache_key, read_cache, records_of
from ipex_lookahead.engines.api import Adapter, AppliedAdapter, Cache, Engine, image_rows
from ipex_lookahead.engines.fingerprint import fingerprint
from ipex_lookahead.engines.images import ImageRows, PromptImage, row_keys
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.errors import CacheFileError, InputError
from ipex_lookahead.files.paths import given_path


class LookaheadCache(TransformersCache):  # type: ignore[misc]
    """KV caches of a batch, one engine cache per row. They stay in the engine: there are no tensors to look at.

    A forward adds to the cache that it is given, as transformers' caches are added to. ``copy.deepcopy`` shares what is
    there and goes on independently, which is how one prompt serves several continuations.

    Args:
        engine: the engine of the caches.
        rows: sequences in the batch.

    Attributes:
        rows: the engine's caches.
        ids: int64 [rows, columns]; the columns of ``input_ids`` so far.
        mask: bool [rows, columns]; False where they were padding.
        adapters: the low-rank adapter of each row, which its keys and values depend on; None: the base model.
        images: the images in each row's text; None: there are none.
    """

    is_compileable = False
    is_initialized = True
    is_croppable = True

    def __init__(self, engine: Engine, rows: int) -> None:
        # Not the base's own: it makes layers of tensors.
        self.layers: list[Any] = []
        self.engine = engine
        self.rows: list[Cache] = [engine.new_cache() for _ in range(rows)]
        self.ids = torch.zeros((rows, 0), dtype=torch.int64)
        self.mask = torch.zeros((rows, 0), dtype=torch.bool)
        self.adapters: list[AppliedAdapter | None] = [None] * rows
        self.images: list[ImageRows | None] = [None] * rows

    # ---- how much there is -------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Sequences in the batch."""
        return len(self.rows)

    def get_seq_length(self, layer_idx: int | None = 0) -> int:
        """Columns so far, padding included."""
        return int(self.mask.shape[1])

    def get_usable_length(self, new_seq_length: int, layer_idx: int | None = 0) -> int:
        """For transformers 4.37: nothing is ever thrown away to make room."""
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        """(columns that a forward of ``query_length`` more sees, the first one's number)."""
        return self.get_seq_length() + int(query_length), 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Positions that a sequence may have."""
        return self.engine.max_context

    get_max_cache_shape = get_max_length

    # ---- changing it -------------------------------------------------------------------------------------------------

    def crop(self, tokens_to_remove: int) -> None:
        """Drop columns at the end: ``-n`` drops n; a positive number is the columns to keep, as before transformers 5.

        Raises InputError where there are fewer, and for an end inside of an image.
        """
        have = self.get_seq_length()
        keep = tokens_to_remove if tokens_to_remove > 0 else have + tokens_to_remove
        if not 0 <= keep <= have:
            raise InputError(f"cannot crop by {tokens_to_remove}: the cache holds {have} columns")
        images = [_before(images, int(mask[:keep].sum())) for images, mask in zip(self.images, self.mask, strict=True)]
        self.images = images
        self.ids, self.mask = self.ids[:, :keep].clone(), self.mask[:, :keep].clone()
        for row in range(len(self.rows)):
            self.cut(row)

    def cut(self, row: int) -> None:
        """Crop a row's cache to the tokens of that row here; tokens that a layer's state has lost are run again."""
        cache, ids = self.rows[row], self.ids[row][self.mask[row]].numpy().astype(np.int32)
        left = ids[cache.crop(len(ids)) :]
        if len(left):
            options: dict[str, Any] = {"adapter": self.adapters[row], "images": [self.images[row]]}
            deque(prefill(self.engine, [(cache, left)], wanted=[()], **options), maxlen=0)

    def keys(self, row: int) -> npt.NDArray[Any]:
        """Return what a row's cache depends on: its token ids, or for rows of images numbers of their content."""
        ids, images = self.ids[row][self.mask[row]].numpy(), self.images[row]
        return ids if images is None else row_keys(ids, images.images)

    def reset(self) -> None:
        """Drop everything."""
        self.crop(-self.get_seq_length())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """The rows of those numbers (or where True), in that order, each as often as it is named."""
        chosen = torch.arange(len(self.rows))[torch.as_tensor(indices).cpu()]
        self._select(chosen.tolist())

    reorder_cache = batch_select_indices

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row ``repeats`` times."""
        self._select([row for row in range(len(self.rows)) for _ in range(repeats)])

    def __deepcopy__(self, memo: dict[int, Any]) -> LookaheadCache:
        twin = LookaheadCache(self.engine, 0)
        twin.rows = [cache.fork() for cache in self.rows]
        twin.ids, twin.mask, twin.adapters = self.ids.clone(), self.mask.clone(), list(self.adapters)
        twin.images = list(self.images)
        memo[id(self)] = twin
        return twin

    def _select(self, chosen: Sequence[int]) -> None:
        """A row named once keeps its cache; one named again gets a fork."""
        taken: set[int] = set()
        rows = []
        for row in chosen:
            rows.append(self.rows[row].fork() if row in taken else self.rows[row])
            taken.add(row)
        self.rows, self.ids, self.mask = rows, self.ids[list(chosen)], self.mask[list(chosen)]
        self.adapters = [self.adapters[row] for row in chosen]
        self.images = [self.images[row] for row in chosen]

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the cache to a file, which ``model.load_cache(path)`` reads.

        The file replaces an older one when it is complete. Only its owner may read it.

        Raises:
            InputError: a row has no tokens, or the model runs on an engine that cannot save KV caches.
            SaveError: the file cannot be written.
        """
        if not self.rows or any(cache.length == 0 for cache in self.rows):
            raise InputError("the cache has no tokens in one of its rows; there is nothing to save")

        def records() -> Iterator[Record]:
            numbers = np.array([len(self.rows), self.get_seq_length()], "<i8").view(np.uint8)
            ids = self.ids.numpy().astype("<i4").reshape(-1).view(np.uint8)
            mask = self.mask.numpy().astype(np.uint8).reshape(-1)
            yield Record("batch", 0, self.get_seq_length(), np.concatenate([numbers, ids, mask]))
            if any(self.adapters):
                keys = "\n".join("" if one is None else one.key for one in self.adapters)
                yield Record("adapters", 0, 0, np.frombuffer(keys.encode(), np.uint8))
            if any(self.images):
                yield Record("images", 0, 0, np.frombuffer(_described(self.images), np.uint8))
            for row, cache in enumerate(self.rows):
                yield from records_of(self.keys(row), cache)

        write_records(given_path(path), _key(self.engine), records())

    # ---- lent to a generation ----------------------------------------------------------------------------------------

    def take(self, prompts: Sequence[npt.NDArray[Any]], adapters: Sequence[AppliedAdapter | None]) -> list[Cache]:
        """Return each row's cache, cropped to the prefix that it shares with its prompt, and leave this cache empty.

        ``prompts`` are the keys of the prompts' rows (:func:`~ipex_lookahead.engines.images.row_keys`).
        A row that another adapter computed gets an empty cache.
        A generation that fails leaves an empty cache; one that succeeds returns the rows with ``hold``.
        """
        lent = [
            cache if _key_of(own) == _key_of(adapter) else self.engine.new_cache()
            for cache, own, adapter in zip(self.rows, self.adapters, adapters, strict=True)
        ]
        for row, (cache, prompt) in enumerate(zip(lent, prompts, strict=True)):
            if cache.length:
                crop_to_shared(cache, self.keys(row), prompt)
        self.rows, self.adapters = [self.engine.new_cache() for _ in lent], [None] * len(lent)
        self.images = [None] * len(lent)
        self.ids, self.mask = self.ids[:, :0], self.mask[:, :0]
        return lent

    def hold(
        self,
        caches: Sequence[Any],
        ids: torch.Tensor,
        padding: Sequence[int],
        adapters: Sequence[AppliedAdapter | None],
        images: Sequence[ImageRows | None],
    ) -> None:
        """Take over the caches of a generation; all rows are cropped to the columns of the shortest.

        Args:
            caches: one per row.
            ids: int64 [rows, n], their tokens.
            padding: number of padding columns on the left of each row.
            adapters: the adapter of each row.
            images: the images of each row.
        """
        columns = min(empty + cache.length for empty, cache in zip(padding, caches, strict=True))
        self.rows, self.adapters, self.images = list(caches), list(adapters), list(images)
        self.ids = ids[:, :columns].clone()
        self.mask = torch.arange(columns)[None] >= torch.tensor(padding)[:, None]
        for row in range(len(self.rows)):
            self.cut(row)

    def check_adapter(self, adapter: AppliedAdapter | None) -> None:
        """Set the adapter of an empty cache. Raises InputError if another one computed what the cache holds."""
        if self.get_seq_length() == 0:
            self.adapters = [adapter] * len(self.rows)
        elif any(_key_of(one) != _key_of(adapter) for one in self.adapters):
            raise InputError(
                "past_key_values were computed with another adapter, or with another scale",
                hint="pass them with the adapter that computed them, or leave them out",
            )

    # ---- what it has not ---------------------------------------------------------------------------------------------

    def _no_tensors(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: keys and values are the engine's."""
        raise InputError(
            "the engine owns keys and values: this cache exposes no tensors and cannot be pickled; pass it as"
            " past_key_values of its own model"
        )

    update = to_legacy_cache = __iter__ = __getitem__ = __reduce__ = _no_tensors

    def __len__(self) -> int:
        return 0  # layers that could be looked at

    def __bool__(self) -> bool:
        return True  # an empty cache is a cache

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rows={len(self.rows)}, columns={self.get_seq_length()})"


def _key_of(adapter: AppliedAdapter | None) -> str:
    return "" if adapter is None else adapter.key


def _before(images: ImageRows | None, length: int) -> ImageRows | None:
    """Return the images of a text's first rows. Raises InputError where these end inside of an image."""
    if images is None:
        return None
    for image in images.images:
        if image.start < length < image.end:
            raise InputError(
                f"cannot crop to {length} tokens: an image has the tokens {image.start} to {image.end - 1}",
                hint=f"crop to {image.start} or {image.end} tokens",
            )
    found = [image for image in images.images if image.end <= length]
    return images.changed(found) if found else None


def _described(images: Sequence[ImageRows | None]) -> bytes:
    """Return the places and contents of images as JSON: for each row a list of [start, rows, columns, digest]."""
    rows = [[] if one is None else [[i.start, *i.grid, i.digest.hex()] for i in one.images] for one in images]
    return json.dumps(rows).encode()


def _images(file: Path, record: Record, engine: Engine, past: LookaheadCache) -> list[ImageRows | None]:
    """Return the images of rows from their description."""

    def encode(pause: Any) -> NoReturn:
        raise InputError(
            "an image's features are not in a saved cache",
            hint="pass the whole prompt with its pixel_values to generate",
        )

    found: list[ImageRows | None] = []
    try:
        rows = json.loads(record.data.tobytes())
        for number, row in enumerate(rows):
            images = [
                PromptImage(start, None, (height, width), bytes.fromhex(digest), encode=encode)
                for start, height, width, digest in row
            ]
            ids = past.ids[number][past.mask[number]].numpy().astype(np.int32)
            found.append(image_rows(engine, ids, images) if images else None)
    except (ValueError, TypeError, IndexError, RecursionError, OverflowError, InputError) as error:
        raise CacheFileError(file, f"is damaged: its images do not fit its tokens ({error})") from None
    if len(found) != len(past.ids):
        raise CacheFileError(file, f"is damaged: it has the images of {len(found)} rows for {len(past.ids)}")
    return found


def load_past(
    engine: Engine, path: str | PathLike[str], adapters: Mapping[str, Adapter] = MappingProxyType({})
) -> LookaheadCache:
    """Return the cache in a file that :meth:`LookaheadCache.save` wrote.

    Args:
        engine: the engine of the model.
        path: the file.
        adapters: the loaded adapters, of which the file's must be some.

    Raises:
        CacheFileError: the file is missing, damaged, of another model or of other settings, or longer than the context;
            or an adapter that computed it is not loaded.
        InputError: the engine cannot save KV caches.
        OutOfMemoryError: there is no memory for the cache.
    """
    file, past = given_path(path), LookaheadCache(engine, 0)
    records = read_records(file, _key(engine))
    past.ids, past.mask = _batch(file, next(records))
    past.adapters, past.images = [None] * len(past.ids), [None] * len(past.ids)
    record = next(records, None)
    if record is not None and record.kind == "adapters":
        past.adapters = _adapters(file, record, adapters, len(past.ids))
        record = next(records, None)
    if record is not None and record.kind == "images":
        past.images = _images(file, record, engine, past)
        record = next(records, None)
    records = itertools.chain([] if record is None else [record], records)
    for row in range(len(past.ids)):
        tokens, cache = read_cache(file, records, engine)
        if not np.array_equal(past.keys(row), tokens):
            raise CacheFileError(file, "is damaged: a row has other tokens than its KV cache")
        past.rows.append(cache)
    if next(records, None) is not None:
        raise CacheFileError(file, "is damaged: it has more than its rows")
    return past


def _batch(file: Path, record: Record) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask, [rows, columns]."""
    rows, columns = record.data[:16].view("<i8").tolist() if len(record.data) >= 16 else (0, 0)
    if record.kind != "batch" or min(rows, columns) < 1 or 16 + 5 * rows * columns != len(record.data):
        raise CacheFileError(file, "is not a saved past_key_values")
    ids, mask = np.split(record.data[16:], [4 * rows * columns])
    return (
        torch.from_numpy(ids.view("<i4").astype(np.int64).reshape(rows, columns)),
        torch.from_numpy((mask != 0).reshape(rows, columns)),
    )


def _adapters(file: Path, record: Record, adapters: Mapping[str, Adapter], rows: int) -> list[AppliedAdapter | None]:
    """Return the adapters of the rows from their keys."""
    known = {one.digest: one for one in adapters.values()}
    found: list[AppliedAdapter | None] = []
    for key in record.data.tobytes().decode(errors="replace").split("\n"):
        digest, _, scale = key.partition(".")
        if key and digest not in known:
            hint = "load it with load_adapter first"
            raise CacheFileError(file, "was computed with an adapter that is not loaded", hint=hint)
        try:
            found.append(AppliedAdapter(known[digest], float.fromhex(scale)) if key else None)
        except (ValueError, OverflowError):
            raise CacheFileError(file, "is damaged: an adapter's scale is not a number") from None
    if len(found) != rows:
        raise CacheFileError(file, f"is damaged: it has {len(found)} adapters for {rows} rows")
    return found


def _key(engine: Engine) -> bytes:
    """Return the key of an engine's files. Other files of its caches have other keys, by the name of the tenant."""
    return cache_key(engine, fingerprint(engine), "past_key_values")


def given_cache(past_key_values: Any, cache: Any) -> Any:
    """Return a call's cache, which releases of transformers from 5.24 on call ``cache``; None for no cache.

    Raises InputError where both names have a value.
    """
    if past_key_values is not None and cache is not None:
        raise InputError("past_key_values and cache are both given; they name the same argument, so leave one out")
    return cache if past_key_values is None else past_key_values


def past_of(engine: Engine, past_key_values: Any, cache: Any, rows: int) -> LookaheadCache:
    """The caller's cache, which is given under one of two names, checked; or an empty one."""
    past = given_cache(past_key_values, cache)
    if past is None or past == ():  # transformers 4.37 makes () of a cache that shows no layers
        return LookaheadCache(engine, rows)
    name = "cache" if past_key_values is None else "past_key_values"
    if not isinstance(past, LookaheadCache):
        raise InputError(
            f"{name} is a {type(past).__name__}; leave it out of the first call, and pass on the"
            " past_key_values of its output"
        )
    if past.engine is not engine:
        raise InputError("past_key_values come from another model; pass on those of this model's output")
    if past.batch_size != rows:
        raise InputError(
            f"past_key_values hold {past.batch_size} rows and input_ids {rows}; they must be equal"
            " (batch_select_indices and batch_repeat_interleave change the cache's)"
        )
    return past


def check_positions(mask: torch.Tensor, before: int, position_ids: Any, cache_position: Any = None) -> None:
    """Raise InputError for positions that do not follow from the mask: the engine counts them itself.

    Args:
        mask: bool [rows, columns].
        before: how many of the columns came before those that have positions here.
        position_ids: int64 [rows or 1, columns - before], any values at padding; or None.
        cache_position: int64 [columns - before], or None.
    """
    new = mask[:, before:]
    if position_ids is not None:
        given = torch.as_tensor(position_ids).cpu()
        expected = (mask.cumsum(1) - 1)[:, before:]
        if given.dim() != 2 or given.shape[1] != new.shape[1] or given.shape[0] not in (1, len(new)):
            raise InputError(f"position_ids has shape {tuple(given.shape)}; it must be {tuple(new.shape)}")
        given = given.expand_as(expected)
        if not torch.equal(given[new], expected[new]):
            row = int((given != expected).logical_and(new).any(1).to(torch.int8).argmax())
            raise InputError(
                f"position_ids of row {row} are {given[row].tolist()}; a token's position is the number of tokens"
                f" before it, here {expected[row].tolist()}: leave position_ids out, and give attention_mask where"
                " there is padding"
            )
    columns = None if cache_position is None else torch.as_tensor(cache_position).tolist()
    if columns not in (None, list(range(before, mask.shape[1]))):
        raise InputError(
            f"cache_position is {columns}; columns follow those in past_key_values, {before} to"
            f" {mask.shape[1] - 1}: leave it out"
        )
