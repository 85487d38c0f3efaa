"""Images in conversations: files as callers give them, and their places and features in a prompt."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path

from ipex_lookahead.conversation.image_parts import Picture
from ipex_lookahead.conversation.model import ChatModel
from ipex_lookahead.engines.images import Floats, PromptImage
from ipex_lookahead.errors import ContextLengthError, InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.vision.images import ImageLimits
from ipex_lookahead.vision.model import Layout, Prepared, VisionModel

ImageFile = bytes | str | PathLike[str]
"""An image of a caller in Python: the contents of a file, a path, or a ``data:`` URL."""

_BASE64 = ";base64,"
_REMOTE = ("http://", "https://")
_PIECE = 1 << 20
"""Characters of base64 that are decoded before other threads run; a multiple of four."""


def image_file(given: object, place: str) -> bytes:
    """Return the contents of an image file. Raises InputError, which names the place."""
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if isinstance(given, str) and given.startswith("data:"):
        return of_data_url(given, place)
    if not isinstance(given, str | PathLike):
        raise InputError(f"{place} is {type(given).__name__}; it must be a path, bytes or a data: URL")
    if isinstance(given, str) and given.lower().startswith(_REMOTE):
        raise InputError(
            f"{place} is the URL {given[:100]!r}; images are not downloaded",
            hint="download the image, and give the path of the file",
        )
    return file_bytes(given_path(given), place, "give the path of an image file, or its bytes")


def file_bytes(path: Path, place: str, hint: str) -> bytes:
    """Return the contents of an image file; no more than an image may have is read, also from a device or a pipe.

    Args:
        path: the file.
        place: name for messages.
        hint: for a file that cannot be read.

    Raises InputError if it cannot be read, or is too large.
    """
    most = ImageLimits.bytes
    try:
        with path.open("rb") as source:
            content = source.read(most + 1)
    except OSError as error:
        name = "''" if str(path) == "." else path
        raise InputError(f"{place}: {name} cannot be read: {error.strerror or error}", hint=hint) from None
    if len(content) > most:
        raise InputError(
            f"{place}: {path} has more than {most:,} bytes, the most for an image", hint="make the file smaller"
        )
    return content


def of_data_url(url: object, place: str) -> bytes:
    """Return the contents of a ``data:`` URL in base64. Raises InputError, which names the place."""
    head, mark, _ = url[:256].partition(_BASE64) if isinstance(url, str) else ("", "", "")
    if not isinstance(url, str) or not head.startswith("data:") or not mark:
        raise InputError(
            f"{place} must be a data: URL in base64: data:image/png;base64,...",
            argument=place,
            hint="images are not fetched from other hosts; download the image first",
        )
    return decoded(url[len(head) + len(_BASE64) :], place)


def decoded(text: str, place: str) -> bytes:
    """Return a file in base64, which may have line ends. Raises InputError, which names the place."""
    text = text.replace("\r", "").replace("\n", "")
    found = bytearray()
    try:
        for at in range(0, len(text), _PIECE):
            found += base64.b64decode(text[at : at + _PIECE], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{place} is not valid base64: {error}", argument=place) from None
    return bytes(found)


MEDIA = "<__media__>"
"""The place of an image in a prompt without a chat template, as llama-server's clients write it."""
_AROUND = ("<|vision_start|>", "<|vision_end|>")
"""Tokens around an image that Qwen's chat templates write themselves."""


def prompt_with_media(
    model: ChatModel, text: str, images: Sequence[bytes | Picture]
) -> tuple[list[int], list[PromptImage]]:
    """Return the tokens of a prompt without a chat template, and its images.

    Args:
        model: the model.
        text: the prompt, with ``MEDIA`` at the place of each image.
        images: the images in the order of the places.

    Raises InputError and ContextLengthError as :class:`Expansion`.
    """
    expansion = Expansion(model, images)
    parts = text.split(MEDIA)
    if len(parts) - 1 != len(images):
        raise InputError(f"the prompt has {MEDIA} {len(parts) - 1} times for {len(images)} images")
    marker = model.spelling(model.image_token if model.vision.marker is None else model.vision.marker)
    for word in (marker, model.spelling(model.image_token)):
        if word in text:
            raise InputError(f"the prompt has {word}, the model's placeholder for images", hint=f"write {MEDIA}")
    before, after = _AROUND if all(word in model.special_tokens for word in _AROUND) else ("", "")
    ids = model.tokenizer.encode(expansion.text(f"{before}{marker}{after}".join(parts)), add_special_tokens=True)
    return expansion.prompt(ids)


class Expansion:
    """The images of a prompt, as tokens: the text and the ids of the prompt get a place for each row of them.

    Args:
        model: the model.
        images: the images, or the contents of their files, in the order of the prompt.

    Attributes:
        layouts: each image's tokens.

    Raises:
        InputError: the model takes no images, or a file is not an image or exceeds a limit.
    """

    def __init__(self, model: ChatModel, images: Sequence[bytes | Picture]) -> None:
        model.vision.reader.limits.check_count(len(images))
        self._model = model
        self._pictures = [one if isinstance(one, Picture) else Picture(one) for one in images]
        self.layouts = [_layout(model.vision, one) for one in self._pictures]  # from headers

    def text(self, rendered: str) -> str:
        """Return the chat template's text with the tokens around each image's tiles, and one token for each tile.

        Raises InputError if the template has not written one place for each image.
        """
        model = self._model
        token = model.spelling(model.image_token)
        marker = token if model.vision.marker is None else model.spelling(model.vision.marker)
        parts = rendered.split(marker)
        if len(parts) - 1 != len(self._pictures):
            raise InputError(
                f"the chat template has written {len(parts) - 1} places for {len(self._pictures)} images",
                hint="use the model's own chat template, and remove its image tokens from texts",
            )
        found = [parts[0]]
        for layout, part in zip(self.layouts, parts[1:], strict=True):
            pieces = ("".join(p if isinstance(p, str) else model.spelling(p) for p in one) for one in layout.pieces)
            found += [token.join(pieces), part]
        return "".join(found)

    def prompt(self, ids: Sequence[int], *, counting: bool = False) -> tuple[list[int], list[PromptImage]]:
        """Return the prompt with a placeholder for each row, and its images, one for each tile, not encoded yet.

        Args:
            ids: those of :meth:`text`'s result.
            counting: decode no file, and return no images.

        Raises:
            InputError: a file is damaged or exceeds a limit, or a text has the token of an image's rows.
            ContextLengthError: the prompt is longer than the context.
        """
        model, vision = self._model, self._model.vision
        token = model.image_token
        places = [at for at, one in enumerate(ids) if one == token]
        counts = [count for layout in self.layouts for count in layout.counts]
        if len(places) != len(counts):
            raise InputError(
                f"the prompt has {len(places)} places for {len(counts)} parts of images",
                hint="use the model's own chat template and tokenizer, and remove its image tokens from texts",
            )
        length = len(ids) + sum(counts) - len(counts)
        if length >= model.max_context:  # not decoded
            raise ContextLengthError(
                f"the prompt has {length:,} tokens, {sum(counts):,} of them for images; the context has"
                f" {model.max_context:,}",
                hint="send fewer or smaller images, or load the model with a larger max_context",
                tokens=length,
                limit=model.max_context - 1,
            )
        found: list[int] = []
        images: list[PromptImage] = []
        at = end = 0
        if counting:
            for place, count in zip(places, counts, strict=True):
                found += [*ids[end:place], *([token] * count)]
                end = place + 1
            return [*found, *ids[end:]], []
        for picture in self._pictures:
            with _at(picture.place):
                tiles = vision.prepare(picture.file, picture.detail).tiles
            for tile in tiles:
                found += ids[end : places[at]]
                encode = partial(_features, vision, tile)
                images.append(PromptImage(len(found), None, tile.grid, tile.digest, encode=encode))
                found += [token] * tile.tokens
                end, at = places[at] + 1, at + 1
        return [*found, *ids[end:]], images


def _layout(vision: VisionModel, picture: Picture) -> Layout:
    with _at(picture.place):
        picture.layout = picture.layout or vision.layout(picture.file, picture.detail)
        return picture.layout


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Name the place of an image in errors."""
    try:
        yield
    except InputError as error:
        if not place:
            raise
        raise InputError(f"{place}: {error}", argument=place, hint=error.hint) from None


def _features(vision: VisionModel, tile: Prepared, pause: Callable[[], None]) -> tuple[Floats, tuple[Floats, ...]]:
    """Return a tile's features and deepstack features."""
    found = vision.features(tile, pause)
    return found.values, found.deepstack
