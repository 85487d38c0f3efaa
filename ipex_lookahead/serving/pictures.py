"""Images of requests: where each API has them, and the contents of their files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ipex_lookahead.conversation.image_parts import DETAILS, Picture
from ipex_lookahead.conversation.pictures import decoded, of_data_url
from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.failures import ApiError, from_ours, refused

if TYPE_CHECKING:
    from ipex_lookahead.serving.image_hosts import ImageHosts
    from ipex_lookahead.serving.limits import Limits

Content = str | list[dict[str, Any]]
"""Content of a message as chat templates take it: a text, or parts ``{"type": "text"}`` and ``{"type": "image"}``."""
TEXTS = ("text", "input_text", "output_text", "refusal")
IMAGES = ("image_url", "input_image", "image")
"""Types of parts with images: OpenAI's chat, OpenAI's Responses, and Anthropic."""


class Pictures:
    """Collects the images of a request in the order of its messages.

    Args:
        limits: of the server.

    Attributes:
        found: the images; those of URLs have no file until :func:`read_files`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.found: list[Picture] = []

    def add(self, given: str, place: str, detail: Any = None, *, is_url: bool = True) -> dict[str, Any]:
        """Add an image and return its part of a message.

        Args:
            given: a URL, or a file in base64.
            place: the field, for messages.
            detail: one of ``DETAILS``, or None.
            is_url: False for base64.

        Raises ApiError.
        """
        if detail is not None and detail not in DETAILS:
            raise refused(f"{place}.detail", f"it is {str(detail)[:40]!r}; it must be one of {', '.join(DETAILS)}")
        if not given:
            raise refused(place, "it is empty; it must be an image")
        if len(self.found) >= self._limits.images:
            raise refused(place, f"the request has more than {self._limits.images} images; send fewer")
        url, text = (given, "") if is_url else ("", given)
        self.found.append(Picture(url=url, base64=text, detail=detail or "auto", place=place))
        return {"type": "image"}

    def part(self, part: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Add the image of a part with a type of ``IMAGES``, and return its part of a message. Raises ApiError."""
        kind = str(part["type"])
        if kind == "image":
            return self._of_source(part.get("source"), f"{place}.source")
        if kind == "input_image" and part.get("file_id") is not None:
            raise refused(f"{place}.file_id", "files are not stored; send the image as a data: URL in image_url")
        given: Any = part.get("image_url")
        detail = part.get("detail")
        if isinstance(given, Mapping):
            detail, given = given.get("detail", detail), given.get("url")
        if not isinstance(given, str):
            raise refused(f"{place}.image_url", "it must be a URL: data:image/png;base64,...")
        return self.add(given, f"{place}.image_url", detail)

    def _of_source(self, source: Any, place: str) -> dict[str, Any]:
        given = source if isinstance(source, Mapping) else {}
        kind = given.get("type")
        if kind == "file":
            raise refused(place, "files are not stored; send the image with a source of the type base64")
        field = {"base64": "data", "url": "url"}.get(str(kind), "")
        file = given.get(field)
        if not isinstance(file, str):
            said = 'it must be {"type": "base64", "media_type": ..., "data": ...} or {"type": "url", "url": ...}'
            raise refused(place, said)
        return self.add(file, f"{place}.{field}", is_url=field == "url")


def content_of(content: Any, param: str, pictures: Pictures | None = None, *, between: str = "") -> Content:
    """Return a message's content: a text, null, or a list of parts that are texts or images.

    Args:
        content: as in the request.
        param: its place.
        pictures: receives its images; None: only texts are allowed.
        between: what separates texts that follow each other.

    Returns a text if there are no images. Raises ApiError, which names the part.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise refused(param, "it must be a text, or a list of parts")
    found: list[dict[str, Any]] = []
    for at, part in enumerate(content):
        kind, place = part.get("type"), f"{param}.{at}"
        if kind in IMAGES:
            if pictures is None:
                said = "images are allowed in messages of the user and in results of tools; move it there"
                raise refused(f"{place}.type", said)
            found.append(pictures.part(part, place))
            continue
        if kind not in TEXTS:
            raise refused(f"{place}.type", f"{kind!r} is not supported here; the model takes texts and images")
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise refused(f"{place}.text", "it must be a string")
        put_text(found, text, between)
    return joined(found)


def put_text(parts: list[dict[str, Any]], text: str, between: str = "") -> None:
    """Append a text to parts; texts that follow each other become one."""
    if parts and parts[-1]["type"] == "text":
        parts[-1]["text"] += between + text
    else:
        parts.append({"type": "text", "text": text})


def joined(parts: list[dict[str, Any]]) -> Content:
    """Return parts without images as a text, others as they are."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


async def read_files(pictures: Sequence[Any], hosts: ImageHosts, limits: Limits) -> None:
    """Read the files of the images of a request: decode base64, and download what has another URL.

    Raises ApiError, which names the image.
    """
    waiting = [one for one in pictures if isinstance(one, Picture) and not one.file]
    remote = [one for one in waiting if one.url and not one.url.startswith("data:")]
    for one in remote:
        hosts.check(one.url, one.place)
    local = [one for one in waiting if one.base64 or one.url.startswith("data:")]
    if local:
        try:
            await asyncio.to_thread(_decode, local)
        except InputError as error:
            raise from_ours(error) from None
    if remote:
        files = await hosts.files([(one.url, one.place) for one in remote])
        for one, file in zip(remote, files, strict=True):
            one.file = file
    if (total := sum(len(one.file) for one in waiting)) > limits.images_bytes:
        said = f"the images have {total:,} bytes together; at most {limits.images_bytes:,} are allowed"
        raise ApiError(413, said, code="too_large")


def _decode(pictures: Sequence[Picture]) -> None:
    for one in pictures:
        one.file = of_data_url(one.url, one.place) if one.url else decoded(one.base64, one.place)
        one.url = one.base64 = ""
