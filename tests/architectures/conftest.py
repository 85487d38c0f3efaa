"""A fixture that forbids reading tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ipex_lookahead.checkpoints import GgufCheckpoint, SafetensorsCheckpoint


@pytest.fixture
def nothing_is_read() -> Iterator[None]:
    """Sizes are checked against the file before memory is taken for any weight."""

    def read(self: Any, name: str) -> Any:
        raise AssertionError(f"{name} was read")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SafetensorsCheckpoint, "read", read)
        patch.setattr(GgufCheckpoint, "read", read)
        yield
