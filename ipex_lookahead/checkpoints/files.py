"""Positioned reads from a file, so that concurrent changes of the file cause an error instead of a signal."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import ModelFormatError


class BinaryFile:
    """A regular file, read with positioned reads into this process's memory.

    Mapping would be slightly faster, but truncating a mapped file kills the process (SIGBUS), and overwriting it
    changes weights in use.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open ``path``; raise ModelFormatError if it cannot be opened or is not a regular file."""
        self.path = Path(path)
        self._descriptor = -1
        try:
            # O_NONBLOCK keeps the opening of a named pipe from waiting for a writer; regular files ignore it.
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._descriptor)
        except (OSError, ValueError) as error:
            self.close()
            raise ModelFormatError(self.path, "file", None, f"cannot be opened: {_reason(error)}") from None
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ModelFormatError(self.path, "file", None, "is not a regular file")
        self.size = status.st_size

    def read(self, offset: int, count: int, field: str) -> bytes:
        """Return ``count`` bytes from ``offset``; raise ModelFormatError with ``field`` if the file has fewer."""
        buffer = np.empty(self._bounded(offset, count, field), np.uint8)
        self.read_into(offset, buffer, field)
        return buffer.tobytes()

    def read_into(self, offset: int, buffer: npt.NDArray[np.generic], field: str) -> None:
        """Fill the C-contiguous ``buffer`` from ``offset``. Raises as :meth:`read`."""
        self._bounded(offset, buffer.nbytes, field)
        view = buffer.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise ModelFormatError(self.path, field, offset + done, f"cannot be read: {_reason(error)}") from None
            if got == 0:
                raise ModelFormatError(
                    self.path, field, offset + done, "the file became shorter while it was being read"
                )
            done += got

    def _bounded(self, offset: int, count: int, field: str) -> int:
        """Check a size against the file, before memory is allocated for it."""
        if self._descriptor < 0:
            raise ModelFormatError(self.path, field, offset, "the checkpoint has been closed")
        if count < 0 or offset < 0 or offset + count > self.size:
            raise ModelFormatError(
                self.path, field, offset, f"needs {count} bytes, but the file ends at byte {self.size}"
            )
        return count

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
