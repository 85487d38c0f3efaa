"""Serve replicas on one or several machines with Ray Serve. All replicas give the same answers.

pip install 'ipex-lookahead[serve,ray]' && python examples/ray_serve.py --replicas 2 --threads 4

Ray's consistent hashing sends all turns of a conversation to the replica that has its KV cache.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import click

from ipex_lookahead.cli.running import run_command
from ipex_lookahead.cli.serve_models import name_of


@click.command()
@click.option(
    "--model",
    "-m",
    "models",
    default=("default",),
    multiple=True,
    help="As for ipex-lookahead serve; must exist on every machine. Repeatable; requests choose by name.",
)
@click.option("--replicas", default=2, type=click.IntRange(1), help="Number of replicas of each model.")
@click.option("--threads", type=click.IntRange(1), help="Number of threads per replica.")
@click.option("--slots", default=8, type=click.IntRange(1), help="Maximum number of concurrent requests per replica.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=8080, type=click.IntRange(1, 65535))
@click.option("--address", help="Address of a running Ray cluster. Default: start one here.")
def main(
    models: tuple[str, ...],
    replicas: int,
    threads: int | None,
    slots: int,
    host: str,
    port: int,
    address: str | None,
) -> None:
    try:
        import ray
        from ray import serve
        from ray.serve.config import HTTPOptions, RequestRouterConfig

        from ipex_lookahead.serving.replicas import Front, Replica
    except ImportError:
        raise click.ClickException("this example needs Ray Serve: pip install 'ipex-lookahead[serve,ray]'") from None

    cores = max(replicas * len(models), os.cpu_count() or 1)  # logical ones: a replica takes one, the front none
    ray.init(address, **({} if address else {"include_dashboard": False, "num_cpus": cores}))
    serve.start(http_options=HTTPOptions(host=host, port=port))
    router = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
    several = len(models) > 1
    made = [
        serve.deployment(
            name=f"Replica{number}",
            num_replicas=replicas,
            max_ongoing_requests=1000,  # a replica's own queue has a limit and returns a retry delay
            request_router_config=RequestRouterConfig(request_router_class=router),
            health_check_period_s=2,
        )(Replica).bind(model, threads, slots, (name_of(model),) if several else (), several)
        for number, model in enumerate(models)
    ]
    front = serve.deployment(max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0})(Front)
    serve.run(front.bind([name_of(model) for model in models], *made), blocking=False)
    print(f"{replicas * len(models)} replicas are ready at http://{host}:{port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    serve.shutdown()


if __name__ == "__main__":
    sys.exit(run_command(main))
