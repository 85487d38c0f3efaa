"""``rotating``: samples that differ between commits, agree between processes and cover the values of each parameter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests import conftest
from tests.gates import rotating

CASES = list(product(range(6), "abcde", (True, False)))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IPEX_LOOKAHEAD_GATES", raising=False)


@pytest.mark.parametrize("rotation", ["", "one commit", "another"])
def test_a_sample_has_every_value_and_every_pair_that_fits(rotation: str) -> None:
    sample = rotating(CASES, 30, rotation=rotation)
    assert len(sample) == 30
    assert sample == [case for case in CASES if case in sample]
    for at, values in enumerate((range(6), "abcde", (True, False))):
        assert {case[at] for case in sample} == set(values)
    assert len({case[:2] for case in sample}) == 30


def test_every_case_runs_on_some_commits() -> None:
    assert {case for number in range(100) for case in rotating(CASES, 6, rotation=str(number))} == set(CASES)


def test_the_same_commit_takes_the_same_cases() -> None:
    assert rotating(CASES, 7, rotation="x") == rotating(CASES, 7, rotation="x")
    assert rotating(CASES, 7, rotation="x") != rotating(CASES, 7, rotation="y")


def test_small_lists_are_whole_and_none_leaves_a_test_to_the_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rotating(CASES, 100) == CASES
    assert rotating(CASES, 0) == []
    monkeypatch.setenv("IPEX_LOOKAHEAD_GATES", "large")
    assert rotating(CASES, 0) == CASES


COLLECTED = """
import pytest

@pytest.mark.parametrize("number", range(8))
@pytest.mark.rotating(2)
def test_numbers(number):
    pass
"""


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return the names of the tests that are collected from files, for a commit."""

    class Plugin:
        pytest_collection_modifyitems = staticmethod(conftest.pytest_collection_modifyitems)

        def __init__(self) -> None:
            self.ids: list[str] = []

        def pytest_collection_finish(self, session: pytest.Session) -> None:
            self.ids = [item.name for item in session.items]

    def collect(*arguments: str, start: str = "") -> list[str]:
        plugin = Plugin()
        monkeypatch.setattr(conftest, "commit", lambda: start)
        options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={tmp_path}"]
        pytest.main([*arguments, *options, "-o", "markers=rotating(count): a sample"], plugins=[plugin])
        return plugin.ids

    return collect


def test_marked_tests_are_sampled_unless_a_case_is_named(
    tmp_path: Path, collected: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "test_numbers.py"
    file.write_text(COLLECTED, encoding="utf-8")
    assert len(collected(str(file))) == 2
    assert collected(f"{file}::test_numbers[5]") == ["test_numbers[5]"]
    monkeypatch.setenv("IPEX_LOOKAHEAD_GATES", "large")
    assert len(collected(str(file))) == 8


def test_each_commit_runs_a_third_of_the_gates(
    tmp_path: Path, collected: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gates" / "test_attacks.py"
    file.parent.mkdir()
    file.write_text("".join(f"def test_{number}():\n    pass\n\n" for number in range(12)), encoding="utf-8")
    samples = [collected(str(tmp_path), start=str(number)) for number in range(8)]
    assert all(sample != samples[0] for sample in samples[1:])
    assert 12 < sum(map(len, samples)) < 60
    assert len(collected(str(file))) == 12
    monkeypatch.setenv("IPEX_LOOKAHEAD_GATES", "large")
    assert len(collected(str(tmp_path))) == 12
