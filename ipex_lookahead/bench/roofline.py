"""A step on an OpenCL device by kernel: time, bytes, and share of the bandwidth of the device's own copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipex_lookahead.architectures import ModelSpec
    from ipex_lookahead.bench.routing import Routing
    from ipex_lookahead.engines.api import Batch
    from ipex_lookahead.engines.opencl.device import Device

MOST_KERNELS = 12
"""Number of kernels of a step to show, the slowest first; reports in JSON have all."""
HEADINGS = ("kernel", "work-items", "launches", "ms", "MB", "GB/s", "of a copy")


def profile(engine: Any, batch: Batch, copy_gb_s: float | None = None) -> dict[str, Any]:
    """Profile a step of one sequence, after a step to warm up.

    Args:
        engine: an ``OpenClEngine`` or a ``SplitEngine``.
        batch: the rows of the step.
        copy_gb_s: GB/s that the device copies; see ``bandwidth``. None: unknown.

    Returns:
        ``rows``, ``positions`` before the step, ``ms`` from the start of the first kernel to the end of the last,
        ``kernels_ms``, and ``kernels``: name, work-items, launches, ``ms``, ``bytes`` of weights, keys and values that
        all launches must read (0 for kernels that read activations only), ``gb_s``, and ``share``, the fraction of
        ``copy_gb_s`` (None where one of the two is unknown). The weights of repeated small matrices may come from a
        cache, and then a share is above 1.
    """
    from ipex_lookahead.engines.opencl.profiling import profiled
    from ipex_lookahead.engines.opencl.split import SplitEngine
    from ipex_lookahead.engines.opencl.traffic import Traffic

    decoder = (engine._device if isinstance(engine, SplitEngine) else engine)._decoder
    rows, positions = len(batch.tokens), batch.caches[0].length
    experts = engine.forward(batch).experts
    with profiled(decoder.device, Traffic(decoder, rows, positions + rows, experts)) as found:
        engine.forward(batch)
    kernels = []
    for one in found.kernels:
        rate = one.nbytes / one.seconds / 1e9 if one.nbytes and one.seconds else None
        kernels.append(
            {
                "kernel": one.kernel,
                "items": list(one.items),
                "launches": one.launches,
                "ms": round(1e3 * one.seconds, 4),
                "bytes": one.nbytes,
                "gb_s": None if rate is None else round(rate, 2),
                "share": None if rate is None or not copy_gb_s else round(rate / copy_gb_s, 4),
            }
        )
    span, busy = (round(1e3 * seconds, 3) for seconds in (found.seconds, found.busy))
    return {"rows": rows, "positions": positions, "ms": span, "kernels_ms": busy, "kernels": kernels}


def title(found: dict[str, Any]) -> str:
    """Return a sentence about a profiled step."""
    return (
        f"A step of {counted(found['rows'], 'row')} at {found['positions']} positions: {found['ms']:.3f} ms on the"
        f" device, {found['kernels_ms']:.3f} ms of it in kernels."
    )


def table(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the cells of the slowest kernels of a profiled step, for ``HEADINGS``."""
    return [
        (
            one["kernel"],
            "x".join(map(str, one["items"])),
            str(one["launches"]),
            f"{one['ms']:.3f}",
            f"{one['bytes'] / 1e6:.1f}" if one["bytes"] else "",
            "" if one["gb_s"] is None else f"{one['gb_s']:.1f}",
            "" if one["share"] is None else f"{one['share']:.0%}",
        )
        for one in found["kernels"][:MOST_KERNELS]
    ]


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A model of a shape with random weights.

    Attributes:
        spec: the shape.
        low_bit: the format of its weights.
        group_size: number of weights that share a scale.
        head_low_bit: the format of the lm_head, if different.
        kv_cache: "fp16" or "int8".
        routing: chooses the experts of a mixture; None: random routers do.
    """

    spec: ModelSpec
    low_bit: str
    group_size: int = 32
    head_low_bit: str | None = None
    kv_cache: str = "fp16"
    routing: Routing | None = None

    def on(self, device: Device, positions: int, threads: int | None = None) -> Any:
        """Return an ``OpenClEngine``. Raises OutOfMemoryError, before any weight is made, if it does not fit."""
        from ipex_lookahead.checkpoints.base import TensorInfo
        from ipex_lookahead.engines.load_weights import random_weights
        from ipex_lookahead.engines.opencl.engine import OpenClEngine
        from ipex_lookahead.engines.opencl.memory import Measured
        from ipex_lookahead.engines.opencl.placement import choose

        spec, head = self.spec, self.head_low_bit or self.low_bit

        def formats(tensor: Any) -> TensorInfo:
            return TensorInfo(tensor.shape, head if tensor is spec.head_weight else self.low_bit, self.group_size)

        choose(device, Measured(spec, formats, self.kv_cache, positions), len(spec.layers), n_cpu_moe=0)
        read = random_weights(spec, self.low_bit, group_size=self.group_size, head_low_bit=self.head_low_bit)
        read = read if self.routing is None else self.routing.weights(read)
        return OpenClEngine.build(spec, self.low_bit, read, device, self.kv_cache, threads)


def measure_on_device(
    model: RandomModel,
    device: Device,
    rows: Sequence[int],
    batch_of: Callable[[Any, int], Batch],
    *,
    context: int = 128,
    threads: int | None = None,
    repeat: int = 9,
    report: Callable[[str], None] = lambda text: None,
    until: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Return medians over ``repeat`` rounds of steps on a device, and the roofline of each.

    Args:
        model: the model.
        device: the device.
        rows: numbers of rows of the steps.
        batch_of: returns the batch of a cache and a number of rows.
        context: positions before the step.
        threads: CPU threads that pack the weights.
        repeat: number of rounds.
        report: called with a line at the beginning of each part.
        until: returns True when no further step may begin; remaining steps are left out.

    Returns:
        Facts of the device, ``bandwidth`` (GB/s), ``launches`` (microseconds), ``step_bytes``, and ``steps``: rows,
        ms, ratio to the first step, GB/s, experts, and ``profile``.

    Raises:
        InputError: rows and context are longer than the shape's context.
        OutOfMemoryError: the device lacks the memory.
    """
    from ipex_lookahead.engines.opencl.examination import bandwidth, launch_overhead

    if not rows or min(rows) < 1 or context + max(rows) > model.spec.max_context:
        raise InputError(
            f"rows {list(rows)} at context {context} do not fit; rows start at 1, and both together end at "
            f"{model.spec.max_context}"
        )
    report("making random weights")
    engine = model.on(device, context + max(rows), threads)
    facts = engine.describe()
    report("measuring the device")
    rates, overhead = bandwidth(device), launch_overhead(device)
    cache = engine.new_cache(context)
    steps: list[dict[str, Any]] = []
    kept = facts["step_bytes"] + context * facts["kv_bytes_per_token"]
    for count in rows:
        if until():
            break
        report(f"a step of {counted(count, 'row')}")
        batch, taken = batch_of(cache, count), []
        found = profile(engine, batch, rates["device_copies"])  # also the warm-up
        experts = engine.forward(batch).experts
        for _ in range(repeat):
            started = perf_counter()
            engine.forward(batch)
            taken.append(perf_counter() - started)
            if until():
                break
        seconds = median(taken)
        chosen = sum(mixture.used for mixture in model.spec.mixtures)
        read = kept + (experts - chosen) * facts["expert_bytes"] if chosen else kept
        steps.append(
            {
                "rows": count,
                "ms": 1e3 * seconds,
                "ratio": 1e3 * seconds / steps[0]["ms"] if steps else 1.0,
                "experts": experts,
                "gb_s": read / seconds / 1e9,
                "profile": found,
            }
        )
    return {
        "low_bit": model.low_bit,
        "head_low_bit": model.head_low_bit or model.low_bit,
        "group_size": model.group_size,
        "kv_cache": model.kv_cache,
        "context": context,
        **{name: facts[name] for name in ("isa", "threads", "weight_bytes", "step_bytes", *device.facts())},
        "kv_bytes": context * facts["kv_bytes_per_token"],
        "bandwidth": rates,
        "bandwidth_gb_s": rates["device_copies"],
        "launches": overhead,
        "steps": steps,
    }
