"""``ipex-lookahead info``: what this machine is, or what a model is."""

from __future__ import annotations

import json
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.cli.options import option
from ipex_lookahead.errors import EngineError

PACKAGES = ("ipex-lookahead", "torch", "transformers", "tokenizers", "safetensors", "numpy")

MOST_COSTS = 8
"""Measured cost curves that are listed, the newest first."""
READ_BYTES = 256 << 20
"""What is read to measure the memory's speed: far more than any cache holds."""


@click.command()
@click.argument("model", required=False)
@option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def info(model: str | None, as_json: bool) -> None:
    """Facts about this machine, or about MODEL: a folder, a .gguf file, a hub id or 'default'."""
    facts = machine_facts() if model is None else model_facts(model, progress=not as_json)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        _print(facts)


def machine_facts() -> dict[str, Any]:
    """Machine, instruction sets, threads, memory in bytes, versions, cache folder, what steps were measured to cost."""
    from ipex_lookahead.decoding.cost import cost_folder, known_costs, processor
    from ipex_lookahead.hub import cache_folder

    return {
        "machine": {
            "processor": processor(),
            "architecture": platform.machine(),
            "system": platform.platform(),
            "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
        "engine": _engine(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "cache_folder": str(cache_folder()),
        "step_costs": known_costs(cost_folder())[:MOST_COSTS],
    }


def _engine() -> dict[str, Any]:
    """The core's facts and the machine's roofs, or why there are none: people run this when something is wrong."""
    facts: dict[str, Any] = {"isa_available": [], "threads": None, "isa_chosen": None}
    try:
        from ipex_lookahead.engines.machine import default_threads
        from ipex_lookahead.engines.native import core

        facts["isa_available"] = list(core.available_isas())
        facts["threads"] = default_threads()
        facts["isa_chosen"] = isa = core.chosen_isa()
        facts["read_gb_s"] = round(core.read_bandwidth(READ_BYTES, facts["threads"], isa) / 1e9, 1)
        facts["integer_gops"] = round(2 * core.integer_peak(facts["threads"], isa) / 1e9)
    except (ImportError, EngineError) as error:
        facts["problem"] = str(error)
    return facts


def model_facts(name: str, *, progress: bool) -> dict[str, Any]:
    """Architecture, formats by tensor, bytes, context, tokenizer, licence; nothing of the weights is read."""
    from ipex_lookahead.architectures import model_types
    from ipex_lookahead.checkpoints import family_of, open_checkpoint, open_other_family
    from ipex_lookahead.hub import resolve_model
    from ipex_lookahead.tokenization.folder import tokenizer_from_folder

    path = resolve_model(name, progress=progress)
    family = family_of(path)
    other = family is not None and family not in model_types()
    checkpoint = open_other_family(path) if other else open_checkpoint(path)
    try:
        config = _other_config(path) if other else checkpoint.config
        formats: dict[str, dict[str, int]] = {}
        parameters = 0
        for tensor in checkpoint.names():
            found = checkpoint.info(tensor)
            entry = formats.setdefault(found.format, {"tensors": 0, "bytes": 0})
            entry["tensors"] += 1
            entry["bytes"] += packed_bytes(found.format, found.shape, found.group_size)
            parameters += _product(found.shape)
        tokenizer = tokenizer_from_folder(path, config) if other else checkpoint.tokenizer()
    finally:
        checkpoint.close()
    return {
        "model": name,
        "path": str(path),
        "architecture": config.get("model_type"),
        "engine": "torch" if other else "native",
        "parameters": parameters,
        "bytes": sum(entry["bytes"] for entry in formats.values()),
        "formats": formats,
        "layers": config.get("num_hidden_layers"),
        "hidden_size": config.get("hidden_size"),
        "heads": config.get("num_attention_heads"),
        "kv_heads": config.get("num_key_value_heads"),
        "vocab_size": config.get("vocab_size"),
        "context": config.get("max_position_embeddings"),
        "tokenizer": type(tokenizer).__name__ if tokenizer is not None else None,
        "chat_template": bool(getattr(tokenizer, "chat_template", None)),
        "licence": _licence(name, path),
    }


def _other_config(path: Path) -> dict[str, Any]:
    """The sizes of a family that only transformers knows, under Llama's names."""
    from ipex_lookahead.checkpoints.config_json import read_json
    from ipex_lookahead.engines.foreign import foreign_config

    config, _ = foreign_config(read_json(path / "config.json"), path)
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    sizes = {name: getattr(config, name, None) for name in (*names, "max_position_embeddings")}
    return {"model_type": config.model_type, **sizes}


def packed_bytes(format_name: str, shape: tuple[int, ...], group_size: int) -> int:
    """Bytes of a packed tensor, as ``PackedWeight.nbytes`` would say, from its shape alone."""
    widths = {"fp32": 4, "fp16": 2, "bf16": 2, "i64": 8, "i32": 4, "u8": 1, "i8": 1, "bool": 1}
    if format_name in widths:
        return _product(shape) * widths[format_name]
    rows, inputs = _product(shape[:-1]), shape[-1]
    codes = -(-inputs // 32) * (32 if format_name == "sym_int8" else 16)
    streams = 2 if format_name.startswith("asym") else 1
    return rows * (codes + 2 * streams * -(-inputs // max(group_size, 1)))


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _licence(name: str, path: Path) -> str | None:
    """The embedded model's, or what the model card beside the weights says; None where nothing says so."""
    if name == "default":
        from ipex_lookahead.hub import DEFAULT

        return DEFAULT.licence
    card = (path if path.is_dir() else path.parent) / "README.md"
    try:
        with card.open(encoding="utf-8", errors="replace") as source:
            head = source.read(20_000)
    except OSError:
        return None
    found = re.match(r"---\n(?:.*\n)*?license:[ \t]*([^\n]+)\n", head)
    return found[1].strip() if found else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in facts.items():
        if key == "step_costs":
            for costs in value:
                table.add_row(*_spoken_costs(costs))
            continue
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for label, fact in inner:
            spoken = label if key == "formats" else label.replace("_", " ")
            table.add_row(f"{key.replace('_', ' ')} {spoken}".strip(), _spoken(f"{key} {label}", fact))
    Console(soft_wrap=True).print(table)


def _spoken_costs(costs: dict[str, Any]) -> tuple[str, str]:
    """One measured cost curve on a line: a row's time, and how much longer more rows take."""
    times = costs["milliseconds"]
    alone = times["1"]
    more = ", ".join(
        f"{rows} rows {time / alone:.2f}x" for rows, time in times.items() if rows in ("2", "4", "8", "16")
    )
    size = f"{(costs['weight_bytes'] or 0) / 1e6:,.0f} MB"
    head = f"{size} {costs['low_bit']} {costs['isa']} {costs['threads']} threads"
    return "step cost", f"{head}: {alone:.2f} ms, {more}"


def _spoken(label: str, fact: object) -> str:
    if isinstance(fact, dict):
        return f"{fact['tensors']} tensors, {fact['bytes'] / 1e6:,.1f} MB"
    if isinstance(fact, list):
        return ", ".join(map(str, fact)) or "none"
    if isinstance(fact, int) and not isinstance(fact, bool):
        return f"{fact / 1e6:,.1f} MB" if "bytes" in label else f"{fact:,}"
    return {None: "-", True: "yes", False: "no"}.get(fact, str(fact)) if fact in (None, True, False) else str(fact)
