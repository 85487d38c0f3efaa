"""``ipex-lookahead serve``: serve a model with OpenAI's and Anthropic's APIs, and a chat page."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import TextModelOptions, template_note
from ipex_lookahead.cli.lookahead import ServedLookahead
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.types import Size
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.system.extras import installing

if TYPE_CHECKING:
    from ipex_lookahead.serving.keys import Keys
    from ipex_lookahead.serving.run import Tls

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "llguidance", "markdown_it", "pygments")
"""Packages of the extra ``serve``."""


@dataclass
class Access:
    """Addresses and access of the server."""

    host: str = option("Address to listen on; 0.0.0.0 accepts other machines.", "127.0.0.1", metavar="ADDRESS")
    port: int = option("Port to listen on; 0 picks a free one.", 8080, low=0, high=65535)
    api_key_file: str | None = option(
        "Require one of the API keys in this file (one per line). SIGHUP reloads it.",
        type=click.Path(),
        metavar="FILE",
    )
    allowed_hosts: tuple[str, ...] = option(
        "Further host name to accept, such as a proxy's; '*' accepts all. Repeatable.",
        (),
        "--allowed-host",
        metavar="NAME",
    )
    origins: tuple[str, ...] = option(
        "Allow requests from web pages of this origin (CORS); '*' allows all. Repeatable.",
        (),
        "--allow-origin",
        metavar="ORIGIN",
    )
    tls_cert: str | None = option("Certificate for HTTPS.", type=click.Path(), metavar="FILE.pem")
    tls_key: str | None = option("Private key of the certificate.", type=click.Path(), metavar="FILE.pem")
    names: tuple[str, ...] = option("Model name in the API. Repeatable.", (), "--served-model-name", metavar="NAME")

    def tls(self) -> Tls | None:
        """Return the checked certificate and key, or None."""
        from ipex_lookahead.serving.run import Tls

        if (self.tls_cert is None) != (self.tls_key is None):
            raise click.UsageError("--tls-cert and --tls-key need each other; give both, or neither")
        if self.tls_cert is None or self.tls_key is None:
            return None
        found = Tls(Path(self.tls_cert), Path(self.tls_key))
        found.check()
        return found

    def keys(self) -> Keys:
        """Return the API keys of the file, or none."""
        from ipex_lookahead.serving.keys import Keys

        return Keys() if self.api_key_file is None else Keys.of_file(Path(self.api_key_file))


@dataclass
class Capacity:
    """Concurrency and memory; the arguments of ``Service``."""

    slots: int = option("Maximum number of concurrent requests.", 8, low=1, high=256)
    queue: int = option("Maximum number of queued requests; more get status 429.", 64, low=0)
    running_per_key: int | None = option(
        "Maximum number of concurrent requests per API key. Default: --slots.",
        None,
        "--max-running-per-key",
        low=1,
    )
    queued_per_key: int | None = option(
        "Maximum number of queued requests per API key. Default: --queue.",
        None,
        "--max-queued-per-key",
        low=0,
    )
    cache_memory: int = option("Memory for the KV cache, including cached prefixes.", "1G", type=Size())


@dataclass
class Limit:
    """Limits of length and time."""

    max_context: int | None = option("Maximum tokens of prompt plus answer. Default: the model's context.", low=1)
    drain_seconds: float = option("Seconds running answers may take to finish after SIGTERM.", 30.0, low=0)


@dataclass
class Behavior:
    """Strictness and output of the server."""

    strict_fields: bool = option(
        "Reject requests with unknown fields; by default they are ignored and listed in a header.", False
    )
    strict_model: bool = option("Reject requests for claude-* models; by default the served model answers.", False)
    no_page: bool = option("Do not serve the web page.", False)
    quiet: bool = option("Print errors only.", False, "-q")
    verbose: bool = option("Print one line per request.", False, "-v")


@command("ipex-lookahead serve", "ipex-lookahead serve -m path/to/model --low-bit sym_int4 --port 8000")
def serve(
    ahead: ServedLookahead,
    access: Access,
    capacity: Capacity,
    limit: Limit,
    loading: TextModelOptions,
    behavior: Behavior,
) -> None:
    """Serve a model over HTTP until Ctrl-C: OpenAI API at /v1, Anthropic and Ollama APIs, and a web page."""
    ahead.check()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"serve needs {', '.join(missing)}: not installed", hint=installing("serve"))

    from ipex_lookahead.serving.hosts import LOOPBACK, Hosts
    from ipex_lookahead.serving.limits import Limits
    from ipex_lookahead.serving.run import bind, url
    from ipex_lookahead.serving.run import serve as run_server
    from ipex_lookahead.serving.server import Server, Settings

    for named in (loading.model, loading.draft_model, loading.drafter):
        _check_path(named)
    if behavior.verbose:
        requests = logging.getLogger("ipex_lookahead.serving.gate")
        requests.setLevel(logging.INFO)
        requests.addHandler(logging.StreamHandler())
        requests.propagate = False  # otherwise warnings are printed twice
    tls = access.tls()
    settings = Settings(
        names=access.names or (_name(loading.model),),
        drafting=ahead.arguments(),
        limits=replace(Limits(), drain_seconds=limit.drain_seconds),
        keys=access.keys(),
        hosts=Hosts.of(access.host, access.allowed_hosts),
        origins=frozenset(origin.rstrip("/") for origin in access.origins),
        page=not behavior.no_page,
        strict_fields=behavior.strict_fields,
        strict_model=behavior.strict_model,
    )
    server, bound = Server(settings), bind(access.host, access.port)

    def tell(line: str) -> None:
        if not behavior.quiet:
            click.echo(line, err=True)

    if access.host not in LOOPBACK and not settings.keys:
        tell(f"warning: anyone who can reach {access.host} can use this server; --api-key-file FILE requires a key")

    def load() -> None:
        from ipex_lookahead.runtime.service import Service

        loaded = loading.load_text(progress=not behavior.quiet, max_context=limit.max_context)
        server.ready(loaded, lambda one: Service(one, **vars(capacity)))
        if note := template_note(loaded):
            tell(note)
        tell(f"{settings.names[0]} is ready at {url(bound, tls)} (API at {url(bound, tls)}/v1)")

    with bound:
        tell(f"loading {loading.model}; listening on {url(bound, tls)}")
        run_server(server, bound, load, tls=tls, reload_keys=None if access.api_key_file is None else access.keys)


def _check_path(model: str | None) -> None:
    """Raise InputError for an invalid name or a missing path, before the server listens."""
    from ipex_lookahead.checkpoints import kind_of
    from ipex_lookahead.hub import parse_name

    if model is not None and isinstance(found := parse_name(model), Path):
        kind_of(found)


def _name(model: str) -> str:
    """Return the default name of a model: the last part of its path, or its name on the hub."""
    path = given_path(model)
    return path.resolve().stem if path.suffix == ".gguf" else path.resolve().name if path.exists() else model
