"""Fixtures that every test folder may use."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.gates import commit, large, rotating

ROOT = Path(__file__).resolve().parent.parent

# The same examples at every run, without a deadline that a busy machine breaks: a failure is one for every developer.
# Other examples: --hypothesis-profile=default --hypothesis-seed=N.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("same"), max_examples=40)
settings.load_profile("same" if large() else "quick")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Torch draws the same weights and inputs in every order of tests, and leaves the other cores to other tests."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
        torch.set_num_threads(1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a sample of the cases of ``rotating`` tests and of the gates, and name the group that each test runs with.

    Each commit runs a third of the attacks in ``tests/gates``, chosen by its hash; ``make gates`` runs all of them. A
    case or a file of gates that the command line names always runs. Groups are for ``--dist loadgroup``: the tests of a
    model type run in one process, so that its models are built once, and so do the other tests of a file.
    """
    named = {argument.partition("::")[2].partition("[")[0] for argument in config.args if "[" in argument}
    functions: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        group = params.get("model_type")
        item.add_marker(pytest.mark.xdist_group(group if isinstance(group, str) else item.path.stem))
        name = item.nodeid.partition("::")[2].partition("[")[0]
        if item.get_closest_marker("rotating") and name not in named:
            functions.setdefault((item.path, name), []).append(item)
    start = "" if large() else commit()
    dropped = {item for item in items if is_gate_of_another_commit(item, config, start)}
    for each in functions.values():
        if each[0] in dropped:
            continue
        (count,) = each[0].get_closest_marker("rotating").args  # type: ignore[union-attr]
        dropped.update(each)
        dropped.difference_update(rotating(each, count, parts_of, lambda item: item.nodeid, start))
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def is_gate_of_another_commit(item: pytest.Item, config: pytest.Config, start: str) -> bool:
    """Return True for an attack of ``tests/gates`` that this commit leaves to others."""
    named = any("gates" in Path(argument.partition("::")[0]).parts for argument in config.args)
    if large() or named or item.path.parent.name != "gates":
        return False
    name = item.nodeid.partition("[")[0]
    return int(hashlib.sha256(f"{start} {name}".encode()).hexdigest(), 16) % 3 > 0


def parts_of(item: pytest.Item) -> dict[str, str]:
    """Return the parameters of a test as texts that are equal in every process: values, or their indices."""
    spec = getattr(item, "callspec", None)

    def text(name: str, value: object) -> str:
        whole = value if isinstance(value, tuple) else (value,)
        plain = all(isinstance(one, str | int | float | None) for one in whole)
        return repr(value) if plain or spec is None else str(spec.indices[name])

    return {} if spec is None else {name: text(name, value) for name, value in spec.params.items()}


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
