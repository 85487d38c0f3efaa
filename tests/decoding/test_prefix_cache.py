"""Kept beginnings: what is found is what was kept, the budget holds, and the bytes are those of reading anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ipex_lookahead.decoding.prefix_cache import PAGE, RUNNING_STATES, PrefixCache, pages_of
from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.engines.api import Batch, Cache, position_bytes, state_bytes
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.errors import InputError
from tests.support.hashed_engine import HashedCache, HashedEngine
from tests.support.sequence_groups import Answer, Submission, alone, group_of

ENGINE = HashedEngine(11)


def tokens(count: int, seed: int = 0) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 11, count)


def read(ids: npt.NDArray[np.int64], cache: Cache | None = None) -> HashedCache:
    """A cache that holds them, of which the first may be there."""
    cache = ENGINE.new_cache() if cache is None else cache
    left = ids[cache.length :].astype(np.int32)
    if len(left):
        ENGINE.forward(Batch([cache], [len(left)], left, np.arange(-1, len(left) - 1, dtype=np.int32)))
        cache.keep(list(range(len(left))))
    assert isinstance(cache, HashedCache)
    return cache


def kept(memory: PrefixCache, ids: npt.NDArray[np.int64], key: str = "") -> None:
    """Run a sequence of those tokens, on what is kept, and keep it."""
    found = memory.take(ids, key)
    cache, pages = (ENGINE.new_cache(), []) if found is None else found
    assert memory.extend(pages, len(ids))
    memory.keep(ids, read(ids, cache), pages, key)
    memory.release(pages)


def found(memory: PrefixCache, ids: npt.NDArray[np.int64], key: str = "") -> int:
    """Positions that a sequence finds, checked; they are given back at once."""
    got = memory.take(ids, key)
    if got is None:
        return 0
    cache, pages = got
    assert isinstance(cache, HashedCache)
    assert cache.tokens == ids[: cache.length].tolist()
    assert cache.states == read(ids[: cache.length]).states
    assert len(pages) == pages_of(cache.length)
    memory.release(pages)
    return cache.length


def test_stored_prefixes_stay_within_their_own_limit_but_for_the_last() -> None:
    memory = PrefixCache(100)
    memory.most_kept = 4
    texts = [np.append(first, tokens(99, first)) for first in range(3)]  # two pages each
    for text in texts:
        kept(memory, text)
    assert [found(memory, text) for text in texts] == [0, 99, 99]
    long = np.append(3, tokens(899))
    kept(memory, long)
    assert [found(memory, text) for text in (*texts, long)] == [0, 0, 0, 899]
    assert memory.kept == pages_of(900)


def test_the_longest_beginning_is_found_to_the_token() -> None:
    memory = PrefixCache(100)
    text = tokens(300)
    kept(memory, text)
    assert memory.kept == memory.used == 5
    lengths = [300, 301, 299, 257, 256, 65, 64, 63, 2]
    longer = np.append(text, 0)
    held = [found(memory, longer[:length]) for length in lengths]
    assert held == [min(length - 1, 300) for length in lengths], "what follows the last token is not kept"
    other = text.copy()
    other[130] = (other[130] + 1) % 11
    assert found(memory, other) == 130
    assert memory.hits == sum(held) + 130
    assert found(memory, text[:1]) == 0
    shifted = (text + 1) % 11
    assert found(memory, shifted) == 0
    kept(memory, np.concatenate([shifted[:64], text[64:]]))
    assert found(memory, np.concatenate([shifted[:63], text[63:]])) == 63, "a page stands for all before it"


def test_of_many_that_begin_alike_the_longest_is_found() -> None:
    memory = PrefixCache(100)
    common = tokens(70)
    ends = [np.concatenate([common, tokens(number, seed=5), tokens(40, seed=number)]) for number in range(0, 60, 7)]
    for text in ends:
        kept(memory, text)
    for text in ends:
        assert found(memory, text) == len(text) - 1
        assert found(memory, np.concatenate([text[:-20], (text[-20:] + 1) % 11])) == len(text) - 20
    assert found(memory, np.append(common, (ends[0][70] + 1) % 11)) >= 70


def test_a_page_that_is_not_whole_is_the_finders_own() -> None:
    """It is written to, so it counts; where there is no room for it, whole pages are all that is found."""
    memory = PrefixCache(4)
    text = tokens(100)
    kept(memory, text)
    assert memory.used == 2
    got = memory.take(text)
    assert got is not None
    cache, pages = got
    assert (cache.length, len(pages), memory.used) == (99, 2, 3)
    others: list[int] = []
    assert memory.extend(others, 2 * PAGE), "the kept page that nobody runs on makes way"
    assert memory.used == 4
    memory.release(pages)
    assert found(memory, text) == 0

    memory, text, running = PrefixCache(3), tokens(130), []
    assert memory.extend(running, 130)
    memory.keep(text[:128], read(text), running)
    assert found(memory, text[:100]) == 64, "all pages run"
    memory.release(running)
    assert found(memory, text[:100]) == 99


def test_a_key_finds_its_own_only() -> None:
    memory = PrefixCache(100)
    text = tokens(200)
    kept(memory, text, "alice")
    assert found(memory, text, "bob") == found(memory, text) == 0
    assert found(memory, text, "alice") == 199


def test_a_longer_text_takes_the_place_of_its_beginning() -> None:
    memory = PrefixCache(100)
    text = tokens(400)
    for length in (130, 200, 400, 256, 130):
        kept(memory, text[:length])
    assert memory.kept == memory.used == 7
    assert found(memory, text) == 399


def test_texts_with_a_common_beginning_share_its_pages() -> None:
    memory = PrefixCache(100)
    first, second = tokens(256, seed=1), tokens(256, seed=2)
    second[:128] = first[:128]
    kept(memory, first)
    kept(memory, second)
    assert memory.used == 4 + 2
    assert found(memory, np.append(first, 0)) == found(memory, np.append(second, 0)) == 256


def test_the_least_recently_used_goes_first_and_the_budget_holds() -> None:
    memory = PrefixCache(6)
    texts = [np.append(seed, tokens(128, seed)) for seed in range(3)]
    for text in texts:
        kept(memory, text)
        assert memory.used <= 6
    assert [found(memory, text) for text in texts] == [0, 128, 128], "each has three pages"
    found(memory, texts[1])
    kept(memory, np.append(9, tokens(128, 9)))
    assert [found(memory, text) for text in texts] == [0, 128, 0]
    memory.clear()
    assert memory.used == memory.kept == 0
    assert found(memory, texts[1]) == 0


def test_running_sequences_keep_their_pages() -> None:
    memory = PrefixCache(5)
    text = tokens(257)
    kept(memory, text[:256])
    got = memory.take(text)
    assert got is not None
    pages, other = got[1], []
    assert memory.extend(other, PAGE)
    assert not memory.extend(other, 2 * PAGE)
    assert other == other[:1]
    assert memory.kept == 4
    memory.release(pages)
    assert memory.extend(other, 5 * PAGE), "what is kept makes way"
    assert memory.kept == 0
    assert memory.extend_to(other, 5 * PAGE - 3, 10) == 3
    assert memory.extend_to(other, 5 * PAGE, 10) == 0
    memory.release(other)
    assert memory.used == 0
    assert memory.available == 5


def test_an_engine_whose_rows_see_their_neighbours_keeps_nothing() -> None:
    memory = PrefixCache(100, keeps=False)
    kept(memory, tokens(200))
    assert memory.used == 0
    assert found(memory, tokens(200)) == 0


def test_no_room_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="it needs one"):
        PrefixCache(0)


def run_all(engine: HashedEngine, memory: PrefixCache | None, wanted: list[Submission]) -> list[Answer]:
    """One request after the other."""
    answers = []
    for submission in wanted:
        scheduler = Scheduler(engine, memory=memory)
        group, answer = group_of(engine, submission)
        scheduler.submit(group)
        while scheduler.busy:
            scheduler.step()
        assert group.error is None
        answers.append(answer)
    return answers


def test_a_second_turn_reads_the_new_tokens_only() -> None:
    engine = HashedEngine(11)
    memory = PrefixCache(100)
    first = Submission(tuple(tokens(3000).tolist()), 40)
    (answer,) = run_all(engine, memory, [first])
    second = Submission((*first.prompt, *answer.tokens, 1, 2, 3), 10)
    engine.rows = 0
    got = run_all(engine, memory, [second])
    assert engine.rows == 1 + 3 + 9, "the last of the answer, what was said to it, and what follows"
    assert got == [alone(engine, second)]


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_on_the_native_engine_where_windows_forget(tmp_path: Path, kv_cache: str) -> None:
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    import transformers

    if not hasattr(transformers, "Gemma2Config"):
        pytest.skip(f"transformers {transformers.__version__} has no Gemma 2 to write one with")
    from ipex_lookahead import AutoModelForCausalLM
    from tests.support.families import write

    folder = write(tmp_path, "gemma2", max_position_embeddings=2048)
    engine: Any = AutoModelForCausalLM.from_pretrained(
        folder, load_in_low_bit="sym_int4", engine="native", threads=1, kv_cache=kv_cache
    ).engine
    text = np.random.default_rng(3).integers(0, engine.vocab_size, 1500).tolist()
    lengths = (200, 150, 1500, 1400, 200, 130)
    wanted = [Submission(tuple(text[:length]), 6, seed) for seed, length in enumerate(lengths)]
    memory = PrefixCache(60)
    assert run_all(engine, memory, wanted) == run_all(engine, None, wanted)
    assert memory.hits == 149 + 200 + 1399 + 199 + 129
    memory.clear()
    run_all(engine, memory, [wanted[2]])
    found = memory.hits
    run_all(engine, memory, [wanted[0]])
    assert memory.hits == found, "of 1,500 positions the first 200 are forgotten"
    run_all(engine, memory, [wanted[0]])
    assert memory.hits == found + 199, "and were read again"


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_features_that_a_head_has_yet_to_read_count(kind: str, tmp_path: Path) -> None:
    """A kept text holds up to 64 rows of them, each longer than a row of keys; and gives them back."""
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    pytest.importorskip("transformers", minversion="5.0", reason="folders of heads are made by transformers 5")
    from tests.support.heads import opened, write

    engine = opened(write(kind, tmp_path))
    cache, text = engine.new_cache(), np.arange(40, dtype=np.int32) % 90
    engine.head.follow(cache)
    for _ in prefill(engine, [(cache, text)]):
        pass
    features = 40 * engine.head.width * 4
    page, state = PAGE * position_bytes(engine), state_bytes(engine)
    memory = PrefixCache(8 * page + 8 * state + 2 * features, page=page, state=state)
    pages: list[int] = []
    assert memory.extend(pages, 40)
    running = memory.used
    memory.keep(text, cache, pages)
    assert memory.states >= features + state
    assert memory.used == running + memory.states
    memory.release(pages)
    memory.clear()
    assert memory.used == memory.states == 0
    small = PrefixCache(page + RUNNING_STATES * state + features // 2, page=page, state=state)
    pages = []
    assert small.extend(pages, 40)
    small.keep(text, cache, pages)
    small.release(pages)
    assert small.kept == 0 or small.used <= small.budget
