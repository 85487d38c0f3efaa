"""Images in conversations: files as callers give them, and their places and features in a prompt."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path

from ipex_lookahead.conversation.model import ChatModel
from ipex_lookahead.engines.images import Floats, PromptImage
from ipex_lookahead.errors import ContextLengthError, InputError
from ipex_lookahead.vision.model import Prepared, VisionModel

ImageFile = bytes | str | PathLike[str]
"""An image of a caller in Python: the contents of a file, a path, or a ``data:`` URL."""

_BASE64 = ";base64,"


def image_file(given: object, place: str) -> bytes:
    """Return the contents of an image file. Raises InputError, which names the place."""
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if isinstance(given, str) and given.startswith("data:"):
        return of_data_url(given, place)
    if not isinstance(given, str | PathLike):
        raise InputError(f"{place} is {type(given).__name__}; it must be a path, bytes or a data: URL")
    try:
        return Path(given).read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{place}: {error}", hint="give the path of an image file, or its bytes") from None


def of_data_url(url: object, place: str) -> bytes:
    """Return the contents of a ``data:`` URL in base64. Raises InputError, which names the place."""
    head, mark, _ = url[:256].partition(_BASE64) if isinstance(url, str) else ("", "", "")
    if not isinstance(url, str) or not head.startswith("data:") or not mark:
        raise InputError(
            f"{place} must be a data: URL in base64: data:image/png;base64,...",
            hint="images are not fetched from other hosts; download the image first",
        )
    try:
        return base64.b64decode(url[len(head) + len(_BASE64) :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{place} is not valid base64: {error}") from None


def with_images(model: ChatModel, ids: Sequence[int], files: Sequence[bytes]) -> tuple[list[int], list[PromptImage]]:
    """Return the prompt with a placeholder for each row of its images, and the images, which are not encoded yet.

    Args:
        model: the model.
        ids: a prompt with one placeholder for each image, from the chat template.
        files: the image files, in the order of the placeholders.

    Raises:
        InputError: the model takes no images, a file is not an image or exceeds a limit, or the chat template has not
            written one placeholder for each image.
        ContextLengthError: the prompt is longer than the context.
    """
    vision = model.vision
    vision.reader.limits.check_count(len(files))
    token = model.image_token
    places = [at for at, one in enumerate(ids) if one == token]
    if len(places) != len(files):
        raise InputError(
            f"the chat template has written {len(places)} places for {len(files)} images",
            hint="use the model's own chat template, and remove its image tokens from texts",
        )
    before, after = vision.around
    grids = [vision.size(file) for file in files]  # from headers: a prompt that is too long is not decoded
    counts = [rows * columns for rows, columns in grids]
    length = len(ids) + sum(counts) - len(files) + len(files) * (len(before) + len(after))
    if length >= model.max_context:
        raise ContextLengthError(
            f"the prompt has {length:,} tokens, {sum(counts):,} of them for images; the context has"
            f" {model.max_context:,}",
            hint="send fewer or smaller images, or load the model with a larger max_context",
            tokens=length,
            limit=model.max_context - 1,
        )
    found: list[int] = []
    images: list[PromptImage] = []
    end = 0
    for place, file in zip(places, files, strict=True):
        prepared = vision.prepare(file)
        found += [*ids[end:place], *before]
        encode = partial(_features, vision, prepared)
        images.append(PromptImage(len(found), None, prepared.grid, prepared.digest, encode=encode))
        found += [*([token] * prepared.tokens), *after]
        end = place + 1
    return [*found, *ids[end:]], images


def _features(vision: VisionModel, image: Prepared, pause: Callable[[], None]) -> tuple[Floats, tuple[Floats, ...]]:
    """Return an image's features and deepstack features."""
    found = vision.features(image, pause)
    return found.values, found.deepstack
