"""Facts about this machine and its software for reports. They hold no path, host name or user name."""

from __future__ import annotations

import platform
import re
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ipex_lookahead.errors import EngineError
from ipex_lookahead.hub import home_folder

PACKAGES = ("ipex-lookahead", "torch", "transformers", "numpy", "ipex-llm", "intel-extension-for-pytorch")


def where_and_when() -> dict[str, Any]:
    """Return ``version``, ``date`` and ``machine`` for a report."""
    from ipex_lookahead import __version__

    return {"version": __version__, "date": date.today().isoformat(), "machine": machine()}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return processor, system, instruction sets and threads."""
    from ipex_lookahead.engines.identity import processor
    from ipex_lookahead.engines.machine import default_threads
    from ipex_lookahead.engines.native import core

    facts: dict[str, Any] = {
        "processor": processor(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    try:
        facts |= {"isa": core.chosen_isa(), "amx": core.amx_state(), "threads": default_threads()}
    except EngineError as error:
        facts["native_core"] = without_paths(str(error))
    return facts


def without_paths(text: str) -> str:
    """Return ``text`` without the folders of absolute paths: reports are pasted in public."""
    home = home_folder()
    if home is not None and str(home) != "/":
        text = text.replace(f"{home}/", "")
    return re.sub(r"(?<![\w:/.])(?:[A-Za-z]:)?[/\\](?:[^\s/\\'\"]+[/\\])+", "", text)
