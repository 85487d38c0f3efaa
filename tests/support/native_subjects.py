"""An object of every class bound in ``_native``, in every state, and for everything bound arguments that are right."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ipex_lookahead import _native

HIDDEN, VOCAB, CONTEXT = 32, 40, 64


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def floats(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def fp32(n_out: int, n_in: int) -> tuple[Any, ...]:
    return ("fp32", n_out, n_in, 0, np.full((n_out, n_in), 0.01, np.float32), None, None)


def asym_int4(n_out: int, n_in: int) -> tuple[Any, ...]:
    scales = np.full((n_out, n_in // 32), 0x2400, np.uint16)
    return ("asym_int4", n_out, n_in, 32, np.full((n_out, n_in // 2), 0x5A, np.uint8), scales, scales.copy())


def quantize_arguments() -> tuple[Any, ...]:
    """A matrix to asym_int4: each group's minimum and scale are searched for."""
    streams = (np.zeros((48, 32), np.uint8), np.zeros((48, 2), np.uint16), np.zeros((48, 2), np.uint16))
    searched = ("minimum", 32, np.array([0, 15], np.float32), True, np.array([15, 14.6, 15.4], np.float32), 0)
    return (
        "asym_int4",
        floats(48, 64),
        "fp32",
        floats(64),
        *searched,
        np.arange(256).astype(np.uint8),
        1e10,
        *streams,
        2,
        4,
    )


def rope(**changed: Any) -> Any:
    return _native.Rope(**{**ROPE, **changed})


def block(**changed: Any) -> Any:
    return _native.Layer(**{**LAYER, **changed})


def unset_decoder(**changed: Any) -> Any:
    return _native.Decoder(**{**DECODER, **changed})


ROPE: dict[str, Any] = {
    "frequencies": np.array([1, 0.5, 0.25, 0.1], np.float32),
    "factor": 1.0,
    "query_beta": 0.0,
    "query_original": 0,
}
LAYER: dict[str, Any] = {
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "rope": 0,
    "query_scale": 0.35,
    "window": 0,
    "softcap": 0.0,
    "sinks": False,
    "q_norm": "none",
    "k_norm": "none",
    "attention_norm": True,
    "attention_after": False,
    "mlp_norm": True,
    "mlp_after": False,
    "intermediate": 64,
    "activation": "silu",
    "alpha": 0.0,
    "limit": 0.0,
    "residual_multiplier": 1.0,
    "experts": 0,
    "experts_used": 0,
    "router_softmax": "all",
    "renormalise": False,
}
DECODER: dict[str, Any] = {
    "hidden": HIDDEN,
    "vocab": VOCAB,
    "max_context": CONTEXT,
    "rms_epsilon": 1e-5,
    "embedding_multiplier": 1.0,
    "logit_multiplier": 1.0,
    "logit_softcap": 0.0,
    "ropes": [rope()],
    "layers": [block(), block()],
    "threads": 2,
    "isa": "",
    "kv_format": "fp16",
}


def whole_decoder() -> Any:
    decoder = unset_decoder()
    shapes = {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32), "gate": (64, 32), "up": (64, 32)}
    for layer in range(2):
        for norm in (_native.Vector.attention_norm, _native.Vector.mlp_norm):
            decoder.set_vector(layer, norm, floats(HIDDEN))
        for name, shape in {**shapes, "down": (32, 64)}.items():
            decoder.set_matrix(layer, getattr(_native.Slot, name), *asym_int4(*shape), None)
    decoder.set_final_norm(floats(HIDDEN))
    decoder.set_lm_head(*fp32(VOCAB, HIDDEN))
    decoder.tie_embedding()
    return decoder


def mixture() -> Any:
    """A decoder with every switch on: a mixture of experts, windows, sinks, norms of every kind, caps."""
    switches = {
        "window": 5,
        "softcap": 3.0,
        "sinks": True,
        "q_norm": "head",
        "k_norm": "whole",
        "attention_after": True,
    }
    more = {"mlp_after": True, "experts": 3, "experts_used": 2, "residual_multiplier": 0.5, "activation": "gelu_tanh"}
    decoder = unset_decoder(layers=[block(**switches, **more)], logit_softcap=2.0, embedding_multiplier=3.0)
    lengths = {"q_norm": 8, "k_norm": 16, "sinks": 4}
    for name in ("attention_norm", "q_norm", "k_norm", "sinks", "attention_after", "mlp_norm", "mlp_after"):
        decoder.set_vector(0, getattr(_native.Vector, name), floats(lengths.get(name, HIDDEN)))
    for name, shape in {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32)}.items():
        decoder.set_matrix(0, getattr(_native.Slot, name), *asym_int4(*shape))
    decoder.set_matrix(0, _native.Slot.router, *fp32(3, 32), floats(3))
    for expert in range(3):
        for name, shape in {"gate": (64, 32), "up": (64, 32), "down": (32, 64)}.items():
            decoder.set_matrix(0, getattr(_native.Slot, name), *asym_int4(*shape), None, expert)
    decoder.set_final_norm(floats(HIDDEN))
    decoder.set_lm_head(*fp32(VOCAB, HIDDEN))
    decoder.tie_embedding()
    return decoder


DECODERS = {"whole": whole_decoder(), "other": whole_decoder(), "mixture": mixture()}


def cache_after_a_step() -> Any:
    cache = DECODERS["whole"].new_cache()
    DECODERS["whole"].forward([cache], [3], ints(1, 2, 3), ints(-1, 0, 0), None, False, 1, [], None, False)
    return cache


def kept_cache() -> Any:
    cache = cache_after_a_step()
    cache.keep([0, 2])
    return cache


def trie() -> Any:
    made = _native.SuffixTrie(4)
    made.extend(ints(1, 2, 3, 1, 2, 4))
    return made


def predictor() -> Any:
    made = _native.Predictor(4, 4, trie())
    made.begin(ints(1, 2, 3, 1, 2))
    return made


def pool() -> Any:
    return _native.LinearPool(2, "")


def layer() -> Any:
    return _native.LinearLayer(pool(), *asym_int4(48, 64), floats(48))


X, OUT = floats(3, 64), floats(3, 48)
"""For ``run_at``: what lies at the addresses must stay."""

SUBJECTS: dict[str, dict[str, Callable[[], Any]]] = {
    "Decoder": {"whole": lambda: DECODERS["whole"], "unset": unset_decoder, "mixture": lambda: DECODERS["mixture"]},
    "KVCache": {"empty": lambda: DECODERS["whole"].new_cache(), "stepped": cache_after_a_step, "kept": kept_cache},
    "LinearLayer": {"made": layer},
    "LinearPool": {"made": pool},
    "Predictor": {"begun": predictor, "fresh": lambda: _native.Predictor(2, 8, None)},
    "SuffixTrie": {"filled": trie, "empty": lambda: _native.SuffixTrie(1)},
    "Slot": {"q": lambda: _native.Slot.q},
    "Vector": {"q_norm": lambda: _native.Vector.q_norm},
    "Rope": {"made": rope},
    "Layer": {"made": block},
}
"""Class -> state -> how to make one; every class also comes without its constructor having run."""

ENUMS = ("Slot", "Vector")
KEYWORDS = ("Decoder", "Layer", "Rope")
"""Their constructors take keywords only."""

Arguments = Callable[[], dict[str, Any]]


def named(names: str, make: Callable[[], tuple[Any, ...]]) -> Arguments:
    return lambda: dict(zip(names.split(), make(), strict=True))


STREAMS = "format n_out n_in group codes scales minimums"

GOOD: dict[str, Arguments] = {
    "known_isas": dict,
    "available_isas": dict,
    "amx_state": dict,
    "chosen_isa": lambda: {"name": ""},
    "most_search_lanes": dict,
    "weight_formats": dict,
    "rope_tables": lambda: {"rope": rope(), "positions": 5},
    "quantize": named(
        "format values kind importance searched size numbers whole tries step_limit code_of largest "
        "codes scales minimums threads lanes",
        quantize_arguments,
    ),
    "sample": named(
        "logits temperature top_k top_p min_p seed sequence position",
        lambda: (np.linspace(-1, 1, 200, dtype=np.float32), 0.8, 50, 0.9, 0.01, 7, 0, 3),
    ),
    "prepack": named(f"{STREAMS} threads", lambda: (*asym_int4(48, 64), 2)),
    "unpack": named(
        f"{STREAMS} steps threads", lambda: ("asym_int4", 48, 64, 32, *_native.prepack(*asym_int4(48, 64), 2), 2)
    ),
    "read_bandwidth": lambda: {"bytes": 4096, "threads": 1, "isa": ""},
    "integer_peak": lambda: {"threads": 1, "isa": ""},
    "LinearPool.__init__": lambda: {"threads": 2, "isa": ""},
    "LinearPool.isa": dict,
    "LinearPool.threads": dict,
    "LinearPool.weight_bytes": dict,
    "LinearLayer.__init__": named(f"pool {STREAMS} bias", lambda: (pool(), *asym_int4(48, 64), floats(48))),
    "LinearLayer.n_in": dict,
    "LinearLayer.n_out": dict,
    "LinearLayer.export": dict,
    "LinearLayer.into": lambda: {"x": floats(3, 64), "out": floats(3, 48)},
    "LinearLayer.run_at": lambda: {"x": X.ctypes.data, "rows": 3, "out": OUT.ctypes.data},
    "LinearLayer.__call__": lambda: {"x": floats(3, 64)},
    "SuffixTrie.__init__": lambda: {"depth": 4},
    "SuffixTrie.__len__": dict,
    "SuffixTrie.extend": lambda: {"text": ints(1, 2, 3)},
    "SuffixTrie.followers": lambda: {"context": ints(1, 2)},
    "Predictor.__init__": lambda: {"depth": 4, "width": 4, "store": trie()},
    "Predictor.begin": lambda: {"prompt": ints(1, 2, 3)},
    "Predictor.propose": lambda: {"budget": 8},
    "Predictor.observe": lambda: {
        "tokens": [3, 4],
        "parents": [-1, 0],
        "emitted": [3, 5],
        "top": ints(*range(9)).reshape(3, 3),
    },
    "KVCache.length": dict,
    "KVCache.keep": lambda: {"rows": [0, 2]},
    "KVCache.crop": lambda: {"length": 1},
    "KVCache.fork": dict,
    "KVCache.fill_blank": lambda: {"length": 5},
    "Slot.__init__": lambda: {"value": 0},
    "Vector.__init__": lambda: {"value": 0},
    "Rope.__init__": lambda: dict(ROPE),
    "Layer.__init__": lambda: dict(LAYER),
    "Decoder.__init__": lambda: dict(DECODER),
    "Decoder.set_matrix": named(
        f"layer slot {STREAMS} bias expert", lambda: (1, _native.Slot.q, *asym_int4(32, 32), floats(32), -1)
    ),
    "Decoder.set_lm_head": named(f"{STREAMS} bias", lambda: (*fp32(VOCAB, HIDDEN), floats(VOCAB))),
    "Decoder.set_embedding": named(STREAMS, lambda: asym_int4(VOCAB, HIDDEN)),
    "Decoder.tie_embedding": dict,
    "Decoder.set_vector": lambda: {"layer": 1, "vector": _native.Vector.mlp_norm, "values": floats(HIDDEN)},
    "Decoder.set_order": lambda: {"layer": 1, "slot": _native.Slot.q, "order": ints(*range(HIDDEN))},
    "Decoder.set_final_norm": lambda: {"values": floats(HIDDEN)},
    "Decoder.missing": dict,
    "Decoder.new_cache": dict,
    "Decoder.experts_touched": dict,
    "Decoder.forward": lambda: {
        "caches": [kept_cache(), cache_after_a_step()],
        "counts": [2, 1],
        "tokens": ints(1, 2, 3),
        "parents": ints(-1, 0, -1),
        "want": ints(0, 2),
        "logits": True,
        "top": 3,
        "hidden_layers": [-1, 1],
        "hidden_rows": ints(1, 2),
        "timings": True,
    },
    "Decoder.export_matrix": lambda: {"layer": 1, "slot": _native.Slot.down, "expert": -1},
    "Decoder.export_bias": lambda: {"layer": 1, "slot": _native.Slot.q, "expert": -1},
    "Decoder.export_vector": lambda: {"layer": 1, "vector": _native.Vector.mlp_norm},
    "Decoder.export_order": lambda: {"layer": 1, "slot": _native.Slot.down},
    "Decoder.export_lm_head": dict,
    "Decoder.export_lm_head_bias": dict,
    "Decoder.export_embedding": dict,
    "Decoder.export_final_norm": dict,
    "Decoder.isa": dict,
    "Decoder.threads": dict,
    "Decoder.weight_bytes": dict,
}
"""Everything that is bound -> arguments that are right, by the names of their parameters."""


def bound() -> set[str]:
    """The names of everything bound, by introspection."""
    found = set()
    for name, thing in vars(_native).items():
        if inspect.isclass(thing):
            own = {n for n in vars(thing) if not n.startswith("_") or n in ("__init__", "__call__", "__len__")}
            if issubclass(thing, (_native.Slot, _native.Vector)):
                own = {"__init__"}  # a Python enum: its members are no methods
            elif name == "KVCache":
                own -= {"__init__"}  # new_cache and fork make them
            found |= {f"{name}.{n}" for n in own}
        elif callable(thing) and not name.startswith("__"):
            found.add(name)
    return found
