"""Where and when something was measured: what every report carries beside its figures."""

from __future__ import annotations

from datetime import date
from typing import Any


def where_and_when() -> dict[str, Any]:
    """``version``, ``date`` and ``machine``, as every report has them."""
    from ipex_lookahead import __version__
    from ipex_lookahead.bench.doctor import machine

    return {"version": __version__, "date": date.today().isoformat(), "machine": machine()}
