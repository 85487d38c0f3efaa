"""Images of ``chat``: paths as people type them, and the files of sessions."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.temporary import temporary_file

MAX_BYTES = 32 << 20
"""Maximum size of an image file."""
SUFFIXES = ("png", "jpg", "jpeg", "webp", "gif", "bmp")
_NAMED = re.compile(
    r"""(?P<quote>["'])(?P<quoted>(?:~|\.{1,2})?/[^"'\n]+?\.(?:ENDINGS))(?P=quote)"""
    r"""|(?<!\S)(?P<bare>(?:~|\.{1,2})?/(?:\\.|[^\s"'\\])+?\.(?:ENDINGS))(?=[.,;:!?)]*(?:\s|$))""".replace(
        "ENDINGS", "|".join(SUFFIXES)
    ),
    re.IGNORECASE,
)
"""A path in a message that begins with /, ./, ../ or ~/ and ends as image files do; quoted, or with escaped spaces."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ChatImage:
    """An image of a message.

    Attributes:
        name: Name of its file, for people.
        file: Contents of the file.
    """

    name: str
    file: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.file).hexdigest()

    @classmethod
    def read(cls, typed: str) -> ChatImage:
        """Read the file of a path as typed, pasted or dropped on a terminal: quoted, escaped, or a ``file://`` URL.

        Raises InputError if it cannot be read, or is too large.
        """
        path = path_of(typed)
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise InputError(f"{path} is a device or a pipe", hint="give the path of an image file")
            with path.open("rb") as source:
                content = source.read(MAX_BYTES + 1)
        except OSError as error:
            raise InputError(
                f"{path} cannot be read: {error.strerror or error}", hint="give the path of an image file"
            ) from None
        if len(content) > MAX_BYTES:
            raise InputError(f"{path} has more than {MAX_BYTES:,} bytes, the most for an image", hint="make it smaller")
        return cls(path.name, content)


def path_of(typed: str) -> Path:
    """Return the path that a text names. A file with exactly this name comes first. Raises InputError."""
    text = typed.strip()
    if (literal := given_path(text)).exists():
        return literal
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return given_path(text[1:-1])
    if text.startswith("file://"):
        return given_path(unquote(urlsplit(text).path))
    return given_path(re.sub(r"\\(.)", r"\1", text))


def images_in(text: str) -> tuple[str, list[ChatImage]]:
    """Return a message without the paths of image files in it, as Ollama does, and the images.

    A path stays in the text unless it is absolute, or begins with ``./``, ``../`` or ``~/``, and is that of a file.
    """
    found: list[ChatImage] = []

    def taken(match: re.Match[str]) -> str:
        try:
            path = path_of(match["quoted"] or match["bare"])
            if not path.is_file():
                return match[0]
            found.append(ChatImage.read(str(path)))
        except InputError:
            return match[0]
        return ""

    rest = _NAMED.sub(taken, text)
    return (re.sub(r"[ \t]{2,}", " ", rest).strip(), found) if found else (text, [])


def written(image: ChatImage, folder: Path | None) -> dict[str, str]:
    """Return an image as conversations in files have it: in base64, or its hash if it is stored in ``folder``.

    Raises OSError.
    """
    if folder is None:
        return {"name": image.name, "data": base64.b64encode(image.file).decode("ascii")}
    digest = image.digest
    if not (file := folder / digest).exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        with temporary_file(file) as temporary:
            temporary.chmod(0o600)
            temporary.write_bytes(image.file)
            temporary.replace(file)
    return {"name": image.name, "sha256": digest}


def read_written(found: Any, folder: Path) -> ChatImage:
    """Return the image that :func:`written` described. Raises InputError."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise InputError("an image has no name")
    name, data, digest = found["name"], found.get("data"), found.get("sha256")
    try:
        if isinstance(data, str):
            return ChatImage(name, base64.b64decode(data, validate=True))
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise InputError(f"the image {name!r} has neither data nor a hash")
        image = ChatImage(name, (folder / digest).read_bytes())
    except (binascii.Error, ValueError) as error:
        raise InputError(f"the image {name!r} is not valid base64: {error}") from None
    except OSError as error:
        raise InputError(f"the image {name!r} cannot be read: {error.strerror or error}") from None
    if image.digest != digest:
        raise InputError(f"the image {name!r} has changed: {folder / digest} has another hash")
    return image


def remove_others(folder: Path, used: Collection[str]) -> None:
    """Remove the image files of a session that no message has any more."""
    if not folder.is_dir():
        return
    for file in folder.iterdir():
        if _SHA256.fullmatch(file.name) and file.name not in used:
            file.unlink(missing_ok=True)
