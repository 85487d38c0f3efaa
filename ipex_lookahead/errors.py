"""All errors that this package raises, in one hierarchy.

    LookaheadError
    ├── ModelFormatError      a checkpoint contradicts its format (file, field, offset)
    ├── UnsupportedModelError a valid checkpoint that needs a feature this package lacks
    ├── LowBitFormatError     an unknown or unsuitable low-bit format
    ├── InputError            an invalid argument: empty prompt, negative budget, bad sampling parameter
    │   ├── ContextLengthError   more positions than the model or its cache can hold
    │   └── CacheFileError       a cache file that is damaged, truncated, or belongs to another model
    ├── EngineError           the engine cannot run here (native core not built, forced ISA not available)
    │   ├── BusyError            another thread uses the same cache
    │   ├── OutOfMemoryError     not enough memory on the host or device; also a MemoryError
    │   ├── MissingWeightError   a step of a model with missing weights
    │   ├── NonFiniteError       logits contain NaN or infinity
    │   └── MissingPackageError  a required package is not installed; also an ImportError
    ├── ServiceError          a service that is loading, draining or closed accepts no requests
    │   └── QueueFullError       the queue of requests is full; ``retry_after`` is the time to wait
    ├── DownloadError         a model could not be downloaded, or its checksum is wrong
    └── SaveError             a folder could not be written; existing files are unchanged

Messages state the value, what is allowed and what to do. ``hint`` is the command or change that resolves the error; the
command line prints it on a separate line, and so do tracebacks of Python 3.11 and later. Messages refer to arguments by
``arg``, because Python, the command line and the server use different names for them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from os import PathLike
from typing import Any

_NAMED = re.compile("\x0e([^\x0e\x0f=]*)(?:=([^\x0e\x0f]*))?\x0f")
"""Output of ``arg``, delimited by the control characters "shift out" and "shift in", which ``repr`` never produces."""


def arg(name: str, *value: object) -> str:
    """Mark an argument, optionally with a value, in a message or hint; in Python it reads ``engine='native'``."""
    return f"\x0e{name}{f'={value[0]!r}' if value else ''}\x0f"


def in_python(name: str, value: str) -> str:
    """Return ``name=value``, or only the name if the value is empty."""
    return f"{name}={value}" if value else name


def marked(name: str, value: str) -> str:
    """Return the argument as :func:`arg` marks it, for an error made of another one."""
    return f"\x0e{in_python(name, value)}\x0f"


def spelled(text: str, spell: Callable[[str, str], str] = in_python) -> str:
    """Replace each marked argument by ``spell(name, value)``; the value is Python's ``repr``, or empty."""
    return _NAMED.sub(lambda found: spell(found[1], found[2] or ""), text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class LookaheadError(Exception):
    """Base class of all errors of this package.

    Attributes:
        hint: the remedy; may be empty.
        argument: name of the invalid argument; empty for other errors.
        got: the argument's value.
        allowed: description of valid values.
    """

    def __init__(
        self, message: str = "", *, argument: str = "", got: object = None, allowed: str = "", hint: str = ""
    ) -> None:
        """Create an error; without ``message`` it is built from ``argument``, ``got`` and ``allowed``."""
        self._written = message or f"{arg(argument)} is {got!r}; it must be {allowed}", hint
        super().__init__()
        self.respell(in_python)
        self.argument, self.got, self.allowed = argument, got, allowed

    def respell(self, spell: Callable[[str, str], str]) -> None:
        """Write the arguments in message and hint as ``spell`` does, see :func:`spelled`."""
        message, self.hint = self.spelled(spell)
        self.args = (message,)
        if self.hint and sys.version_info >= (3, 11):  # a traceback shows it
            self.__notes__ = [f"hint: {self.hint}"]

    def spelled(self, spell: Callable[[str, str], str]) -> tuple[str, str]:
        """Return message and hint with arguments as ``spell`` writes them, see :func:`spelled`."""
        message, hint = self._written
        return spelled(message, spell), spelled(hint, spell)


class ModelFormatError(LookaheadError):
    """A checkpoint that contradicts its format.

    Attributes:
        file: the invalid file.
        field: name of the invalid field, tensor or key.
        offset: byte offset of the field in the file, or None if it has no position (a missing key).
        problem: description without the position.
    """

    def __init__(
        self, file: str | PathLike[str], field: str, offset: int | None, problem: str, *, hint: str = ""
    ) -> None:
        where = f" at byte {offset}" if offset is not None else ""
        super().__init__(f"{file}: {field}{where}: {problem}", hint=hint)
        self.file = str(file)
        self.field = field
        self.offset = offset
        self.problem = spelled(problem)


class UnsupportedModelError(LookaheadError):
    """A valid checkpoint that needs a feature this package lacks."""


class LowBitFormatError(LookaheadError, ValueError):
    """An unknown low-bit format, or one that does not suit the weight."""


class InputError(LookaheadError, ValueError):
    """An invalid argument."""


class ContextLengthError(InputError):
    """More positions than the model or its cache can hold.

    ``tokens`` and ``limit``: those of a prompt that is too long, at least, and the most that it may have; 0: not known.
    """

    def __init__(self, *arguments: Any, tokens: int = 0, limit: int = 0, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.tokens, self.limit = tokens, limit


class CacheFileError(InputError):
    """A cache file that is damaged, truncated, or belongs to another model.

    Attributes:
        file: its name.
        problem: description without the name.
    """

    def __init__(self, file: str | PathLike[str], problem: str, *, hint: str = "") -> None:
        super().__init__(f"the cache file {file} {problem}", hint=hint)
        self.file = str(file)
        self.problem = problem


class EngineError(LookaheadError, RuntimeError):
    """The engine cannot run on this machine."""


class BusyError(EngineError):
    """Another thread uses the same cache. Nothing was changed."""


class OutOfMemoryError(EngineError, MemoryError):
    """Not enough memory on the host or device."""


class MissingWeightError(EngineError):
    """A step of a model with missing weights."""


class NonFiniteError(EngineError):
    """Logits contain NaN or infinity, because of damaged weights or a faulty logits processor."""


class MissingPackageError(EngineError, ImportError):
    """A required optional package is not installed. ``hint`` is the install command."""


class ServiceError(LookaheadError, RuntimeError):
    """A service that is loading, draining or closed accepts no requests."""


class QueueFullError(ServiceError):
    """The queue of requests is full.

    Attributes:
        retry_after: seconds until the queue is likely to have room.
    """

    def __init__(self, message: str, *, retry_after: float, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class DownloadError(LookaheadError, RuntimeError):
    """A model could not be downloaded, or its checksum is wrong."""


class SaveError(LookaheadError, RuntimeError):
    """A folder could not be written. Existing files are unchanged."""
