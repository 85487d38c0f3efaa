"""``ipex-lookahead bench serve``: latency and throughput of a server under load, and equality of its answers.

Requests arrive as a Poisson process (open loop), or a fixed number of them is in flight (closed loop). Open-loop times
count from the time a request was due, so that delays of the client count too. Goodput is that of DistServe (Zhong et
al., 2024, arXiv 2401.09670): answers per second within both limits, on the time to the first token and on the mean time
per token after it.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from ipex_lookahead.bench.chat_client import ChatServer, RequestFailed, find_server, read_key, text_in
from ipex_lookahead.bench.options import Prompts, Report
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_facts, print_table
from ipex_lookahead.system.terminal import counted

PERCENTILES = (50, 90, 99)


def server_address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Click callback: check the URL of a server, if one is given."""
    if value is None:
        return None
    try:
        parts = urlsplit(value)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None or not value.isprintable():
        raise click.BadParameter(f"{value!r} is not the URL of a server, such as http://127.0.0.1:8080")
    return value.rstrip("/").removesuffix("/v1")


@dataclass
class Target:
    """The server."""

    url: str = option(
        "Server URL, such as http://127.0.0.1:8080.", required=True, callback=server_address, metavar="URL"
    )
    name: str | None = option(
        "Model name on the server. Default: the first one listed.", None, "--model", metavar="NAME"
    )
    api_key_file: Path | None = option(
        "File with API keys; the first one is used.",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
    )


@dataclass
class Load:
    """The requests."""

    streams: int | None = option("Number of concurrent requests. Default: 8 without --rate.", low=1, high=1024)
    rate: float | None = option("Requests per second (Poisson process).", low=0, above=True)
    gaps_seed: int = option("Seed of the arrival times of --rate.", 0, "--seed", low=0)
    requests: int | None = option(
        "Total number of requests, cycling through the prompts. Default: each prompt once.",
        low=1,
        high=100_000,
        metavar="K",
    )


@dataclass
class Limits:
    """Limits of an answer."""

    max_new_tokens: int = option("Maximum number of tokens per answer.", 128, "-n", low=1)
    ttft_limit: float | None = option("Time-to-first-token limit for goodput.", low=0, above=True, metavar="MS")
    itl_limit: float | None = option("Inter-token-latency limit for goodput.", low=0, above=True, metavar="MS")
    timeout: float = option("Seconds without data before a request fails.", 600.0, low=0, above=True)


@command("ipex-lookahead bench serve --url http://127.0.0.1:8080 --streams 8")
def serve(target: Target, what: Load, prompts: Prompts, limits: Limits, to: Report) -> None:
    """Measure any OpenAI-compatible server under load: time to first token, time between tokens, equal answers.

    Sends streaming chat completions at temperature 0, then each prompt once more alone, and compares the texts. The
    server may find a repeated prompt in its prefix cache: give at least one prompt per request to avoid that.
    """
    if what.streams is not None and what.rate is not None:
        raise click.UsageError("--streams and --rate are two kinds of load; give one of them")
    to.check()
    from ipex_lookahead.bench.plots.serve import plot_serve

    texts = [prompt.text for prompt in prompts.read()]
    key = read_key(target.api_key_file) if target.api_key_file else ""
    server = find_server(target.url, model=target.name, key=key, timeout=limits.timeout)
    send = sender(server, texts, limits.max_new_tokens)
    order = [number % len(texts) for number in range(what.requests or len(texts))]
    streams, rate = what.streams or 8, what.rate
    with progress_bar(len(order), "under load") as advance:
        if rate is not None:
            loaded = open_loop(send, order, rate, what.gaps_seed, advance)
        else:
            loaded = closed_loop(send, order, streams, advance)
    distinct = sorted({one.prompt for one in loaded if one.failure is None})
    with progress_bar(len(distinct), "alone") as advance:
        by_themselves = closed_loop(send, distinct, 1, advance)
    report: dict[str, Any] = {
        "url": target.url,
        "model": server.model,
        "prompts": len(texts),
        "max_new_tokens": limits.max_new_tokens,
    }
    report |= {"rate": rate, "seed": what.gaps_seed} if rate is not None else {"streams": streams}
    report["load"] = f"{rate:g} requests per second" if rate is not None else counted(streams, "stream")
    goodput = {"ttft_limit": limits.ttft_limit, "itl_limit": limits.itl_limit}
    report |= summarize(loaded, by_themselves, **goodput)
    _print(report, to_stderr=to.as_json)
    to.write(report, plot_serve if report["answered"] else None)
    _judge(report, row_invariant=server.row_invariant)


def _print(report: dict[str, Any], *, to_stderr: bool) -> None:
    rows = [
        (label, *("-" if value is None else f"{value:.1f}" for value in report[key].values()))
        for label, key in (
            ("time to first token", "ttft_ms"),
            ("a token after it", "itl_ms"),
            ("between pieces of text", "gap_ms"),
        )
    ]
    print_table(
        ("milliseconds", "p50", "p90", "p99"),
        rows,
        title=f"{report['model']} at {report['url']} · {report['load']} · {counted(report['requests'], 'request')} · "
        f"up to {report['max_new_tokens']} tokens",
        caption="a token: the mean of each answer; a piece may be several tokens",
        to_stderr=to_stderr,
    )
    counted_by = (
        f"; {report['uncounted']} answers came without a count, and their pieces count" if report["uncounted"] else ""
    )
    facts = [
        (
            "together",
            f"{report['tok_s']:.1f} tokens/s, {report['requests_s']:.2f} answers/s in {report['seconds']:.1f} s",
        ),
        ("tokens", f"{report['tokens']} new, {report['prompt_tokens']} of prompts{counted_by}"),
        ("equal to alone", f"{report['identical_to_alone']} answers"),
    ]
    good = report["goodput"]
    known = (("ttft_limit_ms", "to the first token"), ("itl_limit_ms", "a token"))
    limits = [f"{good[key]:g} ms {label}" for key, label in known if good[key]]
    if limits:
        within = f"{good['requests']}/{report['requests']} within {' and '.join(limits)}"
        facts.append(("goodput", f"{good['requests_s']:.2f} answers/s: {within}"))
    for key, when in (("failures", "failed"), ("failures_alone", "failed alone")):
        facts += [(when, f"{count} {kind}: {report['failures_said'][kind]}") for kind, count in report[key].items()]
    print_facts(facts, to_stderr=to_stderr)


def _judge(report: dict[str, Any], *, row_invariant: bool) -> None:
    """Exit with status 1 if a request failed, or if a row-invariant server gave other answers under load."""
    same, _, compared = report["identical_to_alone"].partition("/")
    failed = report["requests"] - report["answered"] + sum(report["failures_alone"].values())
    if failed:
        click.echo(f"error: {counted(failed, 'request')} failed", err=True)
    if row_invariant and same != compared:
        click.echo(
            "error: answers under load differ from those alone, although this server reports row_invariant", err=True
        )
    if failed or (row_invariant and same != compared):
        raise click.exceptions.Exit(1)


@dataclass(slots=True)
class RequestResult:
    """The result of one request. Times are seconds of ``time.perf_counter``.

    Attributes:
        prompt: Number of the prompt.
        due: Time the request was due (open loop) or sent (closed loop).
        arrivals: Time of each chunk of text.
        ended: Time the answer ended or failed.
        text: The whole answer.
        prompt_tokens: Count of the server; None if the stream has none.
        tokens: Likewise.
        failure: Kind of the failure, or None.
        message: The server's message for a failure.
    """

    prompt: int
    due: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    text: str = ""
    prompt_tokens: int | None = None
    tokens: int | None = None
    failure: str | None = None
    message: str = ""

    @property
    def count(self) -> int:
        """Tokens of the answer, or chunks of text if the server does not count tokens."""
        return len(self.arrivals) if self.tokens is None else self.tokens

    @property
    def first(self) -> float | None:
        """Seconds to the first chunk."""
        return self.arrivals[0] - self.due if self.arrivals else None

    @property
    def each(self) -> float | None:
        """Mean seconds per token after the first."""
        return (self.arrivals[-1] - self.arrivals[0]) / (self.count - 1) if self.arrivals and self.count > 1 else None


Send = Callable[[int, float], RequestResult]
"""(number of the prompt, due time) -> result."""


def sender(server: ChatServer, prompts: Sequence[str], max_new_tokens: int) -> Send:
    """Return a function that sends one request at temperature 0 and waits for the answer."""

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
                    if text := text_in(chunk):
                        result.arrivals.append(time.perf_counter())
                        pieces.append(text)
                    if isinstance(usage := chunk.get("usage"), dict):
                        result.prompt_tokens = _count(usage.get("prompt_tokens"))
                        result.tokens = _count(usage.get("completion_tokens"))
        except RequestFailed as error:
            result.failure, result.message = error.kind, error.message
        result.ended = time.perf_counter()
        result.text = "".join(pieces)
        return result

    return send


def open_loop(
    send: Send, prompts: Sequence[int], rate: float, seed: int, advance: Callable[[], None] = lambda: None
) -> list[RequestResult]:
    """Send each prompt when it is due, without waiting for earlier answers.

    Args:
        send: See :func:`sender`.
        prompts: Numbers of the prompts.
        rate: Mean number of requests per second.
        seed: Seed of the gaps.
        advance: Called after each answer.

    Returns:
        One result for each prompt, in order.
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
    """Send the prompts with ``streams`` requests at a time; otherwise like :func:`open_loop`."""
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
        except BaseException as error:  # raised again by _collected
            results.put((number, error))

    threading.Thread(target=run, name=f"bench serve {number}", daemon=True).start()


def _collected(results: Any, count: int, *ended: Callable[[], None]) -> list[RequestResult]:
    found: dict[int, RequestResult] = {}
    while len(found) < count:
        number, result = results.get()
        if isinstance(result, BaseException):
            raise result
        found[number] = result
        for call in reversed(ended):  # send the next request before the progress bar moves
            call()
    return [found[number] for number in range(count)]


def summarize(
    loaded: Sequence[RequestResult],
    by_themselves: Sequence[RequestResult],
    *,
    ttft_limit: float | None = None,
    itl_limit: float | None = None,
) -> dict[str, Any]:
    """Return the figures of a load for JSON; percentiles are None without a measurement.

    Args:
        loaded: Results of at least one request.
        by_themselves: Results of the same prompts, one at a time.
        ttft_limit: For goodput, most milliseconds to the first token.
        itl_limit: For goodput, most milliseconds per token after it, as the mean of an answer.
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
        "failures_said": {str(one.failure): one.message for one in reversed(failures)},
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
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def _within(seconds: float | None, milliseconds: float | None) -> bool:
    """Return True if a limit is met; a missing value meets every limit."""
    return milliseconds is None or seconds is None or 1e3 * seconds <= milliseconds


def _percentiles(seconds: Sequence[float | None]) -> dict[str, float | None]:
    """Return the percentiles in milliseconds, interpolated linearly."""
    import numpy as np

    values = [1e3 * one for one in seconds if one is not None]
    return {f"p{percent}": float(np.percentile(values, percent)) if values else None for percent in PERCENTILES}


def _bar(result: RequestResult, began: float) -> dict[str, Any]:
    """Return a request for the plot; times are seconds since the load began."""
    return {
        "prompt": result.prompt,
        "due": result.due - began,
        "first": result.arrivals[0] - began if result.arrivals else None,
        "ended": result.ended - began,
        "tokens": result.count,
        "itl_ms": None if result.each is None else 1e3 * result.each,
        "failure": result.failure,
    }
