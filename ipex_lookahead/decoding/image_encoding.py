"""Images of prompts are encoded between forwards, one at a time, in slices that share the time with decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

from ipex_lookahead.decoding.sequence import Sequence as TokenSequence
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.engines.images import Floats, PromptImage
from ipex_lookahead.system.sliced_call import SlicedCall

MOST_SECONDS = 0.25
"""Longest time of slices between two forwards, to which the last slice may add its own length."""


class ImageEncoding:
    """Encodes the images that reading sequences need next. One thread at a time.

    A sequence reads its prompt up to an image that is not encoded yet. An image that the sequence's cache has is never
    encoded, and equal images of several sequences once. Owners alternate, and so do the groups of an owner.

    Args:
        turn: held during each slice, so that threads that generate on one engine alternate.
    """

    def __init__(self, turn: AbstractContextManager[Any]) -> None:
        self._turn = turn
        self._call: SlicedCall[tuple[Floats, Sequence[Floats]]] | None = None
        self._image: PromptImage | None = None
        self._group: SequenceGroup | None = None
        self._served: dict[object, int] = {}  # owner or group -> number of its last image
        self._images = 0
        self._credit = 0.0  # seconds that slices may take before the next forward; negative after a long slice

    def is_needed(self, reading: Iterable[SequenceGroup]) -> bool:
        """Return True if a sequence that reads has an image to be encoded."""
        return any(image is not None for _, _, image in _missing(reading))

    def run(
        self,
        reading: Sequence[SequenceGroup],
        forward: float,
        share: float,
        fail: Callable[[SequenceGroup, BaseException], None],
    ) -> None:
        """Encode for a share of the time of forwards; without a forward, for one slice.

        Args:
            reading: the groups that read prompts.
            forward: seconds of the forward before; 0: there was none.
            share: seconds of slices for each second of forwards.
            fail: called with a group and the exception of encoding its image.
        """
        self._credit = min(self._credit + share * forward, MOST_SECONDS) if forward else MOST_SECONDS
        while self._credit > 0 and (self._call is not None or self._begin(reading)):
            assert self._call is not None
            with self._turn:
                began = perf_counter()
                ended = self._call.advance()
                self._credit -= perf_counter() - began
            if ended:
                self._end(reading, fail)
            if not forward:
                break

    def keep_for(self, groups: Iterable[SequenceGroup]) -> None:
        """End the present encoding, unless one of the groups needs its image."""
        if self._image is not None and not any(
            image is not None and image.digest == self._image.digest for _, _, image in _missing(groups)
        ):
            self._drop()

    def _begin(self, reading: Sequence[SequenceGroup]) -> bool:
        """Begin with the next image; return False if there is none."""
        waiting = [(group, image) for group, _, image in _missing(reading) if image is not None]
        if not waiting:
            return False
        present = {one for group in reading for one in (group, group.owner)}
        self._served = {one: number for one, number in self._served.items() if one in present}
        group, image = min(
            waiting, key=lambda one: (self._served.get(one[0].owner, 0), self._served.get(one[0], 0), one[0].id)
        )
        self._images += 1
        self._served[group] = self._served[group.owner] = self._images
        assert image.encode is not None
        self._group, self._image = group, image
        self._call = SlicedCall(image.encode, "ipex-lookahead image")
        return True

    def _end(self, reading: Sequence[SequenceGroup], fail: Callable[[SequenceGroup, BaseException], None]) -> None:
        """Give the encoded image to all sequences that need it."""
        assert self._call is not None
        assert self._image is not None
        call, digest, first = self._call, self._image.digest, self._group
        self._drop()
        waiting = [(group, one) for group, one, other in _missing(reading) if other and other.digest == digest]
        try:
            features, deepstack = call.result()
            for _, sequence in waiting:
                assert sequence.images is not None
                sequence.images.put(digest, features, deepstack)
        except BaseException as error:  # others with this image try it for themselves
            groups = [group for group, _ in waiting]
            if groups:
                fail(first if first in groups else groups[0], error)

    def _drop(self) -> None:
        if self._call is not None:
            self._call.close()
        self._call = self._image = self._group = None


def _missing(groups: Iterable[SequenceGroup]) -> Iterator[tuple[SequenceGroup, TokenSequence, PromptImage | None]]:
    """Yield the sequences with images, each with the image that it needs next; None: none is missing."""
    for group in groups:
        for sequence in group.readers or group.live:
            if sequence.images is not None:
                held = 0 if sequence.cache is None else sequence.cache.length
                yield group, sequence, sequence.images.missing(held)
