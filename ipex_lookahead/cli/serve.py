"""``ipex-lookahead serve``: the model behind OpenAI's and Anthropic's APIs, and a page to talk with it."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import TextModelOptions
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
    """Where the server listens, and to whom."""

    host: str = option("Address to listen on; 0.0.0.0 lets others in.", "127.0.0.1", metavar="ADDRESS")
    port: int = option("Port; 0 takes one that is free, and says which.", 8080, low=0, high=65535)
    api_key_file: str | None = option(
        "Keys, one a line; without one of them nothing is answered. SIGHUP reads the file again.",
        type=click.Path(),
        metavar="FILE",
    )
    allowed_hosts: tuple[str, ...] = option(
        "A further name that requests may call this server, as a proxy's; '*' answers to every name.",
        (),
        "--allowed-host",
        metavar="NAME",
    )
    origins: tuple[str, ...] = option(
        "Let pages and programs of this origin ask, such as https://chat.example; '*' lets all of them.",
        (),
        "--allow-origin",
        metavar="ORIGIN",
    )
    tls_cert: str | None = option("Serve HTTPS with this certificate.", type=click.Path(), metavar="FILE.pem")
    tls_key: str | None = option("The certificate's key.", type=click.Path(), metavar="FILE.pem")
    names: tuple[str, ...] = option("What requests may call the model.", (), "--served-model-name", metavar="NAME")

    def tls(self) -> Tls | None:
        """Certificate and key, checked; None without."""
        from ipex_lookahead.serving.run import Tls

        if (self.tls_cert is None) != (self.tls_key is None):
            raise click.UsageError("--tls-cert and --tls-key go together; give both, or neither")
        if self.tls_cert is None or self.tls_key is None:
            return None
        found = Tls(Path(self.tls_cert), Path(self.tls_key))
        found.check()
        return found

    def keys(self) -> Keys:
        """Those of the file; none without one."""
        from ipex_lookahead.serving.keys import Keys

        return Keys() if self.api_key_file is None else Keys.of_file(Path(self.api_key_file))


@dataclass
class Capacity:
    """How much is answered at a time; the arguments of ``Service``."""

    slots: int = option("Most answers that are made at a time.", 8, low=1, high=256)
    queue: int = option("Most requests that wait for a slot; others get a 429.", 64, low=0)
    running_per_key: int | None = option(
        "Most of the slots that one API key may have; all of them if not given. Keys that wait have equal shares.",
        None,
        "--max-running-per-key",
        low=1,
    )
    queued_per_key: int | None = option(
        "Most requests of one API key that wait; others of it get a 429. As many as --queue if not given.",
        None,
        "--max-queued-per-key",
        low=0,
    )
    cache_memory: int = option("Keys and values, of answers and kept for later prompts.", "1G", type=Size())


@dataclass
class Limit:
    """How long an answer may be, and may take."""

    max_context: int | None = option("Most tokens of a prompt and its answer; the model's own if not given.", low=1)
    drain_seconds: float = option("Answers may go on for so long after SIGTERM.", 30.0, low=0)


@dataclass
class Behaviour:
    """What is refused, shown and said."""

    strict_fields: bool = option("Refuse fields that no API has; else a header names what was ignored.", False)
    strict_model: bool = option("Refuse requests for claude-* models; else the model served answers them.", False)
    no_page: bool = option("No page at /.", False)
    quiet: bool = option("Say nothing but errors.", False, "-q")
    verbose: bool = option("A line for each request.", False, "-v")


@command("ipex-lookahead serve", "ipex-lookahead serve -m path/to/model --low-bit sym_int4 --port 8000")
def serve(
    ahead: ServedLookahead,
    access: Access,
    capacity: Capacity,
    limit: Limit,
    loading: TextModelOptions,
    behaviour: Behaviour,
) -> None:
    """Serve a model over HTTP, at /v1 as OpenAI does, until Ctrl-C."""
    ahead.check()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"not installed: {', '.join(missing)}, which the server needs", hint=installing("serve"))

    from ipex_lookahead.serving.hosts import LOOPBACK, Hosts
    from ipex_lookahead.serving.limits import Limits
    from ipex_lookahead.serving.run import bind, url
    from ipex_lookahead.serving.run import serve as run_server
    from ipex_lookahead.serving.server import Server, Settings

    for named in (loading.model, loading.draft_model, loading.drafter):
        _look_at(named)
    if behaviour.verbose:
        requests = logging.getLogger("ipex_lookahead.serving.gate")
        requests.setLevel(logging.INFO)
        requests.addHandler(logging.StreamHandler())
        requests.propagate = False  # warnings would be said twice
    tls = access.tls()
    settings = Settings(
        names=access.names or (_name(loading.model),),
        drafting=ahead.arguments(),
        limits=replace(Limits(), drain_seconds=limit.drain_seconds),
        keys=access.keys(),
        hosts=Hosts.of(access.host, access.allowed_hosts),
        origins=frozenset(origin.rstrip("/") for origin in access.origins),
        page=not behaviour.no_page,
        strict_fields=behaviour.strict_fields,
        strict_model=behaviour.strict_model,
    )
    server, bound = Server(settings), bind(access.host, access.port)

    def tell(line: str) -> None:
        if not behaviour.quiet:
            click.echo(line, err=True)

    if access.host not in LOOPBACK and not settings.keys:
        tell(f"anybody who reaches {access.host} may use this server; --api-key-file asks for a key")

    def load() -> None:
        from ipex_lookahead.runtime.service import Service

        loaded = loading.load_text(progress=not behaviour.quiet, max_context=limit.max_context)
        server.ready(loaded, lambda one: Service(one, **vars(capacity)))
        tell(f"{settings.names[0]} is ready at {url(bound, tls)} (API at {url(bound, tls)}/v1)")

    with bound:
        tell(f"loading {loading.model}; listening on {url(bound, tls)}")
        run_server(server, bound, load, tls=tls, reload_keys=None if access.api_key_file is None else access.keys)


def _look_at(model: str | None) -> None:
    """Raise InputError for a name that is none, or a path at which nothing lies: before the server listens."""
    from ipex_lookahead.checkpoints import kind_of
    from ipex_lookahead.hub import parse_name

    if model is not None and isinstance(found := parse_name(model), Path):
        kind_of(found)


def _name(model: str) -> str:
    """What a model is called where nobody said: the last part of its path, or its name on the hub."""
    path = given_path(model)
    return path.resolve().stem if path.suffix == ".gguf" else path.resolve().name if path.exists() else model
