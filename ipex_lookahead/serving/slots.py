"""llama-server's slots: the last text of each slot, which a client can save to a file and restore.

This server assigns no memory to slots: answers share the prefix cache. A slot is a number for the last text of an
answer, prompt included, and every tenant has its own numbers. Saving a slot writes the text's KV cache from the prefix
cache to a file; restoring puts it back, so that the next prompt that begins with this text is found there.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.cache_chunks import read_key
from ipex_lookahead.decoding.prefix_cache import alike
from ipex_lookahead.errors import CacheFileError, InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.serving.failures import ApiError, refused

if TYPE_CHECKING:
    from ipex_lookahead.architectures.adapter import AppliedAdapter

MOST_TENANTS = 1024
"""Maximum number of tenants with slots; the texts of the least recently used one are forgotten."""
CONTINUES = 0.9
"""Share of a slot's prompt that a prompt must begin with to continue the slot."""
_BAD = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f-\x9f]|[\ud800-\udfff]')
_MOST_BYTES = 200


class _Text:
    """The text of a slot: its keys, int64 [n], the number of its prompt's tokens, and the adapter that made it.

    Keys are token ids, and numbers of the content of images at their rows.
    """

    __slots__ = ("adapter", "prompt", "tokens")

    def __init__(self, tokens: npt.NDArray[np.int64], prompt: int, adapter: AppliedAdapter | None) -> None:
        self.tokens, self.prompt, self.adapter = tokens, prompt, adapter


class Slots:
    """The texts of the slots of all tenants, and the folder of saved slots. For the event loop's thread.

    Args:
        count: number of slots of each tenant.
        folder: folder of the files; it exists.
        most_files: maximum number of files of a tenant.

    Attributes:
        count: as given.
        changing: held while a slot is saved, restored or erased, so that one KV cache at a time is copied.
    """

    def __init__(self, count: int, folder: Path, most_files: int) -> None:
        self.count = count
        self._folder = folder
        self.changing = asyncio.Lock()
        self._most_files = most_files
        self._texts: OrderedDict[str, OrderedDict[int, _Text]] = OrderedDict()  # tenant -> slot, last used last

    def number(self, given: int) -> int:
        """Return the number of a slot. Raises ApiError for one that does not exist."""
        if not 0 <= given < self.count:
            raise refused("id_slot", f"{given} is not a slot; slots are 0 to {self.count - 1}")
        return given

    def begin(
        self, tenant: str, prompt: Sequence[int], wanted: int | None, adapter: AppliedAdapter | None = None
    ) -> int:
        """Return the slot of an answer: the wanted one; -1 or None chooses one.

        That is the slot with the longest text of this adapter that the prompt continues, else an unused one, else the
        least recently used one. Raises ApiError for a slot that does not exist.
        """
        texts = self._of(tenant)
        ids = np.asarray(prompt, np.int64)
        number = self._chosen(texts, ids, adapter) if wanted in (None, -1) else self.number(wanted)
        self.put(tenant, number, ids, len(ids), adapter)
        return number

    def put(
        self,
        tenant: str,
        number: int,
        tokens: Sequence[int] | npt.NDArray[Any],
        prompt: int,
        adapter: AppliedAdapter | None = None,
    ) -> None:
        """Set the text of a slot, integers [n]; its first ``prompt`` tokens are the prompt."""
        texts = self._of(tenant)
        texts[number] = _Text(np.array(tokens, np.int64), prompt, adapter)
        texts.move_to_end(number)

    def text(self, tenant: str, number: int) -> tuple[npt.NDArray[np.int64], AppliedAdapter | None]:
        """Return the keys of a slot, int64 [n], and its adapter. Raises ApiError for a slot without a text."""
        found = self._of(tenant).get(self.number(number))
        if found is None:
            raise ApiError(400, f"slot {number} is empty: no answer has used it since the server's start")
        return found.tokens, found.adapter

    def erase(self, tenant: str, number: int) -> tuple[npt.NDArray[np.int64], AppliedAdapter | None]:
        """Forget the text of a slot; return its keys, int64 [n], and its adapter."""
        found = self._of(tenant).pop(self.number(number), None)
        return (np.empty(0, np.int64), None) if found is None else (found.tokens, found.adapter)

    def _of(self, tenant: str) -> OrderedDict[int, _Text]:
        texts = self._texts.setdefault(tenant, OrderedDict())
        self._texts.move_to_end(tenant)
        if len(self._texts) > MOST_TENANTS:
            self._texts.popitem(last=False)
        return texts

    def _chosen(
        self, texts: OrderedDict[int, _Text], prompt: npt.NDArray[np.int64], adapter: AppliedAdapter | None
    ) -> int:
        same = {number: text for number, text in texts.items() if text.adapter == adapter}
        shared = {number: alike(text.tokens[: len(prompt)], prompt) for number, text in same.items()}
        continued = [number for number, count in shared.items() if count >= max(1, CONTINUES * texts[number].prompt)]
        if continued:
            return max(continued, key=lambda number: shared[number])
        return next((number for number in range(self.count) if number not in texts), next(iter(texts), 0))

    # ---- files ---------------------------------------------------------------------------------------------------

    def file(self, tenant: str, name: Any, *, new: bool) -> Path:
        """Return the path of a saved slot; every tenant but "" has a folder of its own.

        Args:
            tenant: letters, digits and "#".
            name: the file name of a request.
            new: whether the file is to be written.

        Raises:
            ApiError: the name is not a file name; there is no such file, or it may not be written.
        """
        file = self._folder / (f"key-{tenant.replace('#', '-')}" if tenant else "") / _checked(name)
        if new:
            file.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            status = file.lstat()
        except OSError:
            if not new:
                raise refused("filename", f"there is no saved slot {name!r}") from None
            self._check_count(file.parent)
            return file
        if not stat.S_ISREG(status.st_mode):
            raise refused("filename", f"{name!r} is not a file; choose another name")
        if new:
            try:
                read_key(file)
            except CacheFileError:
                raise refused("filename", f"{name!r} exists and is not a saved slot; choose another name") from None
        return file

    def _check_count(self, folder: Path) -> None:
        count = sum(entry.is_file(follow_symlinks=False) for entry in os.scandir(folder))
        if count >= self._most_files:
            raise ApiError(
                400,
                f"filename: {count} files are saved, the maximum is {self._most_files}; use the name of one of them",
                param="filename",
                code="too_many_files",
            )


def checked_folder(folder: Path) -> Path:
    """Return the path of the folder of saved slots. Raises InputError for a folder that cannot be written to."""
    path = given_path(folder)
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"--slot-save-path {path} is not a folder that can be written to", hint="create it first")
    return path


def _checked(name: Any) -> str:
    """Return a file name. Raises ApiError for anything that is not the plain name of a file."""
    if not isinstance(name, str) or not name:
        raise refused("filename", "give the name of a file")
    if _BAD.search(name) or name[0] in ". " or name[-1] in ". " or len(name.encode()) > _MOST_BYTES:
        raise refused(
            "filename",
            f"{name[:100]!r} is not a plain file name: at most {_MOST_BYTES} bytes, no path, no control characters, "
            "none of : * ? \" < > |, and no '.' or space at either end",
        )
    return name
