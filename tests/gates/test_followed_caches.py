"""A cache that a head follows, under every order of deeds: logits are those without a head, and drafts those of a head
that reads the text at once, by bytes; what is asked wrongly is refused, and changes neither."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5", reason="the models are made of transformers 5's layers")

from ipex_lookahead.decoding import sequence as decoded
from ipex_lookahead.engines.native.engine import NativeCache, NativeEngine
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import EngineError, InputError
from ipex_lookahead.runtime.sampling_params import SamplingParams
from tests.gates import cases, seed
from tests.support.cache_walk import Plain, forward
from tests.support.heads import KINDS, opened, write
from tests.support.letters import text_model

WALKS = cases(10, 1_500)
DEEDS = 30
LONGEST, MOST_ROWS, MOST_SEQUENCES = 40, 9, 3
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in KINDS},
    "mtp of a part of the vocabulary": ("mtp", {"draft_vocab": 32, "kv_cache": "int8"}),
}
Chain = tuple[list[int], list[float]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path | None]]:
    """Where a kind's model and head are."""
    made: dict[str, tuple[Path, Path | None]] = {}

    def paths(kind: str) -> tuple[Path, Path | None]:
        if kind not in made:
            made[kind] = write(kind, tmp_path_factory.mktemp("head"))
        return made[kind]

    return paths


@dataclass
class Sequence:
    """A cache, what should be in it, and what is known of the head that follows it.

    Attributes:
        head: None: none follows.
        start: the first position whose features it was given.
        read: up to where it has read them; its last row was made with the token ``ahead``.
        whole: no features were gone when they were needed.
        seen: tokens that it may draft beside its own.
    """

    cache: NativeCache
    text: list[int] = field(default_factory=list)
    head: NativeHead | None = None
    start: int = 0
    read: int = 0
    ahead: int = -1
    whole: bool = True
    seen: list[int] = field(default_factory=list)

    def follow(self, head: NativeHead) -> None:
        head.follow(self.cache)
        if head is not self.head:
            self.head, self.start, self.read, self.ahead = head, len(self.text), len(self.text), -1
            self.whole, self.seen = True, []

    def keep(self, rows: list[int], tokens: list[int]) -> None:
        self.cache.keep(rows)
        if self.head is not None and tokens:
            if self.head.target_keys:  # which needs the last position alone
                self.read = len(self.text) + len(tokens) - 1
            elif self.start < self.read == len(self.text) and self.ahead != tokens[0]:
                self.whole = False
            self.seen += tokens
        self.text += tokens

    def crop(self, length: int) -> int:
        reached = self.cache.crop(length)
        if reached < self.read:
            self.ahead = self.text[reached]
        if self.head is not None and self.head.target_keys and reached < len(self.text):
            self.read = reached
        del self.text[reached:]
        self.read = min(self.read, reached)
        if reached <= self.start:
            self.start, self.whole = reached, True
        return reached

    def fork(self) -> Sequence:
        return replace(self, cache=self.cache.fork(), text=[*self.text], seen=[*self.seen])

    def drafted_at_once(self, engine: NativeEngine, last: int, most: int) -> Chain:
        """What such a head drafts that reads all it was given in one go."""
        assert self.head is not None
        if self.read == len(self.text):
            return [], []
        cache, tokens = engine.new_cache(), np.array(self.text, np.int32)
        for rows in (tokens[: self.start], tokens[self.start :]):
            if len(rows):
                engine.forward(chain(cache, rows))
                cache.keep(list(range(len(rows))))
            self.head.follow(cache)
        self.head.allow_tokens(cache, np.array(self.seen, np.int32))
        return self.head.draft(cache, last, most)

    def drafts(self, last: int) -> None:
        """It has drafted, and so read what there was."""
        assert self.head is not None
        if not self.head.target_keys and self.read < len(self.text):
            self.read, self.ahead = len(self.text), last


@dataclass
class Walk:
    """Deeds in random order on a few sequences."""

    engine: NativeEngine
    heads: list[NativeHead]
    chance: random.Random
    plain: Plain
    live: list[Sequence]
    drafted: int = 0

    def token(self) -> int:
        return self.chance.randrange(self.engine.vocab_size)

    def grow(self, _: Sequence) -> None:
        """A step of some sequences together, trees or chains; a path of each is kept, or nothing."""
        chosen = self.chance.sample(self.live, self.chance.randint(1, len(self.live)))
        rows, parents = [], []
        for one in chosen:
            count = self.chance.randint(1, MOST_ROWS)
            if len(one.text) + count > LONGEST:
                one.crop(0)
            # Mostly a text that goes on as the head went ahead.
            first = one.ahead if one.ahead >= 0 and self.chance.random() < 0.7 else self.token()
            rows.append([first, *(self.token() for _ in range(count - 1))])
            tree = self.chance.random() < 0.6
            parents.append([self.chance.randint(-1, row - 1) if tree else row - 1 for row in range(count)])
        logits = iter(forward(self.engine, [one.cache for one in chosen], rows, parents))
        for one, tokens, above in zip(chosen, rows, parents, strict=True):
            paths: list[list[int]] = []
            for row, parent in enumerate(above):
                paths.append([*(paths[parent] if parent >= 0 else []), row])
                expected = self.plain.logits([*one.text, *(tokens[at] for at in paths[row])])
                assert next(logits).tobytes() == expected.tobytes(), (row, above)
            path = self.chance.choice(paths)
            path = path[: self.chance.randint(0, len(path))]
            one.keep(path, [tokens[row] for row in path])

    def crop(self, one: Sequence) -> None:
        back = self.chance.randint(0, len(one.text)) if self.chance.random() < 0.5 else min(2, len(one.text))
        one.crop(len(one.text) - back)

    def fork(self, one: Sequence) -> None:
        if len(self.live) == MOST_SEQUENCES:
            self.live.pop(0)
        self.live.append(one.fork())

    def new(self, _: Sequence) -> None:
        if len(self.live) < MOST_SEQUENCES:
            self.live.append(Sequence(self.engine.new_cache()))

    def checkpoint(self, one: Sequence) -> None:
        one.cache.checkpoint()

    def follow(self, one: Sequence) -> None:
        one.follow(self.chance.choice(self.heads))

    def see(self, one: Sequence) -> None:
        tokens = [self.token() for _ in range(3)]
        (one.head or self.heads[0]).allow_tokens(one.cache, np.array(tokens, np.int32))
        one.seen += tokens if one.head is not None else []

    def draft(self, one: Sequence) -> None:
        if one.head is None:
            with pytest.raises(InputError, match="does not follow this head"):
                self.heads[0].draft(one.cache, 1, 1)
            return
        last, most = self.token(), self.chance.randint(1, 4)
        expected = one.drafted_at_once(self.engine, last, most)
        found = one.head.draft(one.cache, last, most)
        one.drafts(last)
        assert len(found[0]) == len(found[1]) == len(expected[0])
        if one.whole:
            assert found[0] == expected[0]
            assert found[1] == pytest.approx(expected[1], rel=1e-6)  # the order of a sum
            self.drafted += len(found[0])

    def look(self, one: Sequence) -> None:
        """Step by step, which is ended or left open."""
        if one.head is None:
            return
        last = self.token()
        logits = one.head.next_logits(one.cache, last, first=True)
        assert (logits is None) == (one.read == len(one.text))
        one.drafts(last)
        for _ in range(self.chance.randint(0, 2) if logits is not None else 0):
            assert one.head.next_logits(one.cache, self.token(), first=False) is not None
        if self.chance.random() < 0.5:
            one.head.end_draft(one.cache)

    def wrong(self, one: Sequence) -> None:
        """Each is refused, and leaves no trace."""
        vocab = self.engine.vocab_size
        head = one.head or self.heads[0]
        calls: list[Callable[[], Any]] = [
            lambda: head.draft(one.cache, vocab, 3),
            lambda: head.draft(one.cache, -1, 3),
            lambda: head.draft(one.cache, 1, 3, copied=[2, vocab]),
            lambda: head.draft(one.cache, 1, 3, draw=(-1.0, 0, 1.0, 0.0, 0, 0, 0)),
            lambda: head.next_logits(one.cache, vocab, first=True),
            lambda: one.cache.crop(len(one.text) + 1),
            lambda: one.cache.keep([MOST_ROWS + 1]),
            lambda: forward(self.engine, [one.cache], [[vocab]], [[-1]]),
        ]
        with pytest.raises(InputError):
            self.chance.choice(calls)()

    def go(self, deeds: int) -> None:
        ways = [self.grow] * 6 + [self.draft] * 5 + [self.crop, self.fork, self.follow, self.see, self.look] * 2
        for _ in range(deeds):
            self.chance.choice([*ways, self.new, self.checkpoint, self.wrong])(self.chance.choice(self.live))
            assert all(one.cache.length == len(one.text) for one in self.live)


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_drafts_are_those_of_the_text(folder: Callable[[str], Any], name: str) -> None:
    kind, options = MODELS[name]
    engine, other = (opened(folder(kind), threads=threads, **options) for threads in (1, 2))
    plain, drafted = Plain(engine), 0
    for number in range(WALKS):
        chance = random.Random(f"{seed()} {name} {number}")
        first = Sequence(engine.new_cache())
        first.follow(engine.head)
        walk = Walk(engine, [engine.head, engine.head, other.head], chance, plain, [first])
        walk.go(DEEDS)
        drafted += walk.drafted
    assert drafted > WALKS


def test_a_head_of_another_model_is_refused_and_another_may_follow(folder: Callable[[str], Any]) -> None:
    engine, other = opened(folder("mtp"), threads=1), opened(folder("eagle3"), threads=1)
    plain, one = Plain(engine), Sequence(engine.new_cache())
    other.head.follow(one.cache)
    with pytest.raises(InputError, match="follows a drafting head of another model"):
        forward(engine, [one.cache], [[1, 2]], [[-1, 0]])
    with pytest.raises(InputError, match="does not follow this head"):
        engine.head.draft(one.cache, 1, 1)
    with pytest.raises(ValueError, match="is not a drafting head"):
        one.cache.raw.follow(engine.decoder)
    one.follow(engine.head)
    assert forward(engine, [one.cache], [[1, 2]], [[-1, 0]])[1].tobytes() == plain.logits([1, 2]).tobytes()
    one.follow(engine.head)  # which follows already, so that the step's rows are there yet
    one.keep([0, 1], [1, 2])
    assert one.head is not None
    assert one.head.draft(one.cache, 3, 3) == one.drafted_at_once(engine, 3, 3)
    with pytest.raises(InputError):
        other.head.draft(one.cache, 3, 3)


def test_two_threads_at_one_cache(folder: Callable[[str], Any]) -> None:
    """Whichever comes second is refused, or comes after; nothing else happens."""
    engine = opened(folder("eagle3"), threads=1)
    head, one, text = engine.head, Sequence(engine.new_cache()), list(range(3, 30))
    one.follow(head)
    refused: list[Exception] = []
    stop = threading.Event()

    def disturb() -> None:
        chance = random.Random(seed())
        while not stop.is_set():
            calls = [
                lambda: head.draft(one.cache, 5, 3),
                lambda: head.next_logits(one.cache, 5, first=True),
                lambda: head.follow(one.cache),
                lambda: head.allow_tokens(one.cache, np.array([7], np.int32)),
                lambda: head.end_draft(one.cache),
                lambda: one.cache.fork(),
            ]
            try:
                chance.choice(calls)()
            except EngineError as error:
                refused.append(error)

    others = [threading.Thread(target=disturb) for _ in range(2)]
    for thread in others:
        thread.start()
    steps = 0
    try:
        while steps < 300:
            try:
                engine.forward(chain(one.cache, np.array(text[:7], np.int32)))
                one.cache.keep(list(range(7)))
                one.cache.crop(steps % (one.cache.length + 1))
            except EngineError as error:
                refused.append(error)
            steps += 1
    finally:
        stop.set()
        for thread in others:
            thread.join(60)
    assert all("in use by another thread" in str(error) for error in refused), refused[:3]
    one.cache.crop(0)
    one.head, one.start, one.read = head, 0, 0
    logits = forward(engine, [one.cache], [text], [list(range(-1, len(text) - 1))])
    assert logits[-1].tobytes() == Plain(engine).logits(text).tobytes()
    one.keep(list(range(len(text))), text)
    assert head.draft(one.cache, 5, 4) == one.drafted_at_once(engine, 5, 4)


def test_a_window_that_has_moved_on_begins_anew(folder: Callable[[str], Any]) -> None:
    """Far back the head's keys are gone; it drafts from those to come, and after a crop to 0 as if nothing had been."""
    engine = opened(folder("eagle3 with a window"), threads=1)
    one, text = Sequence(engine.new_cache()), np.random.default_rng(0).integers(0, engine.vocab_size, 400).tolist()
    one.follow(engine.head)
    for length in (0, 350, 100, 20, 0):
        one.crop(length)
        rows = text[length:400]
        forward(engine, [one.cache], [rows], [list(range(-1, len(rows) - 1))])
        one.keep(list(range(len(rows))), rows)
        found = engine.head.draft(one.cache, 5, 4)
        assert len(found[0]) == 4
        if not length:
            assert found == one.drafted_at_once(engine, 5, 4)
        one.drafts(5)


@pytest.mark.parametrize("how", ["auto", "head", "streamed"])
def test_a_generation_that_is_over_holds_no_cache(folder: Callable[[str], tuple[Path, Path | None]], how: str) -> None:
    """Proposers refer to their sequence and its cache, which may be a gigabyte: it must not wait for the collector."""
    model = text_model(opened(folder("eagle3"), threads=1))
    params = SamplingParams(20)
    gc.collect()
    gc.disable()
    try:
        if how == "streamed":
            steps = model.stream([5, 6, 7, 8], params, lookahead="head")
            next(iter(steps))
            steps.close()
        else:
            model.generate([5, 6, 7, 8], params, lookahead=how)
        left = [one for one in gc.get_objects() if type(one) is decoded.Sequence]
        assert not left, [gc.get_referrers(one) for one in left]
    finally:
        gc.enable()
