"""Replicas of the server on one machine or several, by Ray Serve: the same answers from each of them.

pip install 'ipex-lookahead[serve,ray]' && python examples/ray_serve.py --replicas 2 --threads 4

Ray's own consistent hashing sends all turns of a conversation to one replica, which has kept their keys and values.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys

import click

from ipex_lookahead.cli.running import run_command


class Replica:
    """One model with its service. ``ask`` runs the same application as ``ipex-lookahead serve``."""

    def __init__(self, model: str, threads: int | None, slots: int) -> None:
        from ipex_lookahead.cli.loading import load_text
        from ipex_lookahead.generation.service import Service
        from ipex_lookahead.serving.app import make_app
        from ipex_lookahead.serving.server import Server, Settings

        self._server = Server(Settings(names=("default", model), drafting={"lookahead": "auto"}))
        self._server.ready(load_text(model, threads=threads, progress=False), lambda one: Service(one, slots=slots))
        self._app = make_app(self._server)

    async def ask(self, asked):
        from ipex_lookahead.serving.relay import relayed

        async for part in relayed(self._app, asked):
            yield (part[0], [*part[1], (b"x-replica", b"%d" % os.getpid())]) if isinstance(part, tuple) else part

    def check_health(self) -> None:
        if self._server.state != "ready":
            raise RuntimeError(f"the server is {self._server.state}")


class Front:
    """Sends each request to a replica, and says so where the replica is lost."""

    def __init__(self, replicas) -> None:
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request):
        from ray.exceptions import RayError
        from starlette.responses import JSONResponse, StreamingResponse

        from ipex_lookahead.serving.failures import ApiError
        from ipex_lookahead.serving.relay import Asked, opening

        body, path = await request.body(), request.url.path
        headers = [(name, value) for name, value in request.headers.raw if name != b"x-session-id"]
        asked = Asked(request.method, path, request.url.query.encode(), headers, body)
        parts = self._replicas.options(session_id=opening(body)).ask.remote(asked)
        lost = ApiError(503, "the replica that was answering has ended; ask again", code="replica_lost")
        try:
            status, told = await anext(parts)
        except RayError:
            return JSONResponse(lost.body(path), 503, headers={"retry-after": "1"})

        async def rest():
            try:
                async for part in parts:
                    yield part
            except RayError:
                if b"text/event-stream" not in dict(told).get(b"content-type", b""):
                    raise  # half an object: the connection breaks
                yield b"event: error\ndata: " + json.dumps(lost.body(path)).encode() + b"\n\n"

        answer = StreamingResponse(rest(), status)
        answer.raw_headers = told
        return answer


@click.command()
@click.option("--model", "-m", default="default", help="As for ipex-lookahead serve; found on every machine.")
@click.option("--replicas", default=2, type=click.IntRange(1), help="How many; one for each socket, mostly.")
@click.option("--threads", type=click.IntRange(1), help="Of each replica.")
@click.option("--slots", default=8, type=click.IntRange(1), help="Answers that a replica makes at a time.")
@click.option("--host", default="127.0.0.1", help="Where the front listens.")
@click.option("--port", default=8080, type=click.IntRange(1, 65535))
@click.option("--address", help="Of a Ray cluster that runs already; otherwise one is started here.")
def main(model: str, replicas: int, threads: int | None, slots: int, host: str, port: int, address: str | None) -> None:
    try:
        import ray
        from ray import serve
        from ray.serve.config import HTTPOptions, RequestRouterConfig
    except ImportError:
        raise click.ClickException("this example needs Ray Serve: pip install 'ipex-lookahead[serve,ray]'") from None

    cores = max(replicas, os.cpu_count() or 1)  # logical ones: a replica takes one, the front none
    ray.init(address, **({} if address else {"include_dashboard": False, "num_cpus": cores}))
    serve.start(http_options=HTTPOptions(host=host, port=port))
    router = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
    made = serve.deployment(
        num_replicas=replicas,
        max_ongoing_requests=1000,  # a replica's own queue has a limit, and says how long to wait
        request_router_config=RequestRouterConfig(request_router_class=router),
        health_check_period_s=2,
    )(Replica)
    front = serve.deployment(max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0})(Front)
    serve.run(front.bind(made.bind(model, threads, slots)), blocking=False)
    print(f"{replicas} replicas are ready at http://{host}:{port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    serve.shutdown()


if __name__ == "__main__":
    sys.exit(run_command(main))
