"""Images in a prompt: their features, the keys of their rows for caches, and the positions of rows around them.

A prompt with images is token ids, with the model's placeholder id for each row of an image, and a list of
:class:`PromptImage`. Nothing here depends on a model, a file or a device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import InputError

Floats = npt.NDArray[np.float32]
Keys = npt.NDArray[np.int64]
"""int64 [n], one for each row of a text: the token id, or for a row of an image a negative number of its content."""
Encode = Callable[[Callable[[], None]], tuple[Floats, Sequence[Floats]]]
"""Return an image's features and deepstack features; the given function is called between slices of the work."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptImage:
    """An image in a prompt.

    Attributes:
        start: index of its first placeholder among the prompt's tokens.
        features: float32 [count, hidden], the embeddings of its rows; they are not multiplied by the model's factor on
            embeddings. The model that encodes images returns them. None: ``encode`` is called before a step reads its
            rows, and never if a cache has them.
        grid: rows and columns of its features (after merging patches); their product is ``count``.
        digest: at least 16 bytes, a hash of all that the features depend on: final pixels, grid and encoder.
        deepstack: float32 [count, hidden] each, added to its rows after the text model's first layers (Qwen3-VL).
        encode: returns ``features`` and ``deepstack`` where they are not given.
    """

    start: int
    features: Floats | None
    grid: tuple[int, int]
    digest: bytes
    deepstack: tuple[Floats, ...] = ()
    encode: Encode | None = None

    @property
    def count(self) -> int:
        """Number of its rows, which is the number of its placeholders."""
        return self.grid[0] * self.grid[1]

    @property
    def end(self) -> int:
        """Index after its last placeholder."""
        return self.start + self.count

    def keys(self) -> Keys:
        """Return the keys of its rows: int64 [count], all negative, from SHA-256 in counter mode."""
        seed = hashlib.sha256(b"image rows\0" + self.digest + repr(self.grid).encode()).digest()
        blocks = (hashlib.sha256(seed + i.to_bytes(8, "little")).digest() for i in range(-(-self.count // 4)))
        found: Keys = np.frombuffer(b"".join(blocks), "<i8")[: self.count].astype(np.int64)
        found |= np.int64(-(2**63))
        return found


def row_keys(tokens: npt.NDArray[Any], images: Sequence[PromptImage]) -> npt.NDArray[Any]:
    """Return the keys of a text's rows, by which caches find its prefixes; without images ``tokens`` itself.

    Args:
        tokens: integers [n], the prompt or the first tokens of a text that begins with it.
        images: those of the prompt, ascending.
    """
    if not images:
        return tokens
    found = tokens.astype(np.int64)
    for image in images:
        part = found[image.start : image.end]
        part[:] = image.keys()[: len(part)]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class GivenRows:
    """Rows of one sequence of a ``Batch`` with given embeddings, and positions and visibility of rows around them.

    Such a sequence's rows are a chain.

    Attributes:
        sequence: index of the sequence in the batch.
        rows: int32 [n], ascending, among the sequence's rows; their tokens are placeholders.
        embeddings: float32 [n, hidden].
        deepstack: float32 [n, hidden] each, number i is added to the rows after layer i.
        positions: int32 [rows of the sequence, 3], the RoPE positions (time, row, column) of all of its rows; None:
            each row has its slot three times.
        last_seen: int32 [rows of the sequence], the last row that each row sees in layers with ``spans``, among the
            sequence's rows; None: each row sees itself last.
    """

    sequence: int
    rows: npt.NDArray[np.int32]
    embeddings: Floats
    deepstack: tuple[Floats, ...] = ()
    positions: npt.NDArray[np.int32] | None = None
    last_seen: npt.NDArray[np.int32] | None = None


def check_images(
    images: Sequence[PromptImage], tokens: npt.NDArray[Any], placeholder: int, hidden: int, deepstack: int
) -> None:
    """Check a prompt's images against its tokens and the model.

    Args:
        images: as given.
        tokens: integers [n], the prompt.
        placeholder: the model's id for rows of images.
        hidden: the model's hidden size.
        deepstack: number of further features of each row.

    Raises InputError for the first image that does not fit, and for placeholders without an image.
    """
    end = covered = 0
    for number, image in enumerate(images):
        named = f"image {number} (rows {image.start} to {image.end - 1} of the prompt)"
        if image.start < end or image.end > len(tokens) or image.count < 1:
            raise InputError(f"{named} is not behind the image before it and within the {len(tokens)} tokens")
        if len(image.digest) < 16:
            raise InputError(f"{named} has a digest of {len(image.digest)} bytes; there must be at least 16")
        if image.features is not None:
            _check_features(named, image, (image.features, *image.deepstack), hidden, deepstack)
        elif image.encode is None:
            raise InputError(f"{named} has neither features nor a function that encodes it; give one of them")
        if (tokens[image.start : image.end] != placeholder).any():
            raise InputError(f"{named} is not at placeholders: all of its tokens must be {placeholder}")
        end, covered = image.end, covered + image.count
    if (found := int((tokens == placeholder).sum())) != covered:
        raise InputError(f"the prompt has {found} image placeholders ({placeholder}), and its images {covered} rows")


def _check_features(named: str, image: PromptImage, parts: Sequence[Floats], hidden: int, deepstack: int) -> None:
    """Raise InputError for features of another type, shape or number; ``parts`` begins with those of the embeddings."""
    for part in parts:
        if part.dtype != np.float32 or part.shape != (image.count, hidden):
            raise InputError(
                f"{named} has features {part.dtype} {list(part.shape)} with a grid of {image.grid};"
                f" they must be float32 {[image.count, hidden]}"
            )
    if len(parts) != 1 + deepstack:
        raise InputError(f"{named} has {len(parts) - 1} deepstack features; the model has {deepstack}")


class ImageRows:
    """The images of one prompt, as a model's text part takes them; made once per request.

    Images without features are encoded before a step reads their rows: by :class:`ImageEncoding` of the scheduler in
    slices, or else by :meth:`given` at once.

    Args:
        images: ascending; see :func:`check_images`.
        grid_positions: True if the model has RoPE positions of three parts (M-RoPE).
        spans: True if some layers let the rows of an image see each other, so that a step must have all of its rows.

    Attributes:
        images: as given.
    """

    def __init__(self, images: Sequence[PromptImage], *, grid_positions: bool = False, spans: bool = False) -> None:
        self.images = tuple(images)
        self._parts = {
            image.start: (image.features, *image.deepstack) for image in images if image.features is not None
        }
        self.grid_positions = grid_positions
        self.spans = spans
        self._ends = np.array([image.end for image in self.images], np.int64)
        advances = [max(image.grid) - image.count if grid_positions else 0 for image in self.images]
        self._offsets = np.concatenate([[0], np.cumsum(advances, dtype=np.int64)])

    def offset(self, slot: int) -> int:
        """Return the RoPE position minus the slot of a text row."""
        return int(self._offsets[np.searchsorted(self._ends, slot, side="right")])

    def missing(self, first: int) -> PromptImage | None:
        """Return the first image without features that has rows from slot ``first`` on."""
        return next((one for one in self.images if one.end > first and one.start not in self._parts), None)

    def encoded(self, first: int) -> int:
        """Return the number of rows from slot ``first`` on before the first image without features."""
        image = self.missing(first)
        return 1 << 31 if image is None else max(0, image.start - first)

    def put(self, digest: bytes, features: Floats, deepstack: Sequence[Floats]) -> None:
        """Give the images with a digest their features. Raises InputError for another number of rows."""
        for image in self.images:
            if image.digest == digest and image.start not in self._parts:
                named = f"the image at rows {image.start} to {image.end - 1} of the prompt"
                _check_features(named, image, (features, *deepstack), features.shape[-1], len(deepstack))
                self._parts[image.start] = (features, *deepstack)

    def changed(self, images: Sequence[PromptImage]) -> ImageRows:
        """Return the rows of other images of the text; those that are here too keep their features."""
        found = ImageRows(images, grid_positions=self.grid_positions, spans=self.spans)
        known = {(image.start, image.digest) for image in self.images if image.start in self._parts}
        found._parts |= {one.start: self._parts[one.start] for one in images if (one.start, one.digest) in known}
        return found

    def _parts_of(self, image: PromptImage) -> Sequence[Floats]:
        """Return the features and deepstack features of an image, which is encoded now if it has none."""
        if image.start not in self._parts:
            assert image.encode is not None
            self.put(image.digest, *image.encode(lambda: None))
        return self._parts[image.start]

    def fitted(self, first: int, rows: int) -> int:
        """Return the number of rows of a step that begins at slot ``first`` so that it ends outside of spans.

        It is at most ``rows``, unless the step begins in a span or at one: then all of the span's rows follow.
        """
        if self.spans:
            for image in self.images:
                if image.start < first + rows < image.end:
                    return image.start - first if image.start > first else image.end - first
        return rows

    def given(self, sequence: int, first: int, rows: int) -> GivenRows | None:
        """Return what differs in a step's rows at slots ``first`` to ``first + rows - 1``; None: nothing.

        Args:
            sequence: index of the sequence in the batch.
            first: slot of the first row.
            rows: number of rows, a chain.
        """
        last = first + rows
        here = [image for image in self.images if image.start < last and first < image.end]
        if not here:
            return None
        parts = [slice(max(image.start, first) - image.start, min(image.end, last) - image.start) for image in here]
        at = [
            np.arange(image.start + part.start, image.start + part.stop)
            for image, part in zip(here, parts, strict=True)
        ]
        seen = positions = None
        if self.spans:
            seen = np.arange(rows, dtype=np.int32)
            for image in here:
                seen[max(image.start - first, 0) : image.end - first] = image.end - 1 - first
        if self.grid_positions:
            slots = np.arange(first, last)
            offsets = self._offsets[np.searchsorted(self._ends, slots, side="right")]
            positions = np.repeat((slots + offsets)[:, None], 3, axis=1).astype(np.int32)
            for image, part in zip(here, parts, strict=True):
                begin = image.start + self.offset(image.start)
                row, column = np.divmod(np.arange(part.start, part.stop), image.grid[1])
                own = positions[image.start + part.start - first : image.start + part.stop - first]
                own[:, 0], own[:, 1], own[:, 2] = begin, begin + row, begin + column
        found = [[one[part] for one in self._parts_of(image)] for image, part in zip(here, parts, strict=True)]
        embeddings, *deepstack = (np.concatenate(some) for some in zip(*found, strict=True))
        rows_of_images = (np.concatenate(at) - first).astype(np.int32)
        return GivenRows(sequence, rows_of_images, embeddings, tuple(deepstack), positions, seen)
