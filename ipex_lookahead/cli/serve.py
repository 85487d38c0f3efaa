"""``ipex-lookahead serve``: the model behind OpenAI's and Anthropic's APIs, and a page to talk with it."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.lookahead import NO_COPY, Lookahead, strategy_options
from ipex_lookahead.cli.names import STRATEGIES
from ipex_lookahead.cli.options import (
    PLACING,
    draft_model_option,
    engine_options,
    model_options,
    option,
    special_tokens_option,
)
from ipex_lookahead.cli.types import Size, Strategy, Tokens
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.system.extras import installing

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "llguidance", "markdown_it", "pygments")
"""Packages of the extra ``serve``."""


@command("ipex-lookahead serve", "ipex-lookahead serve -m path/to/model --low-bit sym_int4 --port 8000")
@model_options
@engine_options
@draft_model_option
@option(
    "--lookahead",
    type=Tokens(),
    default="auto",
    help="Most drafted tokens a step, or 'auto'; 0 is off. A request may say another. Never changes an answer.",
)
@option(
    "--strategy",
    type=Strategy(NO_COPY),
    help=f"Where drafts come from: {', '.join(name for name in STRATEGIES if name not in NO_COPY)}.",
)
@strategy_options
@option("--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on; 0.0.0.0 lets others in.")
@option("--port", type=click.IntRange(0, 65535), default=8080, help="Port; 0 takes one that is free, and says which.")
@option(
    "--api-key-file",
    type=click.Path(),
    metavar="FILE",
    help="Keys, one a line; without one of them nothing is answered. SIGHUP reads the file again.",
)
@option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A further name that requests may call this server, as a proxy's; '*' answers to every name.",
)
@option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages and programs of this origin ask, such as https://chat.example; '*' lets all of them.",
)
@option("--tls-cert", type=click.Path(), metavar="FILE.pem", help="Serve HTTPS with this certificate.")
@option("--tls-key", type=click.Path(), metavar="FILE.pem", help="The certificate's key.")
@option("--served-model-name", "names", multiple=True, metavar="NAME", help="What requests may call the model.")
@option("--slots", type=click.IntRange(1, 256), default=8, help="Most answers that are made at a time.")
@option("--queue", type=click.IntRange(0), default=64, help="Most requests that wait for a slot; others get a 429.")
@option(
    "--max-running-per-key",
    type=click.IntRange(1),
    metavar="N",
    help="Most of the slots that one API key may have; all of them if not given. Keys that wait have equal shares.",
)
@option(
    "--max-queued-per-key",
    type=click.IntRange(0),
    metavar="N",
    help="Most requests of one API key that wait; others of it get a 429. As many as --queue if not given.",
)
@option("--cache-memory", type=Size(), default="1G", help="Keys and values, of answers and kept for later prompts.")
@option(
    "--max-context",
    type=click.IntRange(1),
    help="Most tokens of a prompt and its answer; the model's own if not given.",
)
@option("--drain-seconds", type=click.FloatRange(0), default=30.0, help="Answers may go on for so long after SIGTERM.")
@special_tokens_option
@option("--strict-fields", is_flag=True, help="Refuse fields that no API has; else a header names what was ignored.")
@option("--strict-model", is_flag=True, help="Refuse requests for claude-* models; else the model served answers them.")
@option("--no-page", is_flag=True, help="No page at /.")
@option("--quiet", "-q", is_flag=True, help="Say nothing but errors.")
@option("--verbose", "-v", is_flag=True, help="A line for each request.")
def serve(
    model: str,
    low_bit: str | None,
    threads: int | None,
    kv_cache: str,
    draft_model: str | None,
    host: str,
    port: int,
    api_key_file: str | None,
    allowed_hosts: tuple[str, ...],
    origins: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    names: tuple[str, ...],
    slots: int,
    queue: int,
    max_running_per_key: int | None,
    max_queued_per_key: int | None,
    cache_memory: int,
    max_context: int | None,
    drain_seconds: float,
    special_tokens_in_content: bool,
    strict_fields: bool,
    strict_model: bool,
    no_page: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Serve a model over HTTP, at /v1 as OpenAI does, until Ctrl-C."""
    placing = {name: options.pop(name) for name in PLACING}
    ahead = Lookahead(**options)
    ahead.check()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"not installed: {', '.join(missing)}, which the server needs", hint=installing("serve"))

    from ipex_lookahead.serving.hosts import LOOPBACK, Hosts
    from ipex_lookahead.serving.keys import Keys
    from ipex_lookahead.serving.limits import Limits
    from ipex_lookahead.serving.run import Tls, bind, url
    from ipex_lookahead.serving.run import serve as run_server
    from ipex_lookahead.serving.server import Server, Settings

    for named in (model, draft_model):
        _look_at(named)
    if verbose:
        requests = logging.getLogger("ipex_lookahead.serving.gate")
        requests.setLevel(logging.INFO)
        requests.addHandler(logging.StreamHandler())
        requests.propagate = False  # warnings would be said twice
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together; give both, or neither")
    tls = None if tls_cert is None or tls_key is None else Tls(Path(tls_cert), Path(tls_key))
    if tls is not None:
        tls.check()

    def read_keys() -> Keys:
        return Keys() if api_key_file is None else Keys.of_file(Path(api_key_file))

    settings = Settings(
        names=names or (_name(model),),
        drafting=ahead.arguments(),
        limits=replace(Limits(), drain_seconds=drain_seconds),
        keys=read_keys(),
        hosts=Hosts.of(host, allowed_hosts),
        origins=frozenset(origin.rstrip("/") for origin in origins),
        page=not no_page,
        strict_fields=strict_fields,
        strict_model=strict_model,
    )
    server, bound = Server(settings), bind(host, port)

    def tell(line: str) -> None:
        if not quiet:
            click.echo(line, err=True)

    if host not in LOOPBACK and not settings.keys:
        tell(f"anybody who reaches {host} may use this server; --api-key-file asks for a key")

    def load() -> None:
        from ipex_lookahead.cli.loading import load_text
        from ipex_lookahead.generation.service import Service

        loading = {"low_bit": low_bit, "threads": threads, "kv_cache": kv_cache, "max_context": max_context, **placing}
        loading["special_tokens_in_content"] = special_tokens_in_content
        loaded = load_text(model, draft_model=draft_model, progress=not quiet, **loading)
        server.ready(
            loaded,
            lambda one: Service(
                one,
                slots=slots,
                queue=queue,
                running_per_key=max_running_per_key,
                queued_per_key=max_queued_per_key,
                cache_memory=cache_memory,
            ),
        )
        tell(f"{settings.names[0]} is ready at {url(bound, tls)} (API at {url(bound, tls)}/v1)")

    with bound:
        tell(f"loading {model}; listening on {url(bound, tls)}")
        run_server(server, bound, load, tls=tls, reload_keys=None if api_key_file is None else read_keys)


def _look_at(model: str | None) -> None:
    """Raise InputError for a name that is none, or a path at which nothing lies: before anybody is told to come."""
    from ipex_lookahead.checkpoints import kind_of
    from ipex_lookahead.hub import parse_name

    if model is not None and isinstance(found := parse_name(model), Path):
        kind_of(found)


def _name(model: str) -> str:
    """What a model is called where nobody said: the last part of its path, or its name on the hub."""
    path = given_path(model)
    return path.resolve().stem if path.suffix == ".gguf" else path.resolve().name if path.exists() else model
