"""The recommended models with their expected speed on this machine, for ``pull`` and ``make demo``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.engines.machine import machine_memory
from ipex_lookahead.errors import EngineError
from ipex_lookahead.hub.recommended import POSITIONS, Recommended, recommended_models

REACHED = 0.8
"""Expected share of the memory bandwidth that decoding reaches; measured values are 0.64 to 0.94."""
MEMORY_SHARE = 0.7
"""Largest share of the machine's memory for the suggested model."""
FLUENT = 7.0
"""Minimum tokens per second of the suggested model; twice the number for a model that thinks before it answers."""


def bandwidth() -> float | None:
    """Return bytes per second, or None without a native core."""
    try:
        from ipex_lookahead.engines.bandwidth import cached_bandwidth

        return cached_bandwidth()
    except (ImportError, EngineError):
        return None


def expected_tok_s(model: Recommended, bytes_a_second: float) -> float:
    """Return the estimated tokens per second without lookahead, from the bytes read per token."""
    return REACHED * bytes_a_second / model.read


def one_to_try(models: Sequence[Recommended], memory: int, bytes_a_second: float | None) -> Recommended:
    """Return the largest model that fits and is fast enough, or the smallest model."""
    fit = [
        model
        for model in models
        if model.memory <= MEMORY_SHARE * memory
        and (bytes_a_second is None or expected_tok_s(model, bytes_a_second) >= FLUENT * (1 + model.thinks))
    ]
    return fit[-1] if fit else models[0]


def suggestion() -> str:
    """Return a sentence with the suggested model for this machine, its size, and the command."""
    rate = bandwidth()
    found = one_to_try([*recommended_models().values()], machine_memory(), rate)
    speed = "" if rate is None else f", about {expected_tok_s(found, rate):.0f} tok/s"
    takes = f"{found.download / 1e9:.1f} GB to fetch, {found.memory / 1e9:.1f} GB of memory{speed}"
    return f"a larger model that suits this machine ({takes}): ipex-lookahead run {found.name}"


def facts() -> dict[str, Any]:
    """Return the list for ``--json``: sizes in bytes, estimated tokens per second, and the bandwidth."""
    rate, memory = bandwidth(), machine_memory()
    models = recommended_models()
    listed = [
        {
            "name": one.name,
            "model": one.model,
            "family": one.family,
            "licence": one.licence,
            "parameters": one.parameters,
            "bits": round(one.bits, 1),
            "download_bytes": one.download,
            "memory_bytes": one.memory,
            "fits": one.memory <= memory,
            "thinks": one.thinks,
            "draft_model": one.draft,
            "drafter": one.drafter,
            "estimated_tok_s": None if rate is None else round(expected_tok_s(one, rate), 1),
        }
        for one in models.values()
    ]
    chosen = one_to_try([*models.values()], memory, rate).name
    read = None if rate is None else round(rate / 1e9, 1)
    return {"models": listed, "try": chosen, "read_gb_s": read, "memory_bytes": memory}


def print_recommended() -> None:
    """Print the list, with the suggested model for this machine."""
    found = facts()
    rate = "estimated_tok_s"
    columns: dict[str, str | Callable[[Any], object]] = {
        "name": lambda one: one["name"] + ("" if one["fits"] else " (too big)"),
        "licence": "{licence}",
        "bits": "{bits:.1f}",
        "fetch\nGB": lambda one: f"{one['download_bytes'] / 1e9:.1f}",
        "memory\nGB": lambda one: f"{one['memory_bytes'] / 1e9:.1f}",
        "tok/s\nhere": lambda one: "-" if one[rate] is None else f"{one[rate]:.0f}",
        "thinks\nfirst": lambda one: "yes" if one["thinks"] else "",
        "draft\nmodel": lambda one: one["draft_model"] or "",
    }
    memory = f"memory: with {POSITIONS:,} positions, of {found['memory_bytes'] / 1e9:.1f} GB here."
    speed = "" if found["read_gb_s"] is None else (
        f" tok/s: estimated without lookahead, from {REACHED:.0%} of the {found['read_gb_s']:.1f} GB/s"
        " at which memory is read here."
    )  # fmt: skip
    print_rows(columns, found["models"], caption=f"{memory}{speed} To try here: ipex-lookahead run {found['try']}")
