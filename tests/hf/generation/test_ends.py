"""Where a generation ends: end tokens, stop strings, criteria, lengths; also in the midst of a draft that is right."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import ContextLengthError, InputError
from tests.support.byte_tokenizer import EOS, VOCAB, byte_tokenizer
from tests.support.generate import generate
from tests.support.proposers import OracleProposer
from tests.support.scripted_engine import ScriptedEngine, markov, scripted

PROMPT = [7, 8, 9]
TEXT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]
LOOKAHEADS = [0, 1, 4, 5, 64]


class Recorder:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.got: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        assert not self.ended
        self.got.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


def run(lookahead: int, engine: ScriptedEngine | None = None, **kwargs: Any) -> tuple[list[int], GenerationStats]:
    """With drafts that are always right, so that every end lies inside or at the edge of a draft."""
    engine = engine or scripted(TEXT, 32, len(PROMPT))
    streamer, stats = Recorder(), GenerationStats()
    kwargs = {"max_new_tokens": 12, "eos_token_id": None, "streamer": streamer, "stats": stats} | kwargs
    ids = torch.tensor([PROMPT])
    out = generate(engine, ids, lookahead=lookahead, make=lambda _: OracleProposer(PROMPT + TEXT + [0] * 64), **kwargs)
    assert out[0, :3].tolist() == PROMPT
    new = out[0, 3:].tolist()
    if kwargs["streamer"] is streamer:
        assert streamer.got == [PROMPT, *([token] for token in new)]
        assert streamer.ended == 1
    assert stats.tokens == len(new)
    return new, stats


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.parametrize("length", range(1, 13))
@pytest.mark.rotating(10)
def test_max_new_tokens(lookahead: int, length: int) -> None:
    new, stats = run(lookahead, max_new_tokens=length)
    assert new == TEXT[:length]
    assert stats.finish_reasons == ["length"]
    # No draft reaches beyond the end: each step's bonus token still had its place.
    assert stats.tokens == 1 + stats.steps + stats.drafted


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.parametrize(
    ("kwargs", "length"), [({"max_length": 8}, 5), ({}, 20)], ids=["max_length counts the prompt", "20 by default"]
)
def test_lengths_without_max_new_tokens(lookahead: int, kwargs: dict[str, Any], length: int) -> None:
    assert run(lookahead, max_new_tokens=None, **kwargs)[0] == (TEXT + [0] * 8)[:length]


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.parametrize("eos", [*TEXT, [30, 16, 14], {16, 14}, torch.tensor([16, 14]), [14, -1]])
@pytest.mark.rotating(12)
def test_an_end_token_is_the_last(lookahead: int, eos: Any) -> None:
    new, stats = run(lookahead, eos_token_id=eos)
    assert new == TEXT[: TEXT.index(eos if isinstance(eos, int) else 14) + 1]
    assert stats.finish_reasons == ["stop"]


class StopAt(StoppingCriteria):
    """Stops at a length; keeps every prefix that it was asked about."""

    def __init__(self, length: int, answer: Callable[[bool], Any]) -> None:
        self.length = length
        self.answer = answer
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        assert input_ids.dtype == torch.int64
        assert input_ids.shape[0] == 1
        self.seen.append(input_ids[0].tolist())
        return self.answer(input_ids.shape[1] >= self.length)


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.parametrize("answer", [bool, lambda stop: torch.tensor([stop]), lambda stop: torch.tensor(stop)])
@pytest.mark.rotating(6)
def test_criteria_are_asked_once_for_each_token_in_order(lookahead: int, answer: Any) -> None:
    criterion = StopAt(10, answer)
    new, stats = run(lookahead, stopping_criteria=StoppingCriteriaList([criterion]))
    assert new == TEXT[:7]
    assert criterion.seen == [PROMPT + TEXT[:n] for n in range(1, 8)]
    assert stats.finish_reasons == ["stop"]


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
def test_a_streamer_may_stop_the_generation_through_a_criterion(lookahead: int) -> None:
    """put, then the criteria, for each token in turn: a stop button stops at the same token with any lookahead."""

    class Button(Recorder):
        def stop(self, ids: torch.Tensor, scores: Any) -> bool:
            return len(self.got) > 4

    button = Button()
    new, _ = run(lookahead, streamer=button, stopping_criteria=[button.stop])
    assert new == TEXT[:4]


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
def test_max_time_ends_after_the_token_in_hand(lookahead: int) -> None:
    assert run(lookahead, max_time=0.0)[0] == TEXT[:1]
    assert run(lookahead, max_time=1000.0)[0] == TEXT


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("fox", "The quick brown fox"),
        (["zebra", "row"], "The quick brow"),
        ("k b", "The quick b"),
        ("ö", "The quick brown fox jumps ö"),
        ("never", "The quick brown fox jumps över."),
    ],
)
@pytest.mark.rotating(10)
def test_stop_strings(lookahead: int, stop: Any, expected: str) -> None:
    tokenizer = byte_tokenizer()
    text = list("The quick brown fox jumps över.".encode())
    prompt = list(b"Go: ")
    engine = scripted([*text, EOS, 65, 65], VOCAB, len(prompt))
    streamer = Recorder()
    out = generate(
        engine,
        torch.tensor([prompt]),
        max_new_tokens=60,
        eos_token_id=EOS,
        stop_strings=stop,
        tokenizer=tokenizer,
        lookahead=lookahead,
        streamer=streamer,
        make=lambda _: OracleProposer([*prompt, *text, EOS, *[65] * 99]),
    )
    new = out[0, 4:].tolist()
    assert bytes(t for t in new if t != EOS).decode() == expected
    assert [t for piece in streamer.got[1:] for t in piece] == new


@pytest.mark.parametrize("prompt_length", [9, 10, 50])
def test_a_prompt_that_fills_the_context_is_refused_before_any_work(prompt_length: int) -> None:
    engine = markov(max_context=9)
    with pytest.raises(
        ContextLengthError,
        match=f"the prompt has {prompt_length} tokens, which leaves no room",
    ):
        generate(engine, torch.ones((1, prompt_length), dtype=torch.int64), max_new_tokens=4)
    assert not engine.batches


@pytest.mark.parametrize("lookahead", [0, 4])
def test_max_new_tokens_0_returns_the_prompt(lookahead: int) -> None:
    engine = scripted(TEXT, 32, len(PROMPT))
    new, stats = run(lookahead, engine=engine, max_new_tokens=0)
    assert new == []
    assert stats.finish_reasons == ["length"]
    assert not engine.batches


def test_text_iterator_streamer_gets_the_text_and_the_end() -> None:
    tokenizer = byte_tokenizer()
    engine = scripted([*b"Nice text.", EOS], VOCAB, 2)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=200)
    ids = torch.tensor([[65, 66]])
    thread = threading.Thread(
        target=generate, args=(engine, ids), kwargs={"streamer": streamer, "eos_token_id": EOS, "lookahead": 3}
    )
    thread.start()
    assert "".join(streamer) == "Nice text."
    thread.join()


@pytest.mark.parametrize("bad", [{"temperature": -1, "do_sample": True}, {"lookahead": -1}, {"nonsense": 1}])
def test_a_streamer_is_ended_when_the_arguments_are_bad(bad: dict[str, Any]) -> None:
    """Else a thread that reads a TextIteratorStreamer would wait for ever."""
    streamer = Recorder()
    with pytest.raises(InputError):
        generate(markov(), torch.tensor([[1]]), streamer=streamer, **bad)
    assert streamer.ended == 1
    assert streamer.got == []


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
def test_a_streamer_gets_a_column_of_a_batch_for_each_position(lookahead: int) -> None:
    streamer = Recorder()
    ids = torch.tensor([[7, 8, 9], [1, 2, 3]])
    out = generate(
        markov(seed=1), ids, lookahead=lookahead, adaptive=False, streamer=streamer, eos_token_id=[5], pad_token_id=11
    )
    assert streamer.got == [ids.flatten().tolist(), *out[:, 3:].T.tolist()]
    assert streamer.ended == 1


def test_transformers_streamers_say_themselves_that_they_take_one_sequence() -> None:
    engine = markov()
    with pytest.raises(ValueError, match="TextStreamer only supports batch size 1"):
        generate(engine, torch.tensor([[1], [2]]), streamer=TextStreamer(byte_tokenizer()))
    assert not engine.batches


LONG = torch.full((1, 2000), 5)


@pytest.mark.parametrize("kind", ["event", "function", "criterion", "max_time"])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_long_prompt_can_be_cancelled_from_another_thread(kind: str, rows: int) -> None:
    engine, stats = markov(max_context=4096), GenerationStats()
    event, options = threading.Event(), {}

    class Stop(StoppingCriteria):
        during_prompt = True
        shapes: list[Any] = []  # noqa: RUF012

        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            self.shapes.append(tuple(input_ids.shape))
            return torch.full((len(input_ids),), event.is_set())

    if kind == "max_time":
        options["max_time"] = 0.0
    elif kind == "criterion":
        options["stopping_criteria"] = [Stop()]
    else:
        options["cancel"] = event if kind == "event" else event.is_set

    def press(done: int, total: int) -> None:
        if done >= 1024:
            thread = threading.Thread(target=event.set)
            thread.start()
            thread.join()

    streamer = Recorder() if rows == 1 else None
    ids = LONG.repeat(rows, 1)
    out = generate(
        engine, ids, max_new_tokens=5, lookahead=2, stats=stats, on_prefill=press, streamer=streamer, **options
    )
    assert torch.equal(out, ids)
    assert stats.finish_reasons == ["cancelled"] * rows
    assert (stats.tokens, stats.decode_seconds) == (0, 0.0)
    assert len(engine.batches) == (1 if kind == "max_time" else 2)
    if streamer is not None:
        assert (len(streamer.got), streamer.ended) == (1, 1)
    if kind == "criterion":
        assert Stop.shapes == [(rows, 2000)] * 2


def test_a_criterion_that_does_not_ask_for_it_is_not_asked_during_the_prompt() -> None:
    """It may count its calls."""
    asked: list[int] = []
    out = generate(
        markov(max_context=4096),
        LONG,
        max_new_tokens=9,
        stopping_criteria=[lambda ids, scores: asked.append(ids.shape[1]) or len(asked) == 3],
        eos_token_id=None,
    )
    assert out.shape[1] == 2003
    assert asked == [2001, 2002, 2003]


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.parametrize("rows", [1, 3])
def test_cancelling_while_tokens_come_keeps_them(lookahead: int, rows: int) -> None:
    event, stats = threading.Event(), GenerationStats()

    class Pressing(Recorder):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.got) > 4:
                event.set()

    streamer = Pressing()
    ids = torch.tensor([[7, 8, 9]]).repeat(rows, 1)
    options = {"lookahead": lookahead, "adaptive": False, "eos_token_id": None, "max_new_tokens": 50}
    out = generate(markov(), ids, cancel=event, streamer=streamer, stats=stats, **options)
    assert stats.finish_reasons == ["cancelled"] * rows
    assert 4 <= out.shape[1] - 3 < 50
    assert streamer.got[1:] == out[:, 3:].T.tolist()
    assert torch.equal(out, generate(markov(), ids, **options)[:, : out.shape[1]])


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["prompt", "processor", "criterion", "streamer", "engine", "proposer"])
def test_an_abandoned_generation_leaves_the_model_usable(error: BaseException, place: str) -> None:
    engine = scripted(TEXT, 32, len(PROMPT))
    whole = run(4, engine=engine)[0]
    calls = 0

    def fail_at_the_fifth() -> None:
        nonlocal calls
        calls += 1
        if calls == 5 or place in ("prompt", "engine", "proposer"):
            raise error

    class Failing(OracleProposer):
        def propose(self, budget: int) -> Any:
            fail_at_the_fifth()

    streamer, stats = Recorder(), GenerationStats()
    options: dict[str, Any] = {}
    if place == "prompt":
        options["on_prefill"] = lambda done, total: fail_at_the_fifth()
    elif place == "processor":
        options["logits_processor"] = [lambda ids, scores: (fail_at_the_fifth(), scores)[1]]
    elif place == "criterion":
        options["stopping_criteria"] = [lambda ids, scores: fail_at_the_fifth() or False]
    elif place == "streamer":
        put = streamer.put
        streamer.put = lambda value: (fail_at_the_fifth(), put(value))[1]  # type: ignore[method-assign]
    elif place == "engine":
        engine.before_forward = lambda: fail_at_the_fifth() if stats.tokens > 2 else None
    make = (lambda _: Failing(PROMPT + TEXT)) if place == "proposer" else (lambda _: OracleProposer(PROMPT + TEXT))
    with pytest.raises(type(error)):
        generate(
            engine,
            torch.tensor([PROMPT]),
            max_new_tokens=12,
            lookahead=4,
            streamer=streamer,
            stats=stats,
            make=make,
            **options,
        )
    assert streamer.ended == 1
    assert stats.finish_reasons == ["abandoned"]
    assert stats.tokens >= len(streamer.got) - 1
    engine.before_forward = lambda: None
    assert run(4, engine=engine)[0] == whole


def test_ended_rows_of_a_batch_are_padded_on_the_right() -> None:
    engine = scripted([5, 6, 9, 7, 8, 4], 32, 2)
    ids = torch.tensor([[1, 1], [31, 3]])
    mask = torch.tensor([[1, 1], [0, 1]])
    out = generate(engine, ids, attention_mask=mask, eos_token_id=[9], pad_token_id=30, max_new_tokens=5, lookahead=2)
    assert out.tolist() == [[1, 1, 5, 6, 9, 30], [31, 3, 0, 5, 6, 9]]
    out = generate(engine, ids, attention_mask=mask, eos_token_id=[9, 10], max_new_tokens=5)
    assert out.tolist() == [[1, 1, 5, 6, 9, 9], [31, 3, 0, 5, 6, 9]]
