"""``bench serve``: a server under load, seen by its clients; and whether company changes an answer.

Requests arrive by themselves (open loop: a Poisson process, its gaps drawn from an exponential distribution), or a
fixed number is under way at any time (closed loop). Open-loop times count from when a request was due: a server
that makes its clients late does not look better for it. Goodput is that of DistServe (Zhong et al., 2024, arXiv
2401.09670): answers a second that kept both limits, on the time to the first token and on the mean time of those after.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ipex_lookahead.bench.chat_client import ChatServer, RequestFailed, said_in

PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class RequestResult:
    """A request and what came of it. Times are seconds of ``time.perf_counter``.

    Attributes:
        prompt: its number.
        due: when it was to be sent; in a closed loop, when it was.
        arrivals: when each piece of text came.
        ended: when the answer was whole, or had failed.
        text: all pieces.
        prompt_tokens: by the server's own count; None where the stream said nothing of it.
        tokens: likewise.
        failure: its kind, or None.
        said: what the server said to it.
    """

    prompt: int
    due: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    text: str = ""
    prompt_tokens: int | None = None
    tokens: int | None = None
    failure: str | None = None
    said: str = ""

    @property
    def count(self) -> int:
        """Tokens of the answer; pieces of text where the server did not count."""
        return len(self.arrivals) if self.tokens is None else self.tokens

    @property
    def first(self) -> float | None:
        """Seconds to the first text."""
        return self.arrivals[0] - self.due if self.arrivals else None

    @property
    def each(self) -> float | None:
        """Mean seconds of a token after the first."""
        return (self.arrivals[-1] - self.arrivals[0]) / (self.count - 1) if self.arrivals and self.count > 1 else None


Send = Callable[[int, float], RequestResult]
"""(number of the prompt, when it was due) -> what came of it."""


def sender(server: ChatServer, prompts: Sequence[str], max_new_tokens: int) -> Send:
    """What sends one request and waits for its answer, at temperature 0."""

    def send(prompt: int, due: float) -> RequestResult:
        result = RequestResult(prompt, due)
        body = {
            "messages": [{"role": "user", "content": prompts[prompt]}],
            "max_tokens": max_new_tokens,
            "temperature": 0,
        }
        pieces = []
        try:
            with closing(server.stream(body)) as chunks:
                for chunk in chunks:
                    if said := said_in(chunk):
                        result.arrivals.append(time.perf_counter())
                        pieces.append(said)
                    if isinstance(usage := chunk.get("usage"), dict):
                        result.prompt_tokens = _count(usage.get("prompt_tokens"))
                        result.tokens = _count(usage.get("completion_tokens"))
        except RequestFailed as error:
            result.failure, result.said = error.kind, error.said
        result.ended = time.perf_counter()
        result.text = "".join(pieces)
        return result

    return send


def open_loop(
    send: Send, prompts: Sequence[int], rate: float, seed: int, advance: Callable[[], None] = lambda: None
) -> list[RequestResult]:
    """Send each prompt when it is due, whatever became of those before.

    Args:
        send: see :func:`sender`.
        prompts: numbers, in the order of their sending.
        rate: requests a second, in the mean.
        seed: of the gaps: the same seed, the same gaps.
        advance: called after each answer.

    Returns:
        In the order of their sending.
    """
    gaps = random.Random(seed)
    results: queue.SimpleQueue[tuple[int, RequestResult | BaseException]] = queue.SimpleQueue()
    due = time.perf_counter()
    for number, prompt in enumerate(prompts):
        time.sleep(max(0.0, due - time.perf_counter()))
        _start(results, number, send, prompt, due)
        due += gaps.expovariate(rate)
    return _collected(results, len(prompts), advance)


def closed_loop(
    send: Send, prompts: Sequence[int], streams: int, advance: Callable[[], None] = lambda: None
) -> list[RequestResult]:
    """Keep ``streams`` requests under way, each followed by the next as soon as it has ended; otherwise as above."""
    results: queue.SimpleQueue[tuple[int, RequestResult | BaseException]] = queue.SimpleQueue()
    waiting = iter(enumerate(prompts))

    def ended() -> None:
        if (following := next(waiting, None)) is not None:
            _start(results, following[0], send, following[1], time.perf_counter())

    for _ in range(streams):
        ended()
    return _collected(results, len(prompts), advance, ended)


def _start(results: Any, number: int, send: Send, prompt: int, due: float) -> None:
    def run() -> None:
        try:
            results.put((number, send(prompt, due)))
        except BaseException as error:  # whoever collects raises it
            results.put((number, error))

    threading.Thread(target=run, name=f"bench serve {number}", daemon=True).start()


def _collected(results: Any, count: int, *ended: Callable[[], None]) -> list[RequestResult]:
    found: dict[int, RequestResult] = {}
    while len(found) < count:
        number, result = results.get()
        if isinstance(result, BaseException):
            raise result
        found[number] = result
        for call in reversed(ended):  # the next request first, the picture of it afterwards
            call()
    return [found[number] for number in range(count)]


def alone(send: Send, prompts: Sequence[int], advance: Callable[[], None] = lambda: None) -> list[RequestResult]:
    """Each prompt with nobody beside it: what answers under load are held against."""
    return closed_loop(send, prompts, 1, advance)


def summarise(
    loaded: Sequence[RequestResult],
    by_themselves: Sequence[RequestResult],
    *,
    ttft_limit: float | None = None,
    itl_limit: float | None = None,
) -> dict[str, Any]:
    """Figures of a load.

    Args:
        loaded: its requests, at least one.
        by_themselves: the same prompts alone, see :func:`alone`.
        ttft_limit: milliseconds to the first token that goodput allows.
        itl_limit: milliseconds a token after it, in the mean of an answer.

    Returns:
        For JSON; milliseconds and seconds as the names say. Percentiles are None where nothing was measured.
    """
    began = min(one.due for one in loaded)
    seconds = max(one.ended for one in loaded) - began
    answered = [one for one in loaded if one.failure is None]
    kept = [one for one in answered if _within(one.first, ttft_limit) and _within(one.each, itl_limit)]
    gaps = [later - before for one in answered for before, later in zip(one.arrivals, one.arrivals[1:], strict=False)]
    texts = {one.prompt: one.text for one in by_themselves if one.failure is None}
    compared = [one for one in answered if one.prompt in texts]
    failures = [one for one in (*loaded, *by_themselves) if one.failure is not None]
    tokens = sum(one.count for one in answered)
    limits = {"ttft_limit_ms": ttft_limit, "itl_limit_ms": itl_limit}
    return {
        "requests": len(loaded),
        "answered": len(answered),
        "failures": dict(Counter(one.failure for one in loaded if one.failure is not None)),
        "failures_alone": dict(Counter(one.failure for one in by_themselves if one.failure is not None)),
        "failures_said": {str(one.failure): one.said for one in reversed(failures)},
        "seconds": seconds,
        "requests_s": len(answered) / seconds,
        "prompt_tokens": sum(one.prompt_tokens or 0 for one in answered),
        "tokens": tokens,
        "tok_s": tokens / seconds,
        "uncounted": sum(one.tokens is None for one in answered),
        "ttft_ms": _percentiles([one.first for one in answered]),
        "itl_ms": _percentiles([one.each for one in answered]),
        "gap_ms": _percentiles(gaps),
        "goodput": {**limits, "requests": len(kept), "requests_s": len(kept) / seconds},
        "identical_to_alone": f"{sum(one.text == texts[one.prompt] for one in compared)}/{len(compared)}",
        "timeline": [_bar(one, began) for one in loaded],
    }


def _count(value: Any) -> int | None:
    """A number of tokens that a server reports, where it is one."""
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def _within(seconds: float | None, milliseconds: float | None) -> bool:
    """Whether a limit is kept; what was not there to be measured keeps it."""
    return milliseconds is None or seconds is None or 1e3 * seconds <= milliseconds


def _percentiles(seconds: Sequence[float | None]) -> dict[str, float | None]:
    """Of milliseconds, interpolated linearly."""
    values = [1e3 * one for one in seconds if one is not None]
    return {f"p{percent}": float(np.percentile(values, percent)) if values else None for percent in PERCENTILES}


def _bar(result: RequestResult, began: float) -> dict[str, Any]:
    """A request for a picture: seconds since the load began."""
    return {
        "prompt": result.prompt,
        "due": result.due - began,
        "first": result.arrivals[0] - began if result.arrivals else None,
        "ended": result.ended - began,
        "tokens": result.count,
        "itl_ms": None if result.each is None else 1e3 * result.each,
        "failure": result.failure,
    }


def in_turn(prompts: int, requests: int) -> Iterator[int]:
    """Numbers of prompts, from the first again after the last."""
    return (number % prompts for number in range(requests))
