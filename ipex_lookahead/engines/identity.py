"""The identity of an engine (machine, engine, shape of the model), which keys measurements that are cached on disk."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.engines.api import Engine, NamesKernels
from ipex_lookahead.engines.native.core import core_build
from ipex_lookahead.engines.native.decoder import KV_CACHES, kv_bytes_per_token
from ipex_lookahead.errors import LookaheadError


def identity(engine: Engine) -> dict[str, Any]:
    """Return the facts that a forward's time depends on, without the build of the kernels."""
    facts = engine.describe()
    names = ("engine", "isa", "threads", "low_bit", "weight_bytes", "kv_cache", "kv_bytes_per_token")
    where = {
        name: facts[name]
        for name in ("device", "device_name", "driver", "gpu_layers", "n_cpu_moe", "family", "dtype", "deterministic")
        if name in facts
    }
    known = {"processor": processor(), "vocab_size": engine.vocab_size, **{name: facts.get(name) for name in names}}
    return known | where  # optional facts come last, so that other engines' calibrations keep their names


def processor() -> str:
    """Return the processor's model name."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def kernels_of(engine: Engine) -> str:
    """Return the identifier of an engine's kernels; "" if it has none."""
    return engine.kernels if isinstance(engine, NamesKernels) else ""


def is_of_here(engine: Mapping[str, Any], kernels: Any) -> bool:
    """Return True if an identity is of this processor, and a native one of this build of the core."""
    return engine.get("processor") == processor() and (engine.get("engine") != "native" or kernels == core_build())


def may_be_of(engine: Mapping[str, Any], config: Mapping[str, Any] | None) -> bool:
    """Return True if an engine's identity may belong to a model with this config."""
    if config is None:
        return True
    if engine.get("vocab_size") != config.get("vocab_size"):
        return False
    if "family" in engine:  # torch's engines name it
        return bool(engine["family"] == config.get("model_type"))
    try:
        spec = spec_for(dict(config))
    except LookaheadError:
        return False
    return engine.get("kv_bytes_per_token") in [kv_bytes_per_token(spec, kind) for kind in KV_CACHES]
