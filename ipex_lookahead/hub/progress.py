"""Progress of a download, for callers that show it themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a download.

    Attributes:
        stage: "listing": a request for the list of files of a model; "downloading" and "checking": one of its files.
        file: name of the file; "" while listing.
        digest: checksum of the file, such as ``sha256:...``; "" while listing.
        done, total: bytes of the file that are downloaded or checked, and its size.
    """

    stage: Literal["listing", "downloading", "checking"]
    file: str = ""
    digest: str = ""
    done: int = 0
    total: int = 0


Observe = Callable[[Progress], None]
"""Receives progress in the downloading thread; an exception that it raises ends the download, which can be resumed."""


def unobserved(_: Progress) -> None:
    """Ignore progress."""
