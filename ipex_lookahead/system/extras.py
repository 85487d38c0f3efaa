"""Optional packages that some features need: install commands and errors, in one wording.

torch and transformers are optional as well: ``generate``, ``chat``, ``serve`` and ``quantize`` run on the native core.
"""

from __future__ import annotations

from importlib.util import find_spec

from ipex_lookahead.errors import MissingPackageError

_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def installing(extra: str) -> str:
    """Return the command that installs an extra of this package; for ``torch`` the CPU build is installed first.

    A plain ``pip install torch`` would download gigabytes of libraries for NVIDIA GPUs.
    """
    command = f"pip install 'ipex-lookahead[{extra}]'"
    return f"pip install torch --index-url {_CPU_INDEX} && {command}" if extra == "torch" else command


def torch_missing() -> str:
    """Return which of torch and transformers are not installed, or ""; imports neither."""
    return " and ".join(name for name in ("torch", "transformers") if find_spec(name) is None)


def need_torch(what: str) -> None:
    """Raise MissingPackageError if torch or transformers, which the feature ``what`` needs, is not installed."""
    if missing := torch_missing():
        raise torch_needed(what, missing)


def torch_needed(what: str, missing: str) -> MissingPackageError:
    """Return the error; its hint is the install command."""
    are = "which are" if " and " in missing else "which is"
    return MissingPackageError(f"{what} needs {missing}, {are} not installed", hint=installing("torch"))
