"""Fixtures that every test folder may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# The same examples at every run, and as long as a busy machine takes for them: what fails, fails for everybody. Other
# examples: --hypothesis-profile=default --hypothesis-seed=N.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Weights and inputs that torch draws are the same whichever tests ran before, fixtures' too."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Of float32s that should be the same bits, where they differ: their bytes fill pages, and say nothing."""
    if op != "==" or not isinstance(left, bytes) or not isinstance(right, bytes):
        return None
    if len(left) % 4 or len(right) % 4 or left.isascii() or right.isascii():
        return None
    if len(left) != len(right):
        return [f"{len(left)} bytes == {len(right)} bytes"]
    ours, theirs = (np.frombuffer(each, np.float32) for each in (left, right))
    (differ,) = np.nonzero(ours.view(np.int32) != theirs.view(np.int32))
    first = ", ".join(f"[{i}] {ours[i]!s} and {theirs[i]!s}" for i in differ[:8])
    return [f"{len(left)} bytes == {len(right)} bytes", f"of {len(ours)} float32s {len(differ)} differ: {first}"]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The optional folder of shared material (prompts, golden ids, tiny models); skips with a reason without it."""
    folder = Path(os.environ.get("IPEX_LOOKAHEAD_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared material at {folder} (set IPEX_LOOKAHEAD_SHARED)")
    return folder


@pytest.fixture(scope="session", autouse=True)
def costs_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Calibrations of test models, also those of processes that tests start, lie apart from those of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPEX_LOOKAHEAD_COSTS", str(tmp_path_factory.mktemp("costs")))
        yield
