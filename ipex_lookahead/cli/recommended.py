"""The recommended models as they would run on this machine: for ``pull``, and what ``make demo`` says at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.engines.machine import machine_memory
from ipex_lookahead.errors import EngineError
from ipex_lookahead.hub.recommended import POSITIONS, Recommended, recommended_models

REACHED = 0.8
"""Share of the memory's bandwidth that decoding is expected to reach: between 0.64 and 0.94 were measured."""
MEMORY_SHARE = 0.7
"""Of the machine's memory that a model may take to be the one to try."""
FLUENT = 7.0
"""Tokens a second that are read along with: slower models are not the one to try. One that thinks needs twice as many,
which says as much again before its answer."""


def bandwidth() -> float | None:
    """Bytes a second; None where there is no native core to measure with."""
    try:
        from ipex_lookahead.engines.bandwidth import cached_bandwidth

        return cached_bandwidth()
    except (ImportError, EngineError):
        return None


def expected_tok_s(model: Recommended, bytes_a_second: float) -> float:
    """Tokens a second without lookahead, estimated from the bytes that one reads."""
    return REACHED * bytes_a_second / model.read


def one_to_try(models: Sequence[Recommended], memory: int, bytes_a_second: float | None) -> Recommended:
    """The largest model that fits and answers fluently; where none does, the smallest."""
    fit = [
        model
        for model in models
        if model.memory <= MEMORY_SHARE * memory
        and (bytes_a_second is None or expected_tok_s(model, bytes_a_second) >= FLUENT * (1 + model.thinks))
    ]
    return fit[-1] if fit else models[0]


def suggestion() -> str:
    """A sentence that names the model to try on this machine, with what it takes, and the command."""
    rate = bandwidth()
    found = one_to_try([*recommended_models().values()], machine_memory(), rate)
    speed = "" if rate is None else f", about {expected_tok_s(found, rate):.0f} tok/s"
    takes = f"{found.download / 1e9:.1f} GB to fetch, {found.memory / 1e9:.1f} GB of memory{speed}"
    return f"a larger model that suits this machine ({takes}): ipex-lookahead run {found.name}"


def facts() -> dict[str, Any]:
    """The list for programs: sizes in bytes, tokens a second as estimated, and what they are estimated from."""
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
    """The list for people, with the one to try on this machine."""
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
