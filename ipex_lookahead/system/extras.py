"""Packages that some uses need and a plain installation leaves out: how each is asked for, in one spelling everywhere.

torch is one of them, with transformers: ``generate``, ``chat``, ``serve`` and ``quantize`` run without on our own core.
"""

from __future__ import annotations

from importlib.util import find_spec

from ipex_lookahead.errors import MissingPackageError

_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def installing(extra: str) -> str:
    """The command that installs an extra of this package; for ``torch`` its CPU build first.

    A plain ``pip install torch`` would fetch gigabytes of libraries for NVIDIA cards.
    """
    command = f"pip install 'ipex-lookahead[{extra}]'"
    return f"pip install torch --index-url {_CPU_INDEX} && {command}" if extra == "torch" else command


def torch_missing() -> str:
    """Which of torch and transformers are not installed, in words; empty where both are. Imports neither."""
    return " and ".join(name for name in ("torch", "transformers") if find_spec(name) is None)


def need_torch(what: str) -> None:
    """Raise MissingPackageError, an ImportError too, where torch or transformers, which ``what`` needs, is missing."""
    if missing := torch_missing():
        raise torch_needed(what, missing)


def torch_needed(what: str, missing: str) -> MissingPackageError:
    """The error that says, in one sentence, what to install."""
    are = "which are" if " and " in missing else "which is"
    return MissingPackageError(f"{what} needs {missing}, {are} not installed: {installing('torch')}")
