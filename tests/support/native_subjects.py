"""An object of every class bound in ``_native``, in every state, and for everything bound arguments that are right.

The file has more than 500 lines because it has a row for everything that is bound.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ipex_lookahead import _native
from ipex_lookahead.architectures.spec import (
    Activation,
    Candidates,
    FeatureInputs,
    Linear,
    Norm,
    Place,
    Tensor,
    named_tensors,
)
from tests.engines.native.test_encoder import encoder_spec, inputs, read
from tests.engines.native.test_text_encoder import VOCAB as TEXT_VOCAB
from tests.engines.native.test_text_encoder import bert
from tests.support.specs import make_spec

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


SIZES: dict[str, Any] = {
    "layers": 2, "hidden": HIDDEN, "intermediate": 64, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": VOCAB,
    "context": CONTEXT,
}  # fmt: skip


def decoder_arguments(**switches: Any) -> dict[str, Any]:
    return {"spec": make_spec(**SIZES, **switches), "threads": 2, "isa": "", "kv_format": "fp16"}


def unset_decoder(**switches: Any) -> Any:
    return _native.Decoder(*decoder_arguments(**switches).values())


def whole_decoder(**switches: Any) -> Any:
    decoder = unset_decoder(**switches)
    for name, tensor in named_tensors(make_spec(**SIZES, **switches)):
        if not tensor.is_matrix:
            decoder.set_vector(name, floats(*tensor.shape))
        else:
            in_floats = name == "embedding" or ".router." in name
            decoder.set_matrix(name, *(fp32 if in_floats else asym_int4)(*tensor.shape))
    return decoder


MIXTURE: dict[str, Any] = {
    "window": 5, "softcap": 3.0, "sinks": True, "q_norm": "head", "k_norm": "whole", "mixer_after": True,
    "feed_forward_after": True, "experts": 3, "used": 2, "residual_multiplier": 0.5,
    "activation": Activation("gelu_tanh"), "logit_softcap": 2.0, "embedding_multiplier": 3.0, "bias": "r",
}  # fmt: skip
"""Every switch on: a mixture of experts, windows, sinks, norms of every kind, caps."""


def matrix(name: str, *shape: int) -> Tensor:
    place = Place(name, shape)
    return Tensor(name, shape, place, place)


def filled(decoder: Any, spec: Any) -> Any:
    for name, tensor in named_tensors(spec):
        if name == "candidates.ordering":
            continue
        if not tensor.is_matrix:
            decoder.set_vector(name, floats(*tensor.shape))
        else:
            decoder.set_matrix(name, *fp32(*tensor.shape))
    return decoder


def reading_decoder(target: Any) -> Any:
    """A drafting head whose rows are half as wide as the target's, whose keys it has, with a few candidates."""
    spec = make_spec(**{**SIZES, "hidden": HIDDEN // 2})

    def reads(block: Any) -> Any:
        return replace(block, mixer=replace(block.mixer, k=None, v=None, k_norm=None, shared=1))

    spec = replace(
        spec,
        embedding=matrix("embedding", VOCAB, HIDDEN),
        features=FeatureInputs(
            width=HIDDEN,
            project=Linear(matrix("project", HIDDEN // 2, 2 * HIDDEN)),
            back=Linear(matrix("back", HIDDEN, HIDDEN // 2)),
        ),
        layers=tuple(map(reads, spec.layers)),
        candidates=Candidates(
            used=1, centroids=Linear(matrix("centroids", 2, HIDDEN // 2)), ordering=matrix("ordering", 32)
        ),
        head=Linear(matrix("head", 32, HIDDEN // 2)),
        target_keys=True,
    )
    return filled(_native.Decoder(spec, 2, "", "fp16", target), spec)


def head_decoder(keep_embedding: bool = False) -> Any:
    """A drafting head, with one or two hidden states as features; with two, the embedding is kept for attention."""

    def norm(name: str) -> Norm:
        return Norm(matrix(name, HIDDEN), 1e-5)

    features = FeatureInputs(
        width=2 * HIDDEN if keep_embedding else HIDDEN,
        layers=(1, 2) if keep_embedding else (-1,),
        feeds_back=2 if keep_embedding else -1,
        keep_embedding=keep_embedding,
        after=norm("after") if keep_embedding else None,
        embedding_norm=norm("one"),
        norms=(norm("other"), norm("third")) if keep_embedding else (norm("other"),),
        project=Linear(matrix("project", HIDDEN, 2 * HIDDEN)),
    )
    spec = replace(make_spec(**SIZES), features=features)
    if keep_embedding:
        wide = {x: Linear(matrix(f"wide {x}", n, 2 * HIDDEN)) for x, n in (("q", 32), ("k", 16), ("v", 16))}
        first = replace(spec.layers[0], mixer=replace(spec.layers[0].mixer, **wide, with_embedding=True))
        spec = replace(spec, layers=(first, *spec.layers[1:]))
    return filled(_native.Decoder(spec, 2, "", "fp16"), spec)


DECODERS = {
    "whole": whole_decoder(),
    "other": whole_decoder(),
    "mixture": whole_decoder(**MIXTURE),
    "head": head_decoder(),
    "keep_embedding": head_decoder(keep_embedding=True),
}
DECODERS["reads"] = reading_decoder(DECODERS["whole"])


def cache_after_a_step() -> Any:
    cache = DECODERS["whole"].new_cache()
    DECODERS["whole"].forward([cache], [3], [], ints(1, 2, 3), ints(-1, 0, 0), None, False, 1, [], None, False)
    return cache


def kept_cache() -> Any:
    cache = cache_after_a_step()
    cache.keep([0, 2])
    return cache


def followed_cache(head: str = "head") -> Any:
    """One that holds three positions, and what a head needs of them."""
    cache = DECODERS["whole"].new_cache()
    cache.follow(DECODERS[head])
    DECODERS["whole"].forward([cache], [3], [], ints(1, 2, 3), ints(-1, 0, 1), None, False, 1, [], None, False)
    cache.keep([0, 1, 2])
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

EXPERTS = "layers.1.feed_forward.experts"


def mixture() -> Any:
    """Return the feed-forward of a mixture's layer, with biases: 3 experts, 2 per row."""
    return make_spec(**SIZES, experts=3, used=2, bias="gud").layers[1].feed_forward


def unset_experts() -> Any:
    return _native.RoutedExperts([None, mixture()], HIDDEN, 2)


def whole_experts() -> Any:
    made = unset_experts()
    for name, tensor in named_tensors(mixture().experts, EXPERTS):
        if tensor.is_matrix:
            made.set_matrix(name, *asym_int4(*tensor.shape))
        else:
            made.set_vector(name, floats(*tensor.shape))
    return made


def ids(rows: int, used: int) -> Any:
    return np.tile(np.arange(used, dtype=np.int32), (rows, 1))


def page_images() -> tuple[Any, Any]:
    """Return the image of a cache with 64 positions: its page, and the rest."""
    cache = DECODERS["whole"].new_cache()
    tokens = np.arange(64, dtype=np.int32) % VOCAB
    DECODERS["whole"].forward(
        [cache], [64], [], tokens, np.arange(-1, 63, dtype=np.int32), None, False, 1, [], None, False
    )
    cache.keep([*range(64)])
    return cache.export_pages(0, 64), cache.export_state()


PAGE_IMAGE, STATE_IMAGE = page_images()


def cache_with_pages() -> Any:
    cache = DECODERS["whole"].new_cache()
    cache.import_pages(0, 64, PAGE_IMAGE)
    return cache


def changes() -> list[Any]:
    """Of an adapter of rank 3."""
    return [("layers.1.mixer.q.weight", floats(3, HIDDEN), floats(HIDDEN, 3), 0.5)]


def unset_encoder() -> Any:
    return _native.Encoder(encoder_spec(), 2, "")


def whole_encoder(spec: Any = None) -> Any:
    spec = spec or encoder_spec()
    made = _native.Encoder(spec, 2, "")
    for name, tensor in spec.named_tensors():
        values = read(tensor).codes
        if tensor.is_matrix:
            made.set_matrix(name, "fp32", *tensor.shape, 0, values, None, None)
        else:
            made.set_vector(name, values.reshape(-1))
    return made


ENCODER, TEXT_ENCODER = whole_encoder(), whole_encoder(bert())


def encoder_pass(slices: int = 0) -> Any:
    made = _native.EncoderPass(ENCODER, *inputs(5))
    for _ in range(slices):
        made.advance(2, 1)
    return made


SUBJECTS: dict[str, dict[str, Callable[[], Any]]] = {
    "Adapter": {"made": lambda: DECODERS["whole"].load_adapter(changes())},
    "Decoder": {
        "whole": lambda: DECODERS["whole"],
        "unset": unset_decoder,
        "mixture": lambda: DECODERS["mixture"],
        "head": lambda: DECODERS["head"],
        "keep_embedding": lambda: DECODERS["keep_embedding"],
        "reads": lambda: DECODERS["reads"],
    },
    "Cache": {
        "empty": lambda: DECODERS["whole"].new_cache(),
        "stepped": cache_after_a_step,
        "kept": kept_cache,
        "imported": cache_with_pages,
        "followed": lambda: followed_cache(),
    },
    "Encoder": {"whole": whole_encoder, "unset": unset_encoder},
    "EncoderPass": {"begun": encoder_pass, "inside": lambda: encoder_pass(1), "done": lambda: encoder_pass(4)},
    "LinearLayer": {"made": layer},
    "LinearPool": {"made": pool},
    "RoutedExperts": {"whole": whole_experts, "unset": unset_experts},
    "Predictor": {"begun": predictor, "fresh": lambda: _native.Predictor(2, 8, None)},
    "SuffixTrie": {"filled": trie, "empty": lambda: _native.SuffixTrie(1)},
}
"""Class -> state -> how to make one; every class also comes without its constructor having run."""

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
    "quantize": named(
        "format values kind importance searched size numbers whole tries step_limit code_of largest "
        "codes scales minimums threads lanes",
        quantize_arguments,
    ),
    "sample": named(
        "logits temperature top_k top_p min_p seed sequence position",
        lambda: (np.linspace(-1, 1, 200, dtype=np.float32), 0.8, 50, 0.9, 0.01, 7, 0, 3),
    ),
    "lead": named(
        "logits temperature seed sequence position token",
        lambda: (np.linspace(-1, 1, 200, dtype=np.float32), 0.8, 7, 0, 3, 9),
    ),
    "rope_tables": lambda: {"rope": make_spec().layers[0].mixer.rope, "positions": 3},
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
    "SuffixTrie.extend_all": lambda: {"tokens": ints(1, 2, 3), "lengths": ints(1, 2)},
    "SuffixTrie.reserve": lambda: {"nodes": 100},
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
    "Cache.length": dict,
    "Cache.keep": lambda: {"rows": [0, 2]},
    "Cache.crop": lambda: {"length": 1},
    "Cache.fork": dict,
    "Cache.checkpoint": dict,
    "Cache.bytes": dict,
    "Cache.follow": lambda: {"head": DECODERS["head"]},
    "Cache.allow_tokens": lambda: {"tokens": ints(1, 2)},
    "Cache.end_draft": dict,
    "Cache.state_bytes": dict,
    "Cache.fill_blank": lambda: {"length": 5},
    "Cache.export_pages": lambda: {"first": 0, "last": 2},
    "Cache.export_state": dict,
    "Cache.import_pages": named("first last data", lambda: (0, 64, PAGE_IMAGE.copy())),
    "Cache.import_state": named("length data", lambda: (64, STATE_IMAGE.copy())),
    "Decoder.__init__": lambda: {**decoder_arguments(), "target": None},
    "Decoder.set_matrix": named(f"name {STREAMS}", lambda: ("layers.1.mixer.q.weight", *asym_int4(32, 32))),
    "Decoder.set_vector": lambda: {"name": "layers.1.feed_forward_norm.weight", "values": floats(HIDDEN)},
    "Decoder.set_order": lambda: {"name": "layers.1.mixer.q.weight", "order": ints(*range(HIDDEN))},
    "Decoder.missing": dict,
    "Decoder.new_cache": dict,
    "Decoder.experts_touched": dict,
    "Decoder.forward": lambda: {
        "caches": [kept_cache(), cache_after_a_step()],
        "counts": [2, 1],
        "settled": [1, -1],
        "tokens": ints(1, 2, 3),
        "parents": ints(-1, 0, -1),
        "want": ints(0, 2),
        "logits": True,
        "top": 3,
        "hidden_layers": [-1, 1],
        "hidden_rows": ints(1, 2),
        "timings": True,
        "features": None,
        "own_features": False,
        "adapters": [DECODERS["whole"].load_adapter(changes()), None],
        "adapter_scales": [0.5, 1.0],
        "offsets": [-1, 0],
        "images": (
            ints(0, -1, -1).reshape(3, 1),
            floats(1, HIDDEN),
            [floats(1, HIDDEN)],
            np.full((3, 3), 1, np.int32),
            ints(1, -1, -1).reshape(3, 1),
        ),
    },
    "Decoder.load_adapter": lambda: {"changes": changes()},
    "Adapter.bytes": dict,
    "Decoder.draft": lambda: {
        "cache": followed_cache(),
        "last": 2,
        "copied": [3],
        "max_tokens": 3,
        "rates": [0.1, 0.9],
        "min_chance": 0.0,
        "ends": [7],
        "draw": (0.8, 5, 0.9, 0.0, 7, 1, 4),
    },
    "Decoder.draft_step": lambda: {"cache": followed_cache(), "token": 2, "first": True},
    "Decoder.set_outputs": lambda: {"tokens": ints(*range(VOCAB))},
    "Decoder.set_whole_head": named(STREAMS, lambda: fp32(VOCAB, HIDDEN)),
    "Decoder.share_whole_head": lambda: {"other": DECODERS["other"], "theirs": "embedding"},
    "Decoder.share_matrix": lambda: {
        "name": "layers.1.mixer.q.weight",
        "other": DECODERS["other"],
        "theirs": "layers.1.mixer.q.weight",
    },
    "Decoder.export_matrix": lambda: {"name": "layers.1.feed_forward.down.weight"},
    "Decoder.export_vector": lambda: {"name": "layers.1.feed_forward_norm.weight"},
    "Decoder.cache_bytes_per_position": dict,
    "Decoder.cache_state_bytes": dict,
    "Decoder.isa": dict,
    "Decoder.threads": dict,
    "Decoder.weight_bytes": dict,
    "Encoder.__init__": lambda: {"spec": encoder_spec(), "threads": 2, "isa": ""},
    "Encoder.slice_rows": dict,
    "Encoder.missing": dict,
    "Encoder.chain": lambda: {"number": 0, "x": floats(3, 70)},
    "Encoder.set_matrix": named(f"name {STREAMS}", lambda: ("layers.1.mixer.k.weight", *fp32(48, 40))),
    "Encoder.set_vector": lambda: {"name": "layers.1.mixer.k.bias", "values": floats(48)},
    "Encoder.export_matrix": lambda: {"name": "layers.1.mixer.k.weight"},
    "Encoder.export_vector": lambda: {"name": "layers.1.mixer.k.bias"},
    "Encoder.isa": dict,
    "Encoder.threads": dict,
    "Encoder.weight_bytes": dict,
    "EncoderPass.__init__": named("encoder x cos sin", lambda: (ENCODER, *inputs(5))),
    "EncoderPass.texts": lambda: {
        "encoder": TEXT_ENCODER,
        "tokens": np.arange(6, dtype=np.int32) % TEXT_VOCAB,
        "lengths": np.array([1, 5], np.int32),
        "types": np.array([0, 1, 0, 1, 0, 1], np.int32),
    },
    "EncoderPass.advance": lambda: {"until": 2, "work": 1},
    "EncoderPass.layer": dict,
    "EncoderPass.rows": lambda: {"encoder": ENCODER},
    "RoutedExperts.__init__": lambda: {"layers": [None, mixture()], "hidden": HIDDEN, "threads": 2, "isa": ""},
    "RoutedExperts.__call__": named("layer x experts weights", lambda: (1, floats(3, HIDDEN), ids(3, 2), floats(3, 2))),
    "RoutedExperts.set_matrix": named(
        f"name {STREAMS}", lambda: (f"{EXPERTS}.0.down.weight", *asym_int4(HIDDEN, SIZES["intermediate"]))
    ),
    "RoutedExperts.set_vector": lambda: {"name": f"{EXPERTS}.0.down.bias", "values": floats(HIDDEN)},
    "RoutedExperts.export_matrix": lambda: {"name": f"{EXPERTS}.0.down.weight"},
    "RoutedExperts.export_vector": lambda: {"name": f"{EXPERTS}.0.down.bias"},
    "RoutedExperts.isa": dict,
    "RoutedExperts.threads": dict,
    "RoutedExperts.weight_bytes": dict,
}
"""Everything that is bound -> arguments that are right, by the names of their parameters."""


def bound() -> set[str]:
    """The names of everything bound, by introspection."""
    found = set()
    for name, thing in vars(_native).items():
        if inspect.isclass(thing):
            own = {n for n in vars(thing) if not n.startswith("_") or n in ("__init__", "__call__", "__len__")}
            if name in ("Adapter", "Cache"):
                own -= {"__init__"}  # load_adapter, new_cache and fork make them
            found |= {f"{name}.{n}" for n in own}
        elif callable(thing) and not name.startswith("__"):
            found.add(name)
    return found
