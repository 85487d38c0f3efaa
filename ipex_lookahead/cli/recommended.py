"""The recommended models with their expected speed on this machine, for ``pull`` and ``make demo``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.recommended_embedding import embedding_facts, print_recommended_embedding
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.errors import EngineError
from ipex_lookahead.hub.recommended import MEMORY_SHARE, POSITIONS, Recommended, recommended_models
from ipex_lookahead.system.cgroups import machine_memory

if TYPE_CHECKING:
    from ipex_lookahead.engines.bandwidth import Bandwidth

REACHED = 0.8
"""Expected share of the memory bandwidth that decoding reaches; measured values are 0.64 to 0.94."""
FLUENT = 7.0
"""Minimum tokens per second of the suggested model; twice the number for a model that thinks before it answers."""
QUICK_BYTES = 4_000_000_000
"""Maximum download size of the suggested quick model."""
BUSY = "measured while other programs used the memory; the machine may be faster"


def bandwidth() -> Bandwidth | None:
    """Return the memory bandwidth, or None without a native core."""
    try:
        from ipex_lookahead.engines.bandwidth import cached_bandwidth

        return cached_bandwidth()
    except (ImportError, EngineError):
        return None


def expected_tok_s(model: Recommended, bytes_per_second: float) -> float:
    """Return the estimated tokens per second without lookahead, from the bytes read per token."""
    return REACHED * bytes_per_second / model.read


def to_try(models: Sequence[Recommended], memory: int, bytes_per_second: float | None) -> list[Recommended]:
    """Return the suggested models: a quick one, and the best one that fits and is fast enough, if that is another.

    Args:
        models: from small to large.
        memory: memory of the machine in bytes.
        bytes_per_second: its memory bandwidth; None if unknown.
    """
    fit = [
        model
        for model in models
        if model.memory <= MEMORY_SHARE * memory
        and (bytes_per_second is None or expected_tok_s(model, bytes_per_second) >= FLUENT * (1 + model.thinks))
    ] or [models[0]]
    quick = [model for model in fit if model.download < QUICK_BYTES] or fit[:1]
    return [quick[-1], *fit[-1:]] if quick[-1] != fit[-1] else quick[-1:]


def suggestion() -> str:
    """Return the suggested models for this machine, with size, expected speed and command, one per line."""
    rate = bandwidth()
    speed = None if rate is None else rate.bytes_per_second
    lines = ["Larger models for this machine:"]
    for model in to_try([*recommended_models().values()], machine_memory(), speed):
        rated = "" if speed is None else f", about {expected_tok_s(model, speed):.0f} tok/s"
        lines.append(f"  ipex-lookahead run {model.name}  ({model.download / 1e9:.1f} GB{rated})")
    return "\n".join(lines) + (f"\n({BUSY})" if rate is not None and rate.is_busy else "")


def facts() -> dict[str, Any]:
    """Return the list for ``--json``: sizes in bytes, estimated tokens per second, and the bandwidth."""
    read, memory = bandwidth(), machine_memory()
    rate = None if read is None else read.bytes_per_second
    models = recommended_models()
    listed = [
        {
            "name": one.name,
            "model": one.model,
            "family": one.family,
            "license": one.license,
            "parameters": one.parameters,
            "bits": round(one.bits, 1),
            "download_bytes": one.download,
            "read_bytes": one.read,
            "memory_bytes": one.memory,
            "fits": one.memory <= memory,
            "thinks": one.thinks,
            "takes_images": one.sees,
            "draft_model": one.draft,
            "drafter": one.drafter,
            "drafts": one.drafts,
            "source": one.source,
            "confirmed": one.is_confirmed,
            "estimated_tok_s": None if rate is None else round(expected_tok_s(one, rate), 1),
        }
        for one in models.values()
    ]
    return {
        "models": listed,
        "embedding_models": embedding_facts(),
        "try": [model.name for model in to_try([*models.values()], memory, rate)],
        "read_gb_s": None if rate is None else round(rate / 1e9, 1),
        "read_busy": read is not None and read.is_busy,
        "memory_bytes": memory,
    }


def print_recommended() -> None:
    """Print the list, with the suggested model for this machine."""
    found = facts()
    rate = "estimated_tok_s"
    columns: dict[str, str | Callable[[Any], object]] = {
        "name": lambda one: one["name"] + ("" if one["fits"] else " *"),
        "license": "{license}",
        "bits": "{bits:.1f}",
        "size\nGB": lambda one: f"{one['download_bytes'] / 1e9:.1f}",
        "memory\nGB": lambda one: f"{one['memory_bytes'] / 1e9:.1f}",
        "tok/s\nhere": lambda one: "-" if one[rate] is None else f"{one[rate]:.{0 if one[rate] >= 3 else 1}f}",
        "thinks\nfirst": lambda one: "yes" if one["thinks"] else "",
        "sees": lambda one: "yes" if one["takes_images"] else "",
        "drafts\nfrom": "{drafts}",
    }
    memory = f"memory: with {POSITIONS:,} tokens of context; this machine has {found['memory_bytes'] / 1e9:.1f} GB."
    memory += "" if all(one["fits"] for one in found["models"]) else " *: does not fit."
    speed = "" if found["read_gb_s"] is None else (
        f" tok/s: estimate without lookahead, {REACHED:.0%} of the memory bandwidth of {found['read_gb_s']:.1f} GB/s"
        + (f" ({BUSY})." if found["read_busy"] else ".")
    )  # fmt: skip
    unconfirmed = [one["name"] for one in found["models"] if not one["confirmed"]]
    sizes = f" Sizes from one source only: {', '.join(unconfirmed)}." if unconfirmed else ""
    print_rows(columns, found["models"], caption=f"{memory}{speed}{sizes}")
    print_recommended_embedding()
    purposes = ("quick", "best") if len(found["try"]) > 1 else ("",)
    for name, purpose in zip(found["try"], purposes, strict=True):
        click.echo(f"try it: ipex-lookahead run {name}" + (f"  ({purpose})" if purpose else ""))
