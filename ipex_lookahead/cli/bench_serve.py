"""``ipex-lookahead bench serve``: a server under load, and whether company changes an answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.measuring import Prompts, Report
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_facts, print_table
from ipex_lookahead.system.terminal import counted


def _address(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Callback: a URL of a server, without what follows its path."""
    try:
        parts = urlsplit(value)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None or not value.isprintable():
        raise click.BadParameter(f"{value!r} is no URL of a server, such as http://127.0.0.1:8080")
    return value.rstrip("/").removesuffix("/v1")


@dataclass
class Target:
    """The server."""

    url: str = option(
        "Where the server is, such as http://127.0.0.1:8080.", required=True, callback=_address, metavar="URL"
    )
    name: str | None = option(
        "What the server calls the model; the first that it lists if not given.", None, "--model", metavar="NAME"
    )
    api_key_file: Path | None = option(
        "A file whose first key is sent.", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE"
    )


@dataclass
class Load:
    """The requests."""

    streams: int | None = option("Requests under way at any time; 8 if no --rate is given.", low=1, high=1024)
    rate: float | None = option("Requests a second, by a Poisson process, whatever becomes of them.", low=0, above=True)
    gaps_seed: int = option("Of the gaps of --rate.", 0, "--seed", low=0)
    requests: int | None = option(
        "Requests in all, prompts in turn; each prompt once if not given.", low=1, high=100_000, metavar="K"
    )


@dataclass
class Limits:
    """How long an answer may be, and may take."""

    max_new_tokens: int = option("Most tokens of an answer.", 128, "-n", low=1)
    ttft_limit: float | None = option("To the first token, for goodput.", low=0, above=True, metavar="MS")
    itl_limit: float | None = option("A token after it, for goodput.", low=0, above=True, metavar="MS")
    timeout: float = option("Seconds of silence until one fails.", 600.0, low=0, above=True)


@command("ipex-lookahead bench serve --url http://127.0.0.1:8080 --streams 8")
def serve(target: Target, what: Load, prompts: Prompts, limits: Limits, to: Report) -> None:
    """A server under load, of any maker: times to the first token and between tokens, and equal answers.

    Sends chat completions at temperature 0, streamed, then each prompt once more alone and compares the texts. A prompt
    that is sent twice may be found in the server's cache: give as many prompts as requests to measure without.
    """
    if what.streams is not None and what.rate is not None:
        raise click.UsageError("--streams and --rate are two kinds of load; give one of them")
    to.check()
    from ipex_lookahead.bench import serve as load
    from ipex_lookahead.bench.chat_client import find_server, read_key
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.plots.serve import plot_serve

    texts = [prompt.text for prompt in prompts.read()]
    key = read_key(target.api_key_file) if target.api_key_file else ""
    server = find_server(target.url, model=target.name, key=key, timeout=limits.timeout)
    send = load.sender(server, texts, limits.max_new_tokens)
    order = list(load.in_turn(len(texts), what.requests or len(texts)))
    streams, rate = what.streams or 8, what.rate
    with progress_bar(len(order), "under load") as advance:
        if rate is not None:
            loaded = load.open_loop(send, order, rate, what.gaps_seed, advance)
        else:
            loaded = load.closed_loop(send, order, streams, advance)
    distinct = sorted({one.prompt for one in loaded if one.failure is None})
    with progress_bar(len(distinct), "alone") as advance:
        by_themselves = load.alone(send, distinct, advance)
    report: dict[str, Any] = {
        "url": target.url,
        "model": server.model,
        "prompts": len(texts),
        "max_new_tokens": limits.max_new_tokens,
    }
    report |= {"rate": rate, "seed": what.gaps_seed} if rate is not None else {"streams": streams}
    report["load"] = f"{rate:g} requests a second" if rate is not None else counted(streams, "stream")
    goodput = {"ttft_limit": limits.ttft_limit, "itl_limit": limits.itl_limit}
    report |= {**where_and_when(), **load.summarise(loaded, by_themselves, **goodput)}
    _print(report, to_stderr=to.as_json)
    to.write(report, plot_serve if report["answered"] else None)
    _judge(report, row_invariant=server.row_invariant)


def _print(report: dict[str, Any], *, to_stderr: bool) -> None:
    rows = [
        (said, *("-" if value is None else f"{value:.1f}" for value in report[key].values()))
        for said, key in (
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
    limits = [f"{good[key]:g} ms {said}" for key, said in known if good[key]]
    if limits:
        within = f"{good['requests']}/{report['requests']} within {' and '.join(limits)}"
        facts.append(("goodput", f"{good['requests_s']:.2f} answers/s: {within}"))
    for key, when in (("failures", "failed"), ("failures_alone", "failed alone")):
        facts += [(when, f"{count} {kind}: {report['failures_said'][kind]}") for kind, count in report[key].items()]
    print_facts(facts, to_stderr=to_stderr)


def _judge(report: dict[str, Any], *, row_invariant: bool) -> None:
    """Exit status 1 where something was not answered, or a server that says otherwise let company change an answer."""
    same, _, compared = report["identical_to_alone"].partition("/")
    failed = report["requests"] - report["answered"] + sum(report["failures_alone"].values())
    if failed:
        click.echo(f"error: {counted(failed, 'request')} failed", err=True)
    if row_invariant and same != compared:
        click.echo("error: this server says that company changes no answer, and answers differ", err=True)
    if failed or (row_invariant and same != compared):
        raise click.exceptions.Exit(1)
