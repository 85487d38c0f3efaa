from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session", params=["best", "plain"])
def device(request: pytest.FixtureRequest) -> Any:
    """The device that is chosen by default, in each spelling of its kernels."""
    from ipex_lookahead.engines.opencl.device import device_of

    return device_of(None, request.param == "plain")
