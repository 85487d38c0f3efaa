"""API keys: read from a file, compared in constant time, never written anywhere."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path

LEAST = 16
"""Minimum number of characters of a key."""


class Keys:
    """The valid API keys; without any, requests need no key.

    Args:
        keys: the keys. Only their SHA-256 digests are stored.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def of_file(cls, file: Path, option: str = "--api-key-file") -> Keys:
        """Read one key per line; empty lines and lines that begin with # are skipped.

        Args:
            file: path of the file.
            option: the command-line option that errors name.

        Raises InputError if the file cannot be read, has no key, or has a key with fewer than ``LEAST`` characters.
        """
        try:
            lines = given_path(file).read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{file} is not UTF-8 text (byte {error.start})") from None
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}", hint=f"check {option}") from None
        keys = [stripped for line in lines if (stripped := line.strip()) and not stripped.startswith("#")]
        if not keys:
            raise InputError(
                f"{file} has no key", hint="write one key per line, such as the output of: openssl rand -hex 32"
            )
        for number, key in enumerate(keys, 1):
            if len(key) < LEAST or not key.isascii() or " " in key:
                raise InputError(
                    f"{file}: key {number} must have at least {LEAST} ASCII characters without spaces, got {len(key)}",
                    hint="create one with: openssl rand -hex 32",
                )
        return cls(keys)

    def __len__(self) -> int:
        """How many there are; none lets everybody."""
        return len(self._digests)

    def owner(self, key: str) -> str | None:
        """Return a name for the owner of this key, from which the key cannot be computed; None for an unknown key.

        It takes as long for every key, known or not.
        """
        digest, found = _digest(key), None
        for known in self._digests:
            if hmac.compare_digest(known, digest):
                found = known
        return None if found is None else found.hex()[:16]


def key_of(headers: Headers) -> str:
    """Return the key of a request, from ``Authorization: Bearer`` or ``x-api-key``; "" for a request without one."""
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
