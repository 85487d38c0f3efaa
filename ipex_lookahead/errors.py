"""Every error this package raises on purpose, one tree.

    LookaheadError
    ├── ModelFormatError      a checkpoint's bytes are not what its format says (file, field, offset)
    ├── UnsupportedModelError the checkpoint is well formed, but asks for something this package cannot run
    ├── LowBitFormatError     an unknown or unfit low-bit format
    ├── InputError            what the caller passed: empty prompt, negative budget, bad sampling parameter
    │   └── ContextLengthError   more positions than the model or its cache can hold
    ├── EngineError           the engine cannot run here (no compiled core, forced ISA absent)
    │   ├── BusyError            another thread is at the same cache
    │   ├── OutOfMemoryError     no memory, here or on the device, for what was to be run; a MemoryError too
    │   ├── MissingWeightError   a step of a model whose weights were not all set
    │   ├── NonFiniteError       logits hold NaN or infinity
    │   └── MissingPackageError  a package that this needs is not installed; an ImportError too
    ├── ServiceError          a service takes no request now: it is loading, draining or closed
    │   └── QueueFullError       as many requests wait as may; ``retry_after`` says when to come again
    ├── DownloadError         a model could not be fetched, or its checksum is wrong
    └── SaveError             a folder could not be written; what was there before is as it was

Every message says what was got, what is allowed and what to do. ``hint`` is the command or the change that mends it;
the command line prints it on a line of its own. Arguments in messages and hints are written with ``arg``: Python, the
command and the server each have their own names for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from os import PathLike

_NAMED = re.compile("\x0e([^\x0e\x0f=]*)(?:=([^\x0e\x0f]*))?\x0f")
"""What ``arg`` writes: between the control characters "shift out" and "shift in", which ``repr`` never leaves."""


def arg(name: str, *value: object) -> str:
    """An argument, with a value if one is given, in the message or hint of an error: ``engine='native'`` in Python."""
    return f"\x0e{name}{f'={value[0]!r}' if value else ''}\x0f"


def in_python(name: str, value: str) -> str:
    """``name=value``, or the name alone where the value is empty."""
    return f"{name}={value}" if value else name


def spelled(text: str, spell: Callable[[str, str], str] = in_python) -> str:
    """A text with each argument as ``spell(name, value)`` has it; the value is Python's ``repr``, or empty."""
    return _NAMED.sub(lambda found: spell(found[1], found[2] or ""), text)


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class LookaheadError(Exception):
    """Base of all errors of this package.

    Attributes:
        hint: what to do; may be empty.
        argument: the name of the argument at fault; empty where the error is of something else.
        got: what was passed for it.
        allowed: what it may be, in words.
    """

    def __init__(
        self, message: str = "", *, argument: str = "", got: object = None, allowed: str = "", hint: str = ""
    ) -> None:
        """Without a message the error says of ``argument`` what was got and what is allowed."""
        self._written = message or f"{arg(argument)} is {got!r}; it must be {allowed}", hint
        super().__init__(spelled(self._written[0]))
        self.hint = spelled(hint)
        self.argument, self.got, self.allowed = argument, got, allowed

    def spelled(self, spell: Callable[[str, str], str]) -> tuple[str, str]:
        """Message and hint in the words of another surface: see ``spelled``."""
        message, hint = self._written
        return spelled(message, spell), spelled(hint, spell)


class ModelFormatError(LookaheadError):
    """A checkpoint whose bytes contradict its format.

    Attributes:
        file: the file at fault.
        field: the name of the field, tensor or key at fault.
        offset: byte offset of the field in the file, or None where the fault has no place (a missing key).
        problem: what is wrong, without the place.
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
    """A well-formed checkpoint that asks for something this package cannot run."""


class LowBitFormatError(LookaheadError, ValueError):
    """An unknown low-bit format, or one that does not fit the weight."""


class InputError(LookaheadError, ValueError):
    """An argument outside what is allowed."""


class ContextLengthError(InputError):
    """More positions than the model or its cache can hold."""


class EngineError(LookaheadError, RuntimeError):
    """The engine cannot run on this machine."""


class BusyError(EngineError):
    """Another thread is at the same cache. Nothing was changed."""


class OutOfMemoryError(EngineError, MemoryError):
    """No memory, here or on the device, for what was to be run."""


class MissingWeightError(EngineError):
    """A step of a model whose weights were not all set."""


class NonFiniteError(EngineError):
    """Logits hold NaN or infinity: weights are damaged, or a logits processor is at fault."""


class MissingPackageError(EngineError, ImportError):
    """A package that this needs, and that not every installation has, is not there. The message says how to get it."""


class ServiceError(LookaheadError, RuntimeError):
    """A service takes no request now: it is draining or closed."""


class QueueFullError(ServiceError):
    """As many requests wait as may.

    Attributes:
        retry_after: seconds after which a place is likely to be free.
    """

    def __init__(self, message: str, *, retry_after: float, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class DownloadError(LookaheadError, RuntimeError):
    """A model could not be fetched, or what was fetched is not what was asked for."""


class SaveError(LookaheadError, RuntimeError):
    """A folder could not be written. What was there before is as it was."""
