"""``ipex-lookahead info``: facts about this machine or a model."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import draft_vocab_option, drafter_option, mmproj_option
from ipex_lookahead.cli.options import json_alone_option, option
from ipex_lookahead.cli.settings import CONFIG, Found
from ipex_lookahead.cli.tables import print_facts, print_table
from ipex_lookahead.cli.types import Model
from ipex_lookahead.errors import EngineError, InputError
from ipex_lookahead.system.terminal import counted

PACKAGES = ("ipex-lookahead", "torch", "transformers", "tokenizers", "safetensors", "numpy")

MOST_COSTS = 8
"""Maximum number of measured cost curves to list, the newest first."""


@command(
    "ipex-lookahead info",
    "ipex-lookahead info path/to/model",
    "ipex-lookahead info --config auto",
)
@click.argument("model", required=False, type=Model())
def info(
    model: str | None,
    drafter: str | None = drafter_option,
    draft_vocab: int | Path | None = draft_vocab_option,
    mmproj: str | None = mmproj_option,
    list_formats: bool = option("List the weight formats.", False, "--formats"),
    forget_costs: bool = option("Delete the measured step costs: all, or those of MODEL.", False),
    as_json: bool = json_alone_option,
) -> None:
    """Show facts about this machine, or about MODEL without loading its weights.

    With --config: show what the file sets for each command.
    """
    if list_formats:
        _show_formats(as_json=as_json)
        return
    if (settings := click.get_current_context().meta.get(CONFIG)) is not None:
        _show_settings(*settings, as_json=as_json)
        return
    if forget_costs:
        forgotten = forget_step_costs(model)
        curves = counted(forgotten, "cost curve")
        click.echo(json.dumps({"forgotten": forgotten}) if as_json else f"deleted {curves}")
        return
    if model is None and any(one is not None for one in (drafter, draft_vocab, mmproj)):
        raise click.UsageError("--drafter, --draft-vocab and --mmproj need a MODEL")
    facts = machine_facts() if model is None else model_facts(model, drafter, draft_vocab, mmproj, progress=not as_json)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        print_facts(fact_rows(facts))


def _show_formats(*, as_json: bool) -> None:
    from ipex_lookahead.low_bits import ALIASES, LOW_BITS, PRESETS

    found = LOW_BITS | PRESETS | {name: f"the same as {ours}" for name, ours in ALIASES.items()}
    click.echo(json.dumps(found)) if as_json else print_table(("format", "description"), found.items())


def _show_settings(file: str, found: Found, *, as_json: bool) -> None:
    names, rows = ("command", "option", "value", "from"), []
    for ctx, given in found:
        for one, value, source in given:
            values = value if isinstance(value, list) else [value]
            shown = ", ".join("yes" if v is True else "no" if v is False else str(v) for v in values)
            if (variable := one.resolve_envvar_value(ctx)) is not None:
                shown, source = variable, one.variable(ctx.auto_envvar_prefix or "")
            rows.append((ctx.command_path.partition(" ")[2], max(one.opts, key=len), shown, source))
    if as_json:
        settings = [dict(zip(names, row, strict=True)) for row in rows]
        click.echo(json.dumps({"config": file, "settings": settings}))
    else:
        print_table(names, rows, keys=2)


def machine_facts() -> dict[str, Any]:
    """Return machine, instruction sets, threads, memory in bytes, versions, cache folder and step costs."""
    from ipex_lookahead.controller.kept import cost_folder, known_costs
    from ipex_lookahead.engines.identity import processor
    from ipex_lookahead.hub import cache_folder_if_any
    from ipex_lookahead.system.cgroups import machine_memory

    cache = cache_folder_if_any()
    return {
        "machine": {
            "processor": processor(),
            "architecture": platform.machine(),
            "system": platform.platform(),
            "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_bytes": machine_memory(),
        },
        "engine": _engine(),
        "opencl": _opencl(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "cache_folder": None if cache is None else str(cache),
        "step_costs": known_costs(cost_folder())[:MOST_COSTS],
    }


def _engine() -> dict[str, Any]:
    """Return facts of the native core and the limits of the machine, or the problem that prevents them."""
    facts: dict[str, Any] = {"isa_available": [], "threads": None, "isa_chosen": None}
    try:
        from ipex_lookahead.engines.bandwidth import measured_bandwidth
        from ipex_lookahead.engines.machine import default_threads
        from ipex_lookahead.engines.native import core

        facts["isa_available"] = list(core.available_isas())
        facts["amx"] = core.amx_state()
        facts["threads"] = default_threads()
        facts["isa_chosen"] = isa = core.chosen_isa()
        read = measured_bandwidth()
        facts["read_gb_s"], facts["read_busy"] = round(read.bytes_per_second / 1e9, 1), read.is_busy
        facts["integer_gops"] = round(2 * core.integer_peak(facts["threads"], isa) / 1e9)
    except (ImportError, EngineError) as error:
        facts["problem"] = str(error)
    return facts


def _opencl() -> dict[str, Any]:
    """Return the OpenCL devices by the names for ``--device``, or the problem that prevents it."""
    from ipex_lookahead.engines.opencl.device import listed

    try:
        found = listed()
    except EngineError as error:
        return {"devices": [], "problem": f"{error}; {error.hint}"}
    return {
        "devices": [f"opencl:{one.number} {one.name}, {one.kind}, {one.platform}, driver {one.driver}" for one in found]
    }


def model_facts(
    name: str,
    drafter: str | None = None,
    draft_vocab: int | Path | None = None,
    mmproj: str | None = None,
    *,
    progress: bool,
) -> dict[str, Any]:
    """Return the facts of a model from its headers, and its measured step costs."""
    from ipex_lookahead.checkpoints import kind_of
    from ipex_lookahead.checkpoints.adapters import adapters_next_to, is_adapter
    from ipex_lookahead.cli.adapters import adapter_facts
    from ipex_lookahead.cli.model_facts import describe, license_of
    from ipex_lookahead.controller.kept import cost_folder, known_costs, known_counts
    from ipex_lookahead.hub import DEFAULT, resolve_model

    path = resolve_model(name, progress=progress)
    if is_adapter(path):
        return {"model": name, "path": str(path), **adapter_facts(path)}
    named = None if drafter is None else resolve_model(drafter, progress=progress)
    vision = None if mmproj is None else resolve_model(mmproj, progress=progress)
    found = describe(path, named, draft_vocab, vision)
    if vision is not None and "images" not in found:
        raise InputError(f"--mmproj {mmproj}: {name} takes no images", hint="leave it out")
    config = found.pop("config")
    found["license"] = DEFAULT.license if name == "default" else license_of(path, found)
    costs = known_costs(cost_folder(), config)[:MOST_COSTS] if config is not None else []
    if config is not None and (head := found.get("drafter")):
        counts = known_counts(cost_folder(), config, kind_of(head.get("file", path))[1])
        by_depth = [round(right / max(tested, 1), 3) for right, tested in counts]
        chains = max((tested for _, tested in counts), default=0)
        head |= {"acceptance": {"chains": chains, "by_depth": by_depth}} if counts else {}
    found["adapters"] = [str(one) for one in adapters_next_to(kind_of(path)[1])]
    return {"model": name, "path": str(path), **found, **_sequence_bytes(config), "step_costs": costs}


def _sequence_bytes(config: dict[str, Any] | None) -> dict[str, int]:
    """Return the native memory of a sequence: bytes of keys and values per position, and of recurrent states."""
    from ipex_lookahead.architectures import spec_for
    from ipex_lookahead.engines.native.decoder import kv_bytes_per_token, state_bytes
    from ipex_lookahead.errors import LookaheadError

    try:
        spec = None if config is None else spec_for(dict(config))
    except LookaheadError:  # it runs on another engine
        spec = None
    if spec is None:
        return {}
    return {"kv_bytes_per_token": kv_bytes_per_token(spec, "fp16"), "state_bytes": state_bytes(spec)}


def forget_step_costs(model: str | None) -> int:
    """Delete the measured step costs of a model, or of all models; return the number of deleted curves."""
    from ipex_lookahead.controller.kept import cost_folder, forget_costs

    config = None
    if model is not None:
        from ipex_lookahead.cli.model_facts import describe
        from ipex_lookahead.hub import resolve_model

        config = describe(resolve_model(model))["config"]
        if config is None:  # it cannot run, so it has no costs
            return 0
    return forget_costs(cost_folder(), config)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


KINDS = {
    "gguf": "GGUF file",
    "low_bit": "folder saved by ipex-lookahead",
    "safetensors": "Hugging Face folder",
    "ipex_llm": "folder saved by ipex-llm",
    "adapter": "LoRA adapter, which changes a model",
}
LABELS = {
    "bytes": "weights",
    "purpose": "for",
    "max_length": "maximum tokens of a text",
    "engine": "runs on",
    "hidden_size": "hidden size",
    "kv_heads": "heads of keys and values",
    "kv_bytes_per_token": "keys, values per position",
    "state_bytes": "states per sequence",
    "vocab_size": "vocabulary",
    "chat_template": "chat template",
    "unknown_keys": "unknown metadata",
    "quantized_by": "quantized by",
    "decoded": "decoded when loaded",
    "output_layer": "output layer",
    "drafter kind": "drafting head",
    "drafter bytes": "weights of the head",
    "drafter draft_vocab": "draft vocabulary",
    "drafter file": "its file",
    "drafter unread": "its unused tensors",
    "drafter acceptance": "acceptance so far",
    "images tower": "vision part",
    "images layers": "its layers",
    "images parameters": "its parameters",
    "images bytes": "its weights",
    "images file": "its file",
    "images tokens": "tokens of a picture",
    "images operations": "GFLOP to encode it",
    "images problem": "images",
    "requantized_from": "requantized from",
    "adapters": "adapters next to it",
    "base": "base model",
    "problem": "cannot be run",
    "hint": "what to do",
    "cache_folder": "cache folder",
    "step_costs": "step cost",
    "machine architecture": "architecture",
    "machine cores_usable": "cores usable",
    "machine memory_bytes": "memory",
    "engine threads": "threads",
    "engine isa_available": "instruction sets",
    "engine amx": "AMX",
    "engine isa_chosen": "instruction set chosen",
    "engine read_gb_s": "memory read bandwidth, GB/s",
    "engine read_busy": "busy while measured",
    "engine integer_gops": "integer operations, GOPS",
    "engine problem": "native core",
    "opencl devices": "OpenCL devices",
    "opencl problem": "OpenCL",
}
"""Fact -> its label, if that is not the name."""
SILENT = (
    "state_bytes", "requantized_from", "quantized_by", "problem", "hint", "unknown_keys", "step_costs", "adapters",
    "notes",
)  # fmt: skip
"""Facts that are shown only if they have a value."""


def fact_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return labels and values as text, in the order of the facts."""
    rows: list[tuple[str, str]] = []
    for key, value in facts.items():
        if key == "kind":
            rows.append((key, KINDS[value]))
        elif key == "step_costs" and "machine" in facts:
            rows.append((LABELS[key], f"{len(value)} measured; `info MODEL` shows a model's"))
        elif key == "step_costs":
            rows += [(LABELS[key], _spoken_costs(costs)) for costs in value]
        elif key == "formats":
            rows += [(f"weights in {name}", _spoken("formats", entry)) for name, entry in value.items()]
        elif isinstance(value, dict):
            rows += [_row(f"{key} {inner}", inner, fact) for inner, fact in value.items()]
        elif key in ("problem", "hint") and value:
            rows.append((LABELS[key], value))
        elif value or key not in SILENT:
            rows.append(_row(key, key, value))
    return rows


def _row(key: str, word: str, fact: object) -> tuple[str, str]:
    return LABELS.get(key, word.replace("_", " ")), _spoken(key, fact)


def _spoken_costs(costs: dict[str, Any]) -> str:
    """Return a cost curve as text: the time of one row, and the ratio for more rows."""
    times = costs["milliseconds"]
    alone = times["1"]
    more = ", ".join(
        f"{rows} rows {time / alone:.2f}x" for rows, time in times.items() if rows in ("2", "4", "8", "16")
    )
    size = f"{(costs['weight_bytes'] or 0) / 1e6:,.0f} MB"
    head = f"{size} {costs['low_bit']} {costs['isa']} {counted(costs['threads'], 'thread')}"
    noisy = " (measured while the machine was busy)" if costs["noisy"] else ""
    return f"{head}: {alone:.2f} ms, {more}{noisy}"


def _spoken(label: str, fact: object) -> str:
    if isinstance(fact, dict) and "by_depth" in fact:
        rates = ", ".join(f"{100 * rate:.0f} %" for rate in fact["by_depth"])
        return f"{rates} for the 1st, 2nd, ... token of {counted(fact['chains'], 'draft')}"
    if label in ("images tokens", "images operations") and isinstance(fact, dict):
        unit = 10**9 if label == "images operations" else 1
        return ", ".join(f"{size.replace('x', ' x ')}: {number / unit:,.0f}" for size, number in fact.items())
    if isinstance(fact, dict):
        return f"{counted(fact['tensors'], 'tensor')}, {fact['bytes'] / 1e6:,.1f} MB"
    if isinstance(fact, list):
        return ", ".join(map(str, fact)) or "none"
    if label in ("kv_bytes_per_token", "state_bytes") and isinstance(fact, int):
        return f"{fact / 1e3:,.1f} kB"
    if isinstance(fact, int) and not isinstance(fact, bool):
        return f"{fact / 1e6:,.1f} MB" if "bytes" in label else f"{fact:,}"
    return {None: "-", True: "yes", False: "no"}.get(fact, str(fact)) if fact in (None, True, False) else str(fact)
