"""Prompts with images in the scheduler: each answer has its bytes alone, whatever is cached, drafted or next to it.

The file has more than 500 lines because every test runs the same scheduler and prompts, which are above them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5.23", reason="older transformers lack these families")

from ipex_lookahead import architectures
from ipex_lookahead.architectures.images import with_images
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding import disk_cache, image_encoding
from ipex_lookahead.decoding import scheduler as scheduling
from ipex_lookahead.decoding.cache_folder import CacheFolder
from ipex_lookahead.decoding.disk_cache import DiskCache
from ipex_lookahead.decoding.prefix_cache import PAGE, RUNNING_STATES, PrefixCache
from ipex_lookahead.decoding.saved_cache import cache_key, load_cache, save_cache
from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.decoding.sequence import Sequence as TokenSequence
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import PROPOSERS, DraftModel, make_proposer
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.drafting.heads.chain import HeadChain
from ipex_lookahead.engines.api import position_bytes, state_bytes
from ipex_lookahead.engines.images import PromptImage, row_keys
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.load import load as load_native
from ipex_lookahead.errors import InputError, NonFiniteError
from tests.support.family_engines import load
from tests.support.family_table import FAMILIES, VOCAB, variants
from tests.support.mtp_folders import with_mtp
from tests.support.pictures import PLACEHOLDER, Ids, ours, picture, prompt, rows_of, seeing, unencoded
from tests.support.proposers import RandomProposer, TreeProposer
from tests.support.random_eagle3 import random_eagle3
from tests.support.tiny_families import with_weights, write_folder

CONFIGS: dict[str, Callable[[], Any]] = {
    "gemma3": lambda: seeing("gemma3", {}, sliding_window=9),
    "qwen3_vl": lambda: seeing("qwen3_vl", {}),
    "qwen3_5": lambda: seeing("qwen3_5", {}),
    "gemma4": lambda: seeing(
        "gemma4", {"text_config": FAMILIES["gemma4_text"].base}, use_bidirectional_attention="vision"
    ),
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        name: load(write_folder(tmp_path_factory.mktemp("images"), with_weights(make())))
        for name, make in CONFIGS.items()
    }


@dataclass
class Checked:
    """A prompt with images, and the number of new tokens."""

    ids: Ids
    images: list[PromptImage]
    new: int = 12


Place = tuple[int, tuple[int, int], int]
Make = Callable[[TokenSequence], "Proposer | None"]


def pictured(engine: Any, length: int, *places: Place, new: int = 12, seed: int = 1) -> Checked:
    """A prompt with images at (start, grid, seed)."""
    hidden, deepstack = engine.spec.hidden, engine.images.deepstack
    images = [picture(start, grid, hidden, deepstack=deepstack, seed=one) for start, grid, one in places]
    return Checked(prompt(length, images, seed), images, new)


def alone(engine: Any, case: Checked) -> tuple[list[int], list[bytes]]:
    """The whole text in one chunk, then token by token."""
    cache, ids = engine.new_cache(), case.ids
    tokens: list[int] = []
    logits: list[bytes] = []
    for _ in range(case.new):
        last = ours(engine, ids, case.images, cache=cache)[-1]
        logits.append(last.tobytes())
        tokens.append(int(last.argmax()))
        ids = np.append(ids, np.int32(tokens[-1]))
    return tokens, logits


class Running:
    """A submitted prompt, its group, and what it has emitted."""

    def __init__(
        self, engine: Any, case: Checked, make: Callable[[TokenSequence], Proposer | None], number: int
    ) -> None:
        self.logits: list[bytes] = []

        def record(_: Any, logits: Any) -> Any:
            self.logits.append(logits.tobytes())
            return logits

        self.sequence = TokenSequence(case.ids, len(case.ids) + case.new, processors=[record], index=number)
        if case.images:
            found = rows_of(engine, case.images)
            assert found is not None
            self.sequence.attach_images(found)

        def begin(_: SequenceGroup) -> Controller:
            self.sequence.proposer = make(self.sequence)
            return Controller(5)

        self.group = SequenceGroup([self.sequence], GenerationStats(strategy="test"), begin)

    @property
    def answer(self) -> tuple[list[int], list[bytes]]:
        assert self.group.error is None
        return self.sequence.new, self.logits


def run(
    engine: Any,
    cases: list[Checked],
    make: Make = lambda _: None,
    *,
    memory: PrefixCache | None = None,
    head: Any = None,
    after: int = 0,
    **options: Any,
) -> tuple[list[Running], Scheduler]:
    """Submit the prompts, each ``after`` steps behind the one before, and step to their end."""
    scheduler, found = Scheduler(engine, memory=memory, **options), []
    for number, case in enumerate(cases):
        found.append(Running(engine, case, make, number))
        found[-1].sequence.head = head
        scheduler.submit(found[-1].group)
        for _ in range(after):
            scheduler.step()
    while scheduler.busy:
        scheduler.step()
    return found, scheduler


def memory_of(engine: Any, sequences: int, pages: int) -> PrefixCache:
    page, state = PAGE * position_bytes(engine), state_bytes(engine)
    return PrefixCache(sequences * RUNNING_STATES * state + pages * page, page=page, state=state)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [8, 30, 512])
def test_chunks_and_neighbors_change_nothing(engines: dict[str, Any], name: str, rows: int) -> None:
    engine = engines[name]
    wanted = [
        pictured(engine, 60, (10, (5, 6), 0)),
        pictured(engine, 80, (3, (4, 4), 1), (40, (6, 5), 2)),
        pictured(engine, 40, seed=3),
        pictured(engine, 60, (10, (6, 5), 0)),
    ]
    found, _ = run(engine, wanted, after=1, prefill_rows=rows)
    assert [one.answer for one in found] == [alone(engine, case) for case in wanted]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prefix_with_the_same_image_is_found_and_another_image_never(engines: dict[str, Any], name: str) -> None:
    engine = engines[name]
    first = pictured(engine, 170, (40, (6, 9), 0), new=3)
    wanted = [first]
    for length, places in (
        (171, [(40, (6, 9), 0)]),  # all of it
        (171, [(40, (6, 9), 7)]),  # another image at its place
        (171, [(40, (9, 6), 0)]),  # its pixels in another form
        (171, [(40, (6, 9), 0), (120, (3, 4), 2)]),  # it, and another one behind it
    ):
        other = pictured(engine, length, *places, new=3)
        other.ids[: first.ids.size] = np.where(other.ids[:170] == PLACEHOLDER, PLACEHOLDER, first.ids)
        if len(places) == 1:
            other.ids[170:] = 9
        wanted.append(other)
    memory = memory_of(engine, 8, 60)
    cached = []
    for case in wanted:
        (found,), _ = run(engine, [case], memory=memory)
        assert found.answer == alone(engine, case)
        cached.append(found.group.stats.cached_tokens)
    assert cached[0] == 0
    if engine.state_bytes:  # states are stored at few lengths
        assert cached[1] >= 128
        assert max(cached[2:4]) <= 40
    else:
        assert cached[1:] == [170, 40, 40, 120]


@pytest.mark.parametrize("name", ["gemma3", "qwen3_vl", "gemma4"])
def test_a_hit_inside_of_an_image_goes_on_with_its_rows(engines: dict[str, Any], name: str) -> None:
    engine = engines[name]
    case, memory = pictured(engine, 110, (40, (7, 8), 0), new=4), memory_of(engine, 4, 20)
    cache, pages = engine.new_cache(), []
    ours(engine, case.ids, case.images, cache=cache)
    assert memory.extend(pages, 110)
    for length in (41, 64, 95):
        memory.keep(row_keys(case.ids, case.images)[:length], cache, pages)
        (found,), _ = run(engine, [case], memory=memory, prefill_rows=16)
        assert found.answer == alone(engine, case)
        assert found.group.stats.cached_tokens >= length
        memory.forget(found.sequence.keys[: found.sequence.length])


@pytest.mark.parametrize("name", CONFIGS)
def test_twins_and_preempted_sequences_lose_nothing(engines: dict[str, Any], name: str) -> None:
    engine = engines[name]
    wanted = [
        pictured(engine, 50, (10, (5, 6), 0), new=100),
        pictured(engine, 50, (10, (5, 6), 1), new=90),
        pictured(engine, 40, (2, (5, 7), 2), new=80),
    ]
    found, scheduler = run(engine, wanted, memory=memory_of(engine, 2, 4), slots=3)
    assert scheduler.preemptions > 0
    assert [one.answer for one in found] == [alone(engine, case) for case in wanted]
    twins = [Running(engine, replace(wanted[0], new=6), lambda _: None, number) for number in (0, 1)]
    twins.append(Running(engine, replace(wanted[1], new=6), lambda _: None, 2))
    group = SequenceGroup([one.sequence for one in twins], GenerationStats(strategy="test"), Controller(5))
    together = Scheduler(engine)
    together.submit(group)
    while together.busy:
        together.step()
    assert group.stats.cached_tokens == 50
    expected = [alone(engine, replace(case, new=6)) for case in (wanted[0], wanted[0], wanted[1])]
    assert [(one.sequence.new, one.logits) for one in twins] == expected


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("strategy", [*PROPOSERS, "random", "trees", "self_speculation"])
@pytest.mark.rotating(12)
def test_drafts_change_nothing(engines: dict[str, Any], name: str, strategy: str) -> None:
    engine = engines[name]
    wanted = [pictured(engine, 60, (10, (5, 6), 0), new=25), pictured(engine, 50, (4, (4, 7), 1), new=25)]
    plain = [alone(engine, case) for case in wanted]
    texts = [[*case.ids.tolist(), *tokens] for case, (tokens, _) in zip(wanted, plain, strict=True)]

    def make(sequence: TokenSequence) -> Proposer:
        if strategy == "random":
            return RandomProposer(VOCAB)
        if strategy == "trees":
            return TreeProposer(VOCAB, texts[sequence.index])
        if strategy == "self_speculation":
            return DraftModel(engine, min_prob=0.0, shared=sequence.cache, images=sequence.images)
        return make_proposer(LookaheadConfig(strategy, 5))

    found, _ = run(engine, wanted, make, memory=memory_of(engine, 4, 20))
    assert [one.answer for one in found] == plain
    if strategy == "self_speculation":  # it drafts what the model says, so its positions are right
        drafted = sum(one.group.stats.drafted for one in found)
        assert sum(one.group.stats.accepted for one in found) == drafted > 0


def test_placeholders_are_never_drafted(engines: dict[str, Any]) -> None:
    engine = engines["qwen3_vl"]
    case = pictured(engine, 60, (10, (5, 6), 0))
    seen: list[Any] = []

    class Repeating(RandomProposer):
        def propose(self, budget: int) -> Draft:
            return Draft([PLACEHOLDER, 5, PLACEHOLDER, 6, 8], [-1, -1, 1, 2, 1]).first(budget)

        def observe(self, outcome: Any) -> None:
            seen.append(list(outcome.draft.tokens))

    (found,), _ = run(engine, [case], lambda _: Repeating(VOCAB))
    assert found.answer == alone(engine, case)
    assert seen
    assert all(tokens in ([5, 8], [5], []) for tokens in seen)
    assert Draft([7, 5, 7, 6, 8], [-1, -1, 1, 2, 1]).without(7) == Draft([5, 8], [-1, 0])


@pytest.mark.parametrize("name", ["gemma3", "qwen3_vl"])
def test_the_disk_and_files_give_the_same_image_only(
    engines: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    engine = engines[name]
    monkeypatch.setattr(disk_cache, "CHUNK_GOAL", 2 * PAGE * position_bytes(engine))
    case = pictured(engine, 200, (60, (9, 8), 0), new=3)
    other = replace(case, images=[picture(60, (9, 8), engine.spec.hidden, deepstack=engine.images.deepstack, seed=4)])

    def memory() -> PrefixCache:
        made = memory_of(engine, 4, 30)
        made.disk = DiskCache(CacheFolder(tmp_path / "cache", 10**8), engine, b"model")
        made.computed = lambda rows, seconds: None  # type: ignore[method-assign]
        return made

    first = memory()
    (found,), _ = run(engine, [case], memory=first)
    first.flush()
    assert first.disk is not None
    first.disk.close()
    again = memory()
    cached = []
    for one in (other, case):
        (found,), _ = run(engine, [one], memory=again)
        assert found.answer == alone(engine, one)
        cached.append(found.group.stats.cached_tokens)
    assert cached[0] <= 60
    assert cached[1] == 192
    keys = found.sequence.keys[: found.sequence.length - 1]
    kept = again.peek(keys)
    assert kept is not None
    key = cache_key(engine, b"model's fingerprint")
    save_cache(tmp_path / "one.bin", key, keys, kept)
    tokens, cache = load_cache(tmp_path / "one.bin", key, engine)
    assert tokens.tolist() == keys.tolist()
    assert cache.length == len(keys)


@pytest.fixture(scope="module", params=["mtp", "eagle3"])
def drafting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Qwen3.5 with its own head, of which the text part takes images; or a Qwen3-VL with an EAGLE-3 head."""
    if request.param == "eagle3":
        engine = load(
            write_folder(tmp_path_factory.mktemp("eagle3"), with_weights(seeing("qwen3_vl", {}, num_hidden_layers=6)))
        )
        engine.head = random_eagle3(engine)
        return engine
    folder = tmp_path_factory.mktemp("mtp") / "model"
    with_mtp(folder, "qwen3_5_text", variants("qwen3_5_text")[0])

    def seen(spec: Any, config: Any) -> Any:
        half = len(next(block.mixer.rope for block in spec.layers if hasattr(block.mixer, "rope")).frequencies)
        return with_images(spec, {**config, "image_token_id": PLACEHOLDER, "mrope_section": [half, half, half]})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(architectures, "with_images", seen)
        return load_native(LoadRequest(folder, threads=1)).engine


def test_a_head_drafts_across_images(drafting: Any) -> None:
    """Also after a hit, and its rows behind an image are those of rows that it reads one by one."""
    engine, memory = drafting, memory_of(drafting, 6, 40)
    case = pictured(engine, 100, (20, (7, 8), 0), new=20)
    second = replace(case, ids=np.append(case.ids, np.int32(9)))
    expected = [alone(engine, one) for one in (case, second)]
    drafted = []
    for one, plain in zip((case, second), expected, strict=True):
        (found,), _ = run(
            engine,
            [one],
            lambda sequence: HeadChain(engine.head, lambda: sequence.cache),
            memory=memory,
            head=engine.head,
            prefill_rows=33,
        )
        assert found.answer == plain
        drafted.append(found.group.stats.drafted)
    assert min(drafted) > 20


def test_a_heads_rows_have_the_features_and_positions_of_images(drafting: Any) -> None:
    engine = drafting
    case = pictured(engine, 100, (20, (7, 8), 0))
    drafts = []
    for rows in (512, 17):
        cache = engine.new_cache()
        engine.head.follow(cache)
        ours(engine, case.ids[:-1], case.images, rows, cache=cache)
        fork, image = cache.fork(), (cache.export_pages(0, 99), cache.export_state())
        loaded = engine.import_cache(99, [(0, 99, image[0])], image[1])
        last = int(case.ids[-1])
        drafts.append(engine.head.draft(cache, last, 5))
        assert engine.head.draft(fork, last, 5) == drafts[-1]
        assert engine.head.draft(loaded, last, 5) == drafts[-1]
    assert drafts[0] == drafts[1]
    assert len(drafts[0][0]) == 5
    other = engine.new_cache()
    engine.head.follow(other)
    changed = [replace(case.images[0], grid=(8, 7))]  # other positions of the same rows
    ours(engine, case.ids[:-1], changed, cache=other)
    assert engine.head.draft(other, int(case.ids[-1]), 5) != drafts[0]


def lazily(case: Checked, log: list[str], **options: Any) -> Checked:
    """The same prompt, with images that are not encoded yet."""
    images = [unencoded(image, log, name=image.digest.decode().strip(), **options) for image in case.images]
    return replace(case, images=images)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [8, 30, 512])
@pytest.mark.rotating(4)
def test_images_are_encoded_between_steps_and_only_where_they_are_read(
    engines: dict[str, Any], name: str, rows: int
) -> None:
    """Equal images of several sequences once; not at all if the prefix cache has their rows."""
    engine, log = engines[name], []
    wanted = [
        pictured(engine, 80, (10, (5, 6), 0), (50, (4, 4), 1)),
        pictured(engine, 60, (2, (5, 6), 0)),
        pictured(engine, 20, seed=3),
    ]
    memory = memory_of(engine, 8, 40)
    found, _ = run(engine, [lazily(case, log) for case in wanted], memory=memory, prefill_rows=rows)
    expected = [alone(engine, case) for case in wanted]
    assert [one.answer for one in found] == expected
    assert sorted(one for one in log if one.startswith("begin")) == ["begin picture 0", "begin picture 1"]
    del log[:]
    again, _ = run(engine, [lazily(wanted[0], log)], memory=memory, prefill_rows=rows)
    assert again[0].answer == expected[0]
    if not engine.state_bytes:
        assert log == []


def test_preempted_sequences_keep_their_encoded_images(engines: dict[str, Any]) -> None:
    engine, log = engines["gemma3"], []
    wanted = [pictured(engine, 50, (10, (5, 6), seed), new=90) for seed in range(3)]
    lazy = [lazily(case, log) for case in wanted]
    found, scheduler = run(engine, lazy, memory=memory_of(engine, 2, 4), slots=3)
    assert scheduler.preemptions > 0
    assert [one.answer for one in found] == [alone(engine, case) for case in wanted]
    assert len([one for one in log if one.startswith("begin")]) == 3


def test_streams_go_on_while_an_image_is_encoded(engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """By clocks of the test: slices of 0.1 s get at most three times the forwards' time, after the first one."""
    engine, log = engines["gemma3"], []
    clocks = {scheduling: 0.01, image_encoding: 0.1}
    now = dict.fromkeys(clocks, 0.0)

    def clock(module: Any) -> float:
        now[module] += clocks[module]
        return now[module]

    for module in clocks:
        monkeypatch.setattr(module, "perf_counter", lambda module=module: clock(module))
    scheduler = Scheduler(engine)
    stream = Running(engine, pictured(engine, 20, new=100), lambda _: None, 0)
    scheduler.submit(stream.group)
    scheduler.step()
    other = Running(engine, lazily(pictured(engine, 60, (10, (5, 6), 0), new=2), log, slices=12), lambda _: None, 1)
    scheduler.submit(other.group)
    before = stream.sequence.length
    while "end picture 0" not in log:
        scheduler.step()
    slices, steps = log.count("slice picture 0"), stream.sequence.length - before
    assert slices == 12
    assert 3 * slices - 3 <= steps <= 4 * slices + 4
    while scheduler.busy:
        scheduler.step()
    assert stream.answer == alone(engine, pictured(engine, 20, new=100))
    assert other.answer == alone(engine, pictured(engine, 60, (10, (5, 6), 0), new=2))


def test_a_failure_in_encoding_fails_its_group_alone(engines: dict[str, Any]) -> None:
    engine, log = engines["qwen3_vl"], []
    good = [pictured(engine, 60, (10, (5, 6), seed)) for seed in (0, 1)]
    damaged = [lazily(good[0], log, error=NonFiniteError("damaged")), lazily(good[1], log)]
    found, _ = run(engine, damaged, memory=memory_of(engine, 4, 20))
    assert isinstance(found[0].group.error, NonFiniteError)
    assert found[1].answer == alone(engine, good[1])
    wrong = unencoded(replace(good[0].images[0], features=np.zeros((3, 64), np.float32)), log)
    (last,), _ = run(engine, [replace(good[0], images=[wrong])])
    assert isinstance(last.group.error, InputError)


def test_a_cancelled_group_ends_its_encoding_unless_another_one_needs_it(engines: dict[str, Any]) -> None:
    engine, log = engines["qwen3_5"], []
    case = pictured(engine, 60, (10, (5, 6), 0))
    scheduler = Scheduler(engine, memory=memory_of(engine, 8, 20))
    for others in (0, 1):
        del log[:]
        runs = [Running(engine, lazily(case, log, slices=9), lambda _: None, i) for i in range(1 + others)]
        runs[-1].sequence.turns = (1,)
        for number, one in enumerate(runs):  # of two tenants, which share no rows
            one.group.key = one.group.owner = f"tenant{number}"
            scheduler.submit(one.group)
        while log.count("slice picture 0") < 3:
            scheduler.step()
        scheduler.cancel(runs[0].group.id)
        assert runs[0].sequence.finish == "cancelled"
        assert ("closed picture 0" in log) == (not others)
        while scheduler.busy:
            scheduler.step()
        assert log.count("begin picture 0") == 1
        if others:
            assert runs[1].answer == alone(engine, case)


def test_owners_alternate_in_encoding(engines: dict[str, Any]) -> None:
    engine, log = engines["qwen3_vl"], []
    places = [(3, (3, 3), 0), (20, (3, 3), 1), (40, (3, 3), 2)]
    runs = [
        Running(engine, lazily(pictured(engine, 60, *places, new=1), log), lambda _: None, 0),
        Running(engine, lazily(pictured(engine, 60, (5, (3, 3), 3), new=1), log), lambda _: None, 1),
        Running(engine, lazily(pictured(engine, 60, (5, (3, 3), 4), new=1), log), lambda _: None, 2),
    ]
    scheduler = Scheduler(engine)
    for one, owner in zip(runs, "aab", strict=True):
        one.group.owner = owner
        scheduler.submit(one.group)
    while scheduler.busy:
        scheduler.step()
    assert [one[-1] for one in log if one.startswith("begin")] == ["0", "4", "3", "1", "2"]
