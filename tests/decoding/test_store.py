"""A store shared by generations: filled, found again, never in the way of the output."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.store import Store, Stores
from ipex_lookahead.errors import InputError
from tests.support.generate import generate
from tests.support.scripted_engine import ScriptedEngine, scripted

TEXT = list(range(11, 27))


def run(engine: ScriptedEngine, store: Path, stores: Stores | None = None, strategy: str = "suffix") -> GenerationStats:
    stats = GenerationStats()
    config = LookaheadConfig(strategy, 4, store=str(store), adaptive=False)
    out = generate(engine, [[1, 2]], max_new_tokens=16, lookahead=config, stats=stats, stores=stores)
    assert out.tolist() == [[1, 2, *TEXT]]
    return stats


@pytest.fixture
def engine() -> ScriptedEngine:
    return scripted(TEXT, 64, 2)


@pytest.mark.parametrize("strategy", ["suffix", "auto"])
def test_the_second_generation_profits_from_the_first(engine: ScriptedEngine, tmp_path: Path, strategy: str) -> None:
    file = tmp_path / "store"
    first = run(engine, file, strategy=strategy)
    assert Store.open(file, 64).texts() == [TEXT]
    second = run(engine, file, strategy=strategy)
    assert second.accepted > first.accepted
    assert second.steps <= 6
    assert Store.open(file, 64).texts() == [TEXT, TEXT]


def test_every_sequence_of_a_batch_is_remembered_without_padding(engine: ScriptedEngine, tmp_path: Path) -> None:
    file = tmp_path / "store"
    config = LookaheadConfig("auto", 4, store=str(file))
    generate(engine, [[1, 2], [3, 4]], max_new_tokens=5, eos_token_id=13, pad_token_id=0, lookahead=config)
    assert Store.open(file, 64).texts() == [[11, 12, 13]] * 2


def test_an_open_store_is_read_once(engine: ScriptedEngine, tmp_path: Path) -> None:
    stores, file = Stores(64, lambda: {"a": 0}), tmp_path / "store"
    run(engine, file, stores)
    stores.flush()
    good = file.read_bytes()
    file.write_bytes(b"damaged by another")
    run(engine, file, stores)
    stores.flush()
    assert len(stores.get(str(file))) == 2 * len(TEXT)
    assert file.read_bytes() == b"damaged by another"
    file.write_bytes(good)
    with pytest.raises(InputError, match="another vocabulary"):
        run(engine, file)


def test_what_is_remembered_in_memory_goes_with_the_model(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stores = Stores(64)
    memory = Path("memory")
    first, second = run(engine, memory, stores), run(engine, memory, stores)
    assert second.accepted > first.accepted
    assert stores.get("memory").texts() == [TEXT, TEXT]
    assert run(engine, memory, Stores(64)).accepted == first.accepted, "another model knows nothing of it"
    assert run(engine, memory).accepted == first.accepted
    assert not list(tmp_path.iterdir()), "nothing is on disk"
    stores.forget()
    assert run(engine, memory, stores).accepted == first.accepted
    stores.add("./memory", [TEXT])
    stores.close()
    assert Store.open("memory", 64).texts() == [TEXT], "a file may have that name, too"


def test_auto_remembers_by_itself_unless_told_not_to(engine: ScriptedEngine) -> None:
    def accepted(stores: Stores, store: str | None = None, strategy: str = "auto") -> int:
        stats, config = GenerationStats(), LookaheadConfig(strategy, 4, store=store, adaptive=False)
        generate(engine, [[1, 2]], max_new_tokens=16, lookahead=config, stats=stats, stores=stores)
        return stats.accepted

    stores = Stores(64)
    first = accepted(stores)
    assert accepted(stores) > first
    assert accepted(stores, "memory") > first, "it is the one by that name"
    assert accepted(stores, "none") == first
    assert accepted(stores, "memory:mine") == first, "another name, another memory"
    assert accepted(stores, "memory:mine") > first
    assert stores.get("memory").texts() == [TEXT] * 3
    assert stores.get("memory:mine").texts() == [TEXT] * 2
    stores.forget()
    assert accepted(stores) == first
    assert accepted(stores, "memory:mine") == first
    suffix = Stores(64)
    assert accepted(suffix, strategy="suffix") == accepted(suffix, strategy="suffix")


def test_a_damaged_store_is_an_error_before_anything_is_generated(engine: ScriptedEngine, tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.write_bytes(b"what is this")
    with pytest.raises(InputError, match="not a lookahead store"):
        run(engine, file)
    assert not engine.batches
    assert file.read_bytes() == b"what is this"


def test_a_store_that_cannot_be_written_does_not_cost_the_output(
    engine: ScriptedEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        run(engine, tmp_path / "absent" / "store")
    assert "cannot be written" in caplog.text


def test_strategies_without_a_store_say_so() -> None:
    with pytest.raises(InputError, match="'prompt_lookup' uses no store; use auto or suffix"):
        LookaheadConfig(store="x")
    with pytest.raises(InputError, match="path of a file"):
        LookaheadConfig("auto", store="")
