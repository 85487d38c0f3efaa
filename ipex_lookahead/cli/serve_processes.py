"""The processes of ``serve`` with several models: the server in front, and its workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipex_lookahead.cli.serve_models import ServedModels, SeveralModels

if TYPE_CHECKING:
    import socket

    from ipex_lookahead.serving.keys import Keys
    from ipex_lookahead.serving.run import Tls
    from ipex_lookahead.serving.server import Server, Settings

MEMORY_SHARE = 0.8
"""Share of the machine's memory for all loaded models, without ``--models-memory``."""


def route(
    settings: Settings,
    models: ServedModels,
    several: SeveralModels,
    bound: socket.socket,
    *,
    tls: Tls | None,
    reload_keys: Callable[[], tuple[Keys, Keys]] | None,
    tell: Callable[[str], None],
) -> None:
    """Serve several models until SIGTERM or SIGINT.

    Args:
        settings: how the server serves.
        models: makes the models.
        several: their options.
        bound: a listening socket.
        tls: files for HTTPS.
        reload_keys: reads the API keys again on SIGHUP.
        tell: prints a line.

    Raises InputError and Refused for invalid models, see ``ServedModels.entries``.
    """
    from ipex_lookahead.serving.router.app import RouterServer, make_router_app
    from ipex_lookahead.serving.router.entries import ModelEntry
    from ipex_lookahead.serving.router.table import ModelTable
    from ipex_lookahead.serving.router.worker import SocketFolder, WorkerProcess
    from ipex_lookahead.serving.run import serve, url
    from ipex_lookahead.system.cgroups import machine_memory

    folder = SocketFolder()

    async def start(entry: ModelEntry) -> WorkerProcess:
        return await WorkerProcess.start([*entry.options, "--quiet"], folder.path, entry.name)

    budget = int(MEMORY_SHARE * machine_memory()) if several.models_memory is None else several.models_memory
    try:
        table = ModelTable(
            models.entries(),
            start=start,
            make=models.entry,
            locate=models.locate,
            budget=budget,
            strict=settings.strict_model,
        )
        names = [entry.name for entry in table.entries()]
        server = RouterServer(replace(settings, names=names), table, folder.close)
        tell(f"serving {', '.join(names)} at {url(bound, tls)} (API at {url(bound, tls)}/v1)")
        serve(server, bound, lambda: None, app=make_router_app(server), tls=tls, reload_keys=reload_keys)
    finally:
        folder.close()


def work(settings: Settings, load: Callable[..., None]) -> None:
    """Serve one model as a worker of another process until that process ends it, or ends.

    Args:
        settings: how it serves; what the server in front has checked is left out.
        load: loads the model into a server.
    """
    from ipex_lookahead.serving.hosts import Hosts
    from ipex_lookahead.serving.keys import Keys
    from ipex_lookahead.serving.router.worker import Parent
    from ipex_lookahead.serving.run import serve
    from ipex_lookahead.serving.server import Server

    parent = Parent()
    more: dict[str, Any] = {
        "keys": Keys(),
        "admin_keys": Keys(),
        "hosts": Hosts(),
        "origins": frozenset(),
        "page": False,
    }
    server: Server = Server(replace(settings, secret=parent.secret, labels={"model": settings.names[0]}, **more))
    parent.watch(lambda: os.kill(os.getpid(), signal.SIGTERM))

    def load_and_report() -> None:
        try:
            load(server, progress=parent.progress)
        except BaseException as error:
            parent.failed(error)
            raise
        parent.report(ready=True)

    with parent.bound as bound:
        serve(server, bound, load_and_report)
