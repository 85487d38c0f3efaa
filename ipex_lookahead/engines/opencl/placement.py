"""The choice of what runs on a device and what on the CPU: whole layers, and the routed experts of layers.

What is on the device must fit its memory. The placement that is used reads the fewest bytes of weights on the CPU in a
step of one row, because the CPU's memory is the slower one. A layer's routed experts are most of its bytes, and a row
reads few of them. So experts go to the CPU first, layer by layer until the rest fits. Whole layers follow only if the
model does not fit without any of its experts.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.memory import Measured, Need
from ipex_lookahead.engines.opencl.supported import may_divide
from ipex_lookahead.errors import InputError, OutOfMemoryError, arg

log = logging.getLogger("ipex_lookahead")

SHARE = 0.9
"""The fraction of a device's memory that a model may use: the driver and the display need some of it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What is on a device, and what on the CPU.

    Attributes:
        layers: number of last layers on the device.
        cpu_moe: number of first layers of the model with their routed experts on the CPU.
    """

    layers: int
    cpu_moe: int = 0

    def cpu_moe_there(self, count: int) -> int:
        """Return how many first layers on the device have their experts on the CPU; the model has ``count`` layers."""
        return max(self.cpu_moe - (count - self.layers), 0)


def room(device: Device) -> int:
    """Return the bytes that a model may take on a device: its share minus the buffers in use."""
    return int(SHARE * device.memory) - device.objects.nbytes


def choose(
    device: Device,
    model: Measured,
    gpu_layers: int | None = None,
    n_cpu_moe: int | None = None,
    cpu_moe: bool = False,
) -> Placement:
    """Return what to put on the device. What is left open is chosen, with a warning if not all of the model fits.

    Args:
        device: the device.
        model: the memory that the model needs.
        gpu_layers: number of last layers on the device; more than the model has means all. None: open.
        n_cpu_moe: number of first layers with their routed experts on the CPU; more than the model has means all.
            None: open.
        cpu_moe: the routed experts of all layers run on the CPU.

    Raises:
        InputError: a number is out of range, or the model has no experts.
        OutOfMemoryError: nothing of what is requested fits. The message has the need, the memory and what fits instead.
    """
    count = len(model.spec.layers)
    _check(model, gpu_layers, n_cpu_moe, cpu_moe)
    layers = None if gpu_layers is None else min(gpu_layers, count)
    experts = count if cpu_moe else None if n_cpu_moe is None else min(n_cpu_moe, count)
    best = _best(device, model, layers, experts)
    if best is None:
        smallest = Placement(layers or 1, model.last_mixture if experts is None else experts)
        raise OutOfMemoryError(
            _too_little(device, model, smallest), hint=_instead(model, _best(device, model, None, None))
        )
    whole = Placement(count if layers is None else layers, 0 if experts is None else experts)
    if best == whole:
        log.info("%s: %s of %s", device.name, _said(model, model.need(best.layers, best.cpu_moe)), _gb(room(device)))
    else:
        log.warning("%s: %s", _too_little(device, model, whole), _what(model, best))
    return best


def check_room(device: Device, nbytes: int) -> None:
    """Raise OutOfMemoryError if ``nbytes`` bytes of weights do not fit on a device."""
    if nbytes > (free := room(device)):
        raise OutOfMemoryError(
            f"the model's weights are {_gb(nbytes)}, and the device {device.name} has {_gb(max(free, 0))} for them",
            hint=f"load it with {arg('engine', 'opencl')}, which puts the layers that fit there",
        )


def _check(model: Measured, gpu_layers: int | None, n_cpu_moe: int | None, cpu_moe: bool) -> None:
    """Raise InputError for requests that no device could fulfill."""
    count = len(model.spec.layers)
    if gpu_layers is not None and gpu_layers < 1:
        raise InputError(
            f"{arg('gpu_layers', gpu_layers)}: at least one layer is on the device, and a number beyond the model's"
            f" {count} means all",
            hint=f"{arg('engine', 'native')} runs all layers on the CPU",
        )
    if cpu_moe and n_cpu_moe is not None:
        raise InputError(
            f"{arg('cpu_moe', True)} puts the experts of all layers on the CPU, {arg('n_cpu_moe', n_cpu_moe)} those of"
            " the first layers: leave one of them out"
        )
    if n_cpu_moe is not None and n_cpu_moe < 0:
        raise InputError(
            f"{arg('n_cpu_moe', n_cpu_moe)}: it is a number of layers from 0, and a number beyond the model's {count}"
            " means all"
        )
    if (cpu_moe or n_cpu_moe) and not model.last_mixture:
        given = arg("cpu_moe", True) if cpu_moe else arg("n_cpu_moe", n_cpu_moe)
        raise InputError(f"{given}: {model.spec.model_type} has no mixture of experts; leave it out")


def _best(device: Device, model: Measured, layers: int | None, experts: int | None) -> Placement | None:
    """Return the placement that fits and reads the fewest bytes on the CPU; None: nothing fits."""
    return min(
        _that_fit(device, model, layers, experts),
        key=lambda one: (model.cpu_bytes(one.layers, one.cpu_moe), -one.layers),
        default=None,
    )


def _that_fit(device: Device, model: Measured, layers: int | None, experts: int | None) -> Iterator[Placement]:
    """Yield for each open number of layers the placement with the most experts on the device, where one fits."""
    count, free = len(model.spec.layers), room(device)

    def fits(on_device: int, on_cpu: int) -> bool:
        need = model.need(on_device, on_cpu)
        return need.total <= free and need.largest <= device.largest_buffer

    for number in range(count, 0, -1) if layers is None else [layers]:
        if layers is None and not may_divide(model.spec, number):
            continue
        numbers = range(model.last_mixture + 1) if experts is None else [experts]
        at = bisect_left(numbers, True, key=lambda on_cpu, number=number: fits(number, on_cpu))
        if at < len(numbers):
            yield Placement(number, numbers[at])


# ---- messages --------------------------------------------------------------------------------------------------------


def _what(model: Measured, placed: Placement) -> str:
    """Return what is where, for a log."""
    count, said = len(model.spec.layers), []
    if placed.layers < count:
        said.append(f"{placed.layers} of its {count} layers and the lm_head are put there, the others run on the CPU")
    if placed.cpu_moe > count - placed.layers:
        said.append(f"the routed experts of its first {placed.cpu_moe} layers run on the CPU")
    return " and ".join(said)


def _too_little(device: Device, model: Measured, placed: Placement) -> str:
    need, count = model.need(placed.layers, placed.cpu_moe), len(model.spec.layers)
    what = "the model" if placed.layers == count else f"{placed.layers} of the model's {count} layers"
    if placed.cpu_moe > count - placed.layers:
        what += f" with the experts of {placed.cpu_moe} layers on the CPU"
    if need.total <= room(device):
        return (
            f"{need.widest} needs a buffer of {_gb(need.largest)}, and the largest that the device {device.name} has is"
            f" {_gb(device.largest_buffer)}"
        )
    needs = "needs" if placed.layers == count else "need"
    return f"{what} {needs} {_said(model, need)}, and the device {device.name} has {_gb(max(room(device), 0))} for it"


def _said(model: Measured, need: Need) -> str:
    states = f", {_gb(need.states)} of recurrent states" if need.states else ""
    return (
        f"{_gb(need.total)} ({_gb(need.weights)} of weights, {_gb(need.keys)} of keys and values for"
        f" {model.positions:,} positions{states}, {_gb(need.scratch)} to work in"
        f"{f', {_gb(need.head)} for the drafting head' if need.head else ''})"
    )


def _instead(model: Measured, best: Placement | None) -> str:
    """Return the hint for a placement that does not fit. ``best``: the choice where nothing is requested."""
    less = f"{arg('kv_cache', 'int8')}, a shorter context or a format of fewer bits"
    if best is None:
        return f"not one layer fits: use {arg('engine', 'native')}, or {less}"
    count, fits = len(model.spec.layers), []
    if best.layers < count or not best.cpu_moe:
        of = "all" if best.layers == count else f"{best.layers} of {count}"
        fits.append(f"{arg('gpu_layers', best.layers)} fits ({of} layers; the others run on the CPU)")
    if best.cpu_moe > count - best.layers:
        layers = f"the routed experts of the first {best.cpu_moe} of {count} layers run on the CPU"
        fits.append(f"{arg('n_cpu_moe', best.cpu_moe)}{'' if fits else ' fits'} ({layers})")
    return f"{' with '.join(fits)}; or use {less}"


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
