"""``ipex-lookahead serve``: serve a model with OpenAI's and Anthropic's APIs, and a chat page."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ipex_lookahead.cli.adapters import AdapterOptions
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import CacheFolderOptions, TextModelOptions, load_text, template_note
from ipex_lookahead.cli.lookahead import ServedLookahead
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.serve_models import ServedModels, SeveralModels, check_path, name_of
from ipex_lookahead.cli.serve_processes import route, work
from ipex_lookahead.cli.types import Model, Size
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.extras import installing

if TYPE_CHECKING:
    from ipex_lookahead.engines.load_weights import Progress
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
    admin_key_file: str | None = option(
        "Allow requests with one of the keys in this file to load, unload, download and delete models.",
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
    image_hosts: tuple[str, ...] = option(
        "Host that images with URLs are downloaded from: NAME or NAME:PORT; '*' allows all public hosts. Repeatable.",
        (),
        "--allow-image-host",
        metavar="HOST",
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

    def keys(self) -> tuple[Keys, Keys]:
        """Return the API keys and the admin keys of the files; none where there is no file."""
        from ipex_lookahead.serving.keys import Keys

        files = ((self.api_key_file, "--api-key-file"), (self.admin_key_file, "--admin-key-file"))
        own, admin = (Keys() if file is None else Keys.of_file(Path(file), option) for file, option in files)
        return own, admin


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
    think_budget: int | None = option(
        "Maximum thinking tokens of an answer; a request's own limit takes precedence. Default: no limit.", low=0
    )
    think_sentence: str = option("Text that ends the thought at its budget.", "")
    slot_save_path: str | None = option(
        "Save and restore slots in files of this folder (POST /slots/{id}).", type=click.Path(), metavar="DIR"
    )
    no_page: bool = option("Do not serve the web page.", False)
    quiet: bool = option("Print errors only.", False, "-q")
    verbose: bool = option("Print one line per request.", False, "-v")


@dataclass
class ServedModel(TextModelOptions):
    """The model, or the models, with the options of each."""

    model: tuple[str, ...] = option(  # type: ignore[assignment]
        "Folder, .gguf file, short name (list: pull) or hub id. Repeatable.", ("default",), "-m", type=Model()
    )


@command("ipex-lookahead serve", "ipex-lookahead serve -m path/to/model --low-bit sym_int4 --port 8000")
def serve(
    ahead: ServedLookahead,
    access: Access,
    capacity: Capacity,
    disk: CacheFolderOptions,
    limit: Limit,
    loading: ServedModel,
    adapters: AdapterOptions,
    several: SeveralModels,
    behavior: Behavior,
) -> None:
    """Serve a model over HTTP until Ctrl-C: OpenAI API at /v1, Anthropic and Ollama APIs, and a web page."""
    ahead.check()
    disk.check()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"serve needs {', '.join(missing)}: not installed", hint=installing("serve"))

    from ipex_lookahead.serving.hosts import LOOPBACK, Hosts
    from ipex_lookahead.serving.image_hosts import ImageHosts
    from ipex_lookahead.serving.limits import Limits
    from ipex_lookahead.serving.run import bind, url
    from ipex_lookahead.serving.run import serve as run_server
    from ipex_lookahead.serving.server import Server, Settings
    from ipex_lookahead.serving.slots import checked_folder

    for named in (*loading.model, loading.draft_model, loading.drafter):
        check_path(named)
    lora = adapters.check()
    if behavior.verbose:
        requests = logging.getLogger("ipex_lookahead.serving.gate")
        requests.setLevel(logging.INFO)
        requests.addHandler(logging.StreamHandler())
        requests.propagate = False  # otherwise warnings are printed twice
    tls, (keys, admin_keys) = access.tls(), access.keys()
    own_names = access.names or (name_of(loading.model[0]),)
    if both := [name for name in lora if name in own_names]:
        raise click.UsageError(f"--lora: {both[0]!r} is the model's name; give the adapter another one, NAME=PATH")
    settings = Settings(
        names=own_names,
        drafting=ahead.arguments(),
        limits=replace(Limits(), drain_seconds=limit.drain_seconds),
        keys=keys,
        admin_keys=admin_keys,
        hosts=Hosts.of(access.host, access.allowed_hosts),
        origins=frozenset(origin.rstrip("/") for origin in access.origins),
        page=not behavior.no_page,
        image_hosts=ImageHosts(access.image_hosts),
        strict_fields=behavior.strict_fields,
        strict_model=behavior.strict_model,
        think_budget=behavior.think_budget,
        think_sentence=behavior.think_sentence,
        slot_folder=None if behavior.slot_save_path is None else checked_folder(Path(behavior.slot_save_path)),
    )

    def tell(line: str) -> None:
        if not behavior.quiet:
            click.echo(line, err=True)

    def load(server: Server, *, progress: bool | Progress) -> None:
        from ipex_lookahead.cli.serve_embedding import is_for_text, load_embedder
        from ipex_lookahead.runtime.service import Service

        if not is_for_text(loading.model[0], progress=progress is True):
            options = {**loading.settings(), "lora": lora}
            load_embedder(
                server, loading.model[0], options, vars(capacity),
                max_length=limit.max_context, progress=progress, tell=tell, strict=not several.worker,
            )  # fmt: skip
            return
        loaded = load_text(loading.model[0], progress=progress, max_context=limit.max_context, **loading.settings())
        if disk.cache_dir is not None:
            loaded.use_cache_folder(disk.cache_dir, disk.cache_disk)
        if names := adapters.load(loaded):
            tell(f"adapters: {', '.join(names)}")
        server.ready(loaded, lambda one: Service(one, **vars(capacity)))
        if note := template_note(loaded):
            tell(note)

    if several.worker:
        work(settings, load)
        return
    if access.host not in LOOPBACK and not settings.keys:
        tell(f"warning: anyone who can reach {access.host} can use this server; --api-key-file FILE requires a key")
    reload_keys = access.keys if keys or admin_keys else None
    if several.wanted(loading.model):
        models = ServedModels(several, click.get_current_context())
        if access.names:
            raise click.UsageError("--served-model-name is for one model; --models FILE names several")
        if lora:
            raise click.UsageError(
                "--lora is for one model; in --models FILE each model has its own: lora: [NAME=PATH]"
            )
        with bind(access.host, access.port) as bound:
            route(settings, models, several, bound, tls=tls, reload_keys=reload_keys, tell=tell)
        return

    server, name = Server(settings), loading.model[0]

    def load_and_tell() -> None:
        load(server, progress=not behavior.quiet)
        tell(f"{settings.names[0]} is ready at {url(bound, tls)} (API at {url(bound, tls)}/v1)")

    with bind(access.host, access.port) as bound:
        tell(f"loading {name}; listening on {url(bound, tls)}")
        run_server(server, bound, load_and_tell, tls=tls, reload_keys=reload_keys)
