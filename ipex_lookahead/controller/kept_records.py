"""How often heads were right, kept from one run to the next beside the costs of their models' steps.

A program that starts knows by it what its head is worth, and ``info`` says it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from ipex_lookahead.controller.kept_costs import engine_files, key_of, used, write
from ipex_lookahead.drafting.heads.record import Record
from ipex_lookahead.engines.identity import identity, may_be_of
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files.safe_json import load_object

FILE_BYTES = 1 << 16
MOST_DEPTHS, MOST_TESTS = 128, 1 << 53
AGAIN_SECONDS = 60.0
"""A program that goes on writes its record after so long."""


class Keeper:
    """A record, and where it is kept; knows nothing of the head, so that this may be collected.

    Args:
        file: None keeps it nowhere.
        says: what tells the record from others.
    """

    def __init__(self, file: Path | None, says: dict[str, Any]) -> None:
        self._file, self._says = file, says
        self.record = Record(() if file is None else _counts(file))
        self._written, self._at = self.record.tests, monotonic()

    def write(self) -> None:
        """Write it where it has changed."""
        record, self._at = self.record, monotonic()
        if self._file is not None and record.tests != self._written:
            write(self._file, {**self._says, "right": record.right, "tested": record.tested})
            self._written = record.tests

    def write_now_and_then(self) -> None:
        """The same, where it is long ago."""
        if monotonic() - self._at > AGAIN_SECONDS:
            self.write()


def record_of(engine: Any, folder: Path | None) -> Record:
    """The record of ``engine.head``, the same object for every generation; None as ``folder`` keeps none.

    It begins with what an earlier run has kept of this head on this model, and is written when the program ends, or the
    head goes, and now and then before.
    """
    head = engine.head
    if head.keeper is None:
        file, says = None, {}
        if folder is not None and head.source is not None:
            says = {"engine": identity(engine), "head": source_of(head.source)}
            file = folder / f"{key_of(says)}.json"
        head.keeper = Keeper(file, says)
        weakref.finalize(head, head.keeper.write)
    head.keeper.write_now_and_then()
    record: Record = head.keeper.record
    return record


def source_of(path: Path) -> dict[str, Any]:
    """What tells a head from others: where it lies, and since when."""
    path = path.resolve()
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0
    return {"path": str(path), "changed": changed}


def known_counts(folder: Path | None, config: Mapping[str, Any], source: Path) -> list[tuple[int, int]]:
    """(right, tested) by depth of a head on models with this config, in whatever format; of the one used last."""
    head = source_of(source)
    for _, content in engine_files(folder):
        if content.get("head") == head and may_be_of(content["engine"], config) and (found := _checked(content)):
            return found
    return []


def _counts(file: Path) -> list[tuple[int, int]]:
    try:
        found = load_object(file, FILE_BYTES)
    except ModelFormatError:
        return []
    used(file)
    return _checked(found)


def _checked(content: Mapping[str, Any]) -> list[tuple[int, int]]:
    """What a file says; nothing for anything that a keeper cannot have written."""
    right, tested = content.get("right"), content.get("tested")
    if not (isinstance(right, list) and isinstance(tested, list) and len(right) == len(tested) <= MOST_DEPTHS):
        return []
    counts = [*zip(right, tested, strict=True)]
    if any(type(n) is not int for pair in counts for n in pair):
        return []
    return counts if all(0 <= right <= tested <= MOST_TESTS and tested for right, tested in counts) else []
