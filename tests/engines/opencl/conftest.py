from __future__ import annotations

from typing import Any

import pytest

SPELLINGS: dict[str, Any] = {"best": None, "plain": ()}


@pytest.fixture(scope="session", params=SPELLINGS)
def device(request: pytest.FixtureRequest) -> Any:
    """The device that is chosen by default, its kernels as it likes them best, and plain."""
    from ipex_lookahead.engines.opencl.device import device_of

    return device_of(None, SPELLINGS[request.param])
