"""Sequences of the native engine under every order of deeds: whatever was forked, cropped, kept, aborted or run in a
batch with others, the logits of a step are those of a fresh prefill of the same tokens, by bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.engines.api import Batch, OutputRequest, state_bytes
from ipex_lookahead.engines.native.engine import NativeCache, NativeEngine
from ipex_lookahead.errors import ContextLengthError, InputError
from tests.gates import cases, seed
from tests.support.hybrids import HYBRIDS, hybrid
from tests.support.native import chain

EXAMPLES = cases(20, 1_500)
DEEDS = 20
CONTEXT = 150
MOST_SEQUENCES = 4


def engine(low_bit: str, kv_cache: str, head_dim: int, heads: int, kv_heads: int, threads: int) -> NativeEngine:
    config = {
        "model_type": "llama",
        "hidden_size": 40,
        "intermediate_size": 47,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": 33,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "tie_word_embeddings": True,
    }
    return NativeEngine.random(spec_for(config), low_bit, threads=threads, kv_cache=kv_cache)


ENGINES = [
    engine("sym_int4", "fp16", 16, 4, 2, 2),
    engine("sym_int4", "int8", 8, 3, 1, 1),
    engine("asym_int4", "int8", 16, 2, 2, 2),
    engine("sym_int8", "int8", 40, 2, 1, 1),
    engine("bf16", "fp16", 8, 2, 1, 3),
    engine("fp32", "fp16", 24, 3, 3, 1),
    *(hybrid(name, context=CONTEXT) for name in HYBRIDS),
    *(hybrid("shared keys", context=CONTEXT, kv_cache=kind) for kind in ("fp16", "int8")),
]


@dataclass
class Sequence:
    """A cache and what should be in it: zeros, then tokens; and the tokens and parents of a step that may be kept."""

    cache: NativeCache
    blank: int
    tokens: list[int]
    pending: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    @property
    def length(self) -> int:
        return self.blank + len(self.tokens)

    def path(self, row: int) -> list[int]:
        """The pending step's rows from its root to that one."""
        rows: list[int] = []
        while row >= 0:
            rows.insert(0, row)
            row = self.pending[1][row]
        return rows


class Caches(RuleBasedStateMachine):
    @initialize(engine=st.sampled_from(ENGINES))
    def begin(self, engine: NativeEngine) -> None:
        self.engine = engine
        self.live = [Sequence(engine.new_cache(), 0, [])]

    def expected(self, blank: int, tokens: list[int]) -> bytes:
        """The logits after a fresh prefill."""
        last = np.array([len(tokens) - 1], np.int32)
        batch = Batch(
            [self.engine.new_cache(blank)],
            [len(tokens)],
            np.array(tokens, np.int32),
            chain(len(tokens)),
            OutputRequest(last, logits=True),
        )
        logits = self.engine.forward(batch).logits
        assert logits is not None
        return logits.tobytes()

    def step(self, chosen: list[Sequence], want: list[int] | None = None) -> np.ndarray:
        """Runs the pending steps of these sequences; logits of the wanted rows."""
        output = self.engine.forward(
            Batch(
                [s.cache for s in chosen],
                [len(s.pending[0]) for s in chosen],
                np.array([t for s in chosen for t in s.pending[0]], np.int32),
                np.array([p for s in chosen for p in s.pending[1]], np.int32),
                OutputRequest(None if want is None else np.array(want, np.int32), logits=True),
            )
        )
        assert output.logits is not None
        return output.logits

    @precondition(lambda self: len(self.live) < MOST_SEQUENCES)
    @rule(blank=st.one_of(st.just(0), st.integers(0, CONTEXT - 1)))
    def new(self, blank: int) -> None:
        self.live.append(Sequence(self.engine.new_cache(blank), blank, []))

    @precondition(lambda self: len(self.live) < MOST_SEQUENCES)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live))
        self.live.append(Sequence(one.cache.fork(), one.blank, list(one.tokens)))

    @precondition(lambda self: len(self.live) > 1)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))

    @rule(data=st.data())
    def crop(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live))
        wanted = data.draw(st.integers(0, one.length))
        length = one.cache.crop(wanted)
        assert length == wanted or (state_bytes(self.engine) and 0 <= length < wanted)
        one.tokens = one.tokens[: max(0, length - one.blank)]
        one.blank = min(one.blank, length)
        one.pending = ([], [])

    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live))
        if not one.pending[0]:
            with pytest.raises(InputError):
                one.cache.keep([0])
            return
        self.keep_a_path(one, data)

    def keep_a_path(self, one: Sequence, data: st.DataObject) -> None:
        path = one.path(data.draw(st.integers(0, len(one.pending[0]) - 1)))
        path = path[: data.draw(st.integers(1, len(path)))]
        one.cache.keep(path)
        one.tokens = one.tokens + [one.pending[0][row] for row in path]
        one.pending = ([], [])

    @rule(data=st.data())
    def refused(self, data: st.DataObject) -> None:
        """A step or a change that cannot be leaves everything as it was, the step that may be kept too."""
        one = data.draw(st.sampled_from(self.live))
        for length in (one.length + 1, -1):
            with pytest.raises(InputError):
                one.cache.crop(length)
        with pytest.raises(InputError):
            one.cache.keep([len(one.pending[0])])
        before, one.pending = one.pending, ([self.engine.vocab_size], [-1])
        with pytest.raises(InputError):
            self.step([one])
        rows = CONTEXT - one.length + 1
        one.pending = ([1] * rows, list(range(-1, rows - 1)))
        with pytest.raises(ContextLengthError):
            self.step([one])
        one.pending = before

    @rule(data=st.data())
    def more_steps(self, data: st.DataObject) -> None:
        self.run_steps(data)  # rules are drawn evenly, and this one is what others only prepare

    @rule(data=st.data())
    def steps(self, data: st.DataObject) -> None:
        self.run_steps(data)

    def run_steps(self, data: st.DataObject) -> None:
        """A batch of chains and trees; each is kept at once, or later, or aborted by whatever comes next."""
        chosen = data.draw(st.lists(st.sampled_from(self.live), min_size=1, unique_by=id))
        chosen = [one for one in chosen if one.length < CONTEXT]
        if not chosen:
            return
        for one in chosen:
            room = CONTEXT - one.length
            count = data.draw(st.one_of(st.integers(1, min(8, room)), st.integers(1, min(70, room))))
            rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
            tree = count < 40 and data.draw(st.booleans())
            parents = [int(rng.integers(-1, row)) if tree and row else row - 1 for row in range(count)]
            one.pending = (rng.integers(0, self.engine.vocab_size, count).tolist(), parents)
        places = [(one, row) for one in chosen for row in range(len(one.pending[0]))]
        want = sorted(data.draw(st.sets(st.integers(0, len(places) - 1), min_size=1, max_size=6)))
        logits = self.step(chosen, want)
        for at, found in zip(want, logits, strict=True):
            one, row = places[at]
            tokens = one.tokens + [one.pending[0][r] for r in one.path(row)]
            assert found.tobytes() == self.expected(one.blank, tokens), (one.blank, one.tokens, one.pending, row)
        for one in chosen:
            if data.draw(st.integers(0, 3)):
                self.keep_a_path(one, data)

    @invariant()
    def lengths_are_right(self) -> None:
        for one in getattr(self, "live", ()):
            assert one.cache.length == one.length


def test_every_order_of_deeds_gives_the_bytes_of_a_fresh_prefill() -> None:
    run_state_machine_as_test(
        hypothesis.seed(seed())(Caches),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=DEEDS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
