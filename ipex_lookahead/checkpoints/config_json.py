"""``config.json``: an allow-list of keys, each of them checked.

All other keys are dropped, including ``auto_map``, ``custom_pipelines``, and everything that starts with an underscore
or ends with ``_internal``: such keys have made other loaders import code.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from os import PathLike
from typing import Any

from ipex_lookahead.architectures import family
from ipex_lookahead.architectures.hparams import (
    ROPE,
    SIZES,
    Place,
    Source,
    boolean,
    check_rope,
    check_rope_complete,
    check_sizes,
    one_of,
    shown,
    text,
    token_id,
    token_ids,
)
from ipex_lookahead.architectures.images import CHECKS, OUTER, SECTIONS, VISION
from ipex_lookahead.architectures.keys import LOCAL_SHARE, LOCAL_THETA, ConfigKeys
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.safe_json import JsonObject, load_object

MAX_BYTES = 1 << 20
MAX_DEPTH = 64

_OUTER = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "tie_word_embeddings")
"""Keys of a multimodal model's top level that take precedence over the same keys of its text part."""
_DERIVED = ("num_key_value_heads", "head_dim")
_IN_ROPE = ("partial_rotary_factor", LOCAL_THETA, LOCAL_SHARE, SECTIONS)
"""Keys of a family that may be located in the rope object."""
_FLAT = ("rope_type", "type", "rope_theta", *ROPE)
_DTYPES = ("float32", "float16", "bfloat16")

_log = logging.getLogger(__name__)


def read_json(
    path: str | PathLike[str], *, limit: int = MAX_BYTES, max_depth: int = MAX_DEPTH, any_float: bool = True
) -> JsonObject:
    """Read a JSON file with an object at its top; nothing is read from a file larger than ``limit`` bytes.

    Args:
        path: the file.
        limit: maximum size in bytes.
        max_depth: maximum nesting.
        any_float: see ``safe_json.parse``.

    Raises:
        ModelFormatError: if the file is too large, unreadable or not a JSON object.
    """
    return load_object(path, limit, max_depth=max_depth, any_float=any_float)


def checked_config(raw: JsonObject, path: str | PathLike[str]) -> dict[str, Any]:
    """Return the allow-listed part of a config, with the family's defaults for missing keys.

    Rope is returned as ``rope_theta`` (float) and ``rope_scaling`` (dict with ``rope_type``, or None), for all
    spellings. ``dtype`` also replaces ``torch_dtype``. ``eos_token_id`` is int or list of int, other ids are int.
    ``tie_word_embeddings`` is None if the parts of a larger model contradict each other, and the tensors decide.

    Raises:
        ModelFormatError: if a value is invalid.
        UnsupportedModelError: if the family or an option is not supported.
    """
    source = Source.of(raw, path)
    if raw.get("model_type") is None:
        raise source.error("model_type", "is missing")
    model_type = text(source, "model_type", raw["model_type"])
    keys = family(model_type, file=str(path)).KEYS
    keys.refuse(raw, source)
    undecided = False
    if keys.inside:
        part = next(iter(keys.parts))
        if not keys.outside or raw.get(keys.inside) is not None:
            raw, source, undecided = inside(raw, keys.inside, source, keys.outer)
            part = one_of(*keys.parts)(source, "model_type", raw.get("model_type") or part)
        keys = keys.parts[part]
        model_type = keys.family or part
        keys.refuse(raw, source)
    config = by_keys(raw, source, keys, model_type)
    if undecided:
        config["tie_word_embeddings"] = None
    _log_ignored(raw, path)
    return config


def by_keys(raw: JsonObject, source: Source, keys: ConfigKeys, model_type: str) -> dict[str, Any]:
    """Return the part of a config that ``keys`` lists, after ``keys.refuse``; see :func:`checked_config`."""
    config: dict[str, Any] = {"model_type": model_type}
    for key in SIZES:
        if raw.get(key) is None and key not in keys.defaults and key not in _DERIVED:
            raise source.error(key, "is missing")
    rope, rope_source = _spelled_rope(raw, source, keys)
    for key in SIZES:
        value = rope.get(key) if key == "rope_theta" and rope.get(key) is not None else raw.get(key)
        if value is not None:
            config[key] = value
    for key, check in keys.used.items():
        if raw.get(key) is not None:
            config[key] = check(source, key, raw[key])
        elif key in raw and key in keys.nullable:
            config[key] = None
        if key in _IN_ROPE and rope.get(key) is not None:  # takes precedence over the same key outside
            config[key] = check(rope_source, key, rope[key])
    if any(raw.get(key) is not None for key in OUTER):  # of a text part that was saved alone
        for key, check in CHECKS.items():
            known = raw.get(key) is not None and key not in (*keys.used, *keys.neutral)
            if known and (key != VISION or "deepstack" in raw[key]):
                config[key] = check(source, key, raw[key])
    for key, value in keys.defaults.items():
        config.setdefault(key, value)
    check_sizes(config, rope_source)
    scaling = rope if _is_scaled(rope) else config.get("rope_scaling")
    config["rope_scaling"] = check_rope(scaling or None, config["rope_theta"], rope_source)
    keys.check(config, source)
    check_rope_complete(config, rope_source)
    config.update(_architectures(raw, source))
    config.update(_dtype(raw, source))
    config.update(read_token_ids(raw, source, config["vocab_size"]))
    return config


def inside(raw: JsonObject, key: str, source: Source, more: Collection[str] = ()) -> tuple[JsonObject, Source, bool]:
    """Return the text part of a multimodal config, merged with keys of the top level.

    Args:
        raw: the whole config.
        key: key of the text part.
        source: the config's source.
        more: further keys of the top level that apply to the text part.

    Returns:
        The merged object, its source, and ``undecided``: True if the top level and the text part contradict each other
        about ``tie_word_embeddings``, or only the top level sets it (some releases of transformers set it for models
        with separate matrices). The tensors decide in this case.
    """
    inner = raw.get(key)
    if not isinstance(inner, JsonObject):
        raise source.error(key, f"is {shown(inner)}; it must be an object")
    tied = "tie_word_embeddings"
    if inner.get(tied) is not None:
        boolean(Source.of(inner, source.file, key), tied, inner[tied])
    whole, part = raw.get(tied), inner.get(tied)
    undecided = part is not whole if part is not None and whole is not None else whole is True
    outer = {name: raw[name] for name in (*_OUTER, *more) if raw.get(name) is not None}

    def places() -> dict[str, Place]:
        inside = {name: (f"{key}.{name}", at) for name, at in inner.at.items()}
        return inside | {name: (name, raw.at.get(name)) for name in outer}

    text_model = JsonObject({**inner, **outer}, inner._text, inner._number)
    return text_model, Source(source.file, places), undecided


def _spelled_rope(raw: JsonObject, source: Source, keys: ConfigKeys) -> tuple[dict[str, Any], Source]:
    """Return the rope object under either name, {} if there is none, and a source that knows its keys' places.

    As in transformers, ``rope_scaling`` takes precedence over ``rope_parameters``, an empty object is ignored, and for
    yarn, llama3 and longrope an ``original_max_position_embeddings`` outside replaces the one inside.
    """
    if LOCAL_THETA in keys.used and raw.get("rope_parameters"):
        return _layered_rope(raw, source, keys)
    spellings = ("rope_scaling", "rope_parameters")
    for key in spellings:
        _check_rope_object(raw, key, source, keys)
    given = [key for key in spellings if raw.get(key)]
    if not given:
        return {}, source
    key = given[0]
    rope: JsonObject = raw[key]
    if len(given) == 2 and (differing := _differing(rope, raw["rope_parameters"])):
        _log.warning("%s: rope_scaling and rope_parameters differ in %s; using rope_scaling", source.file, differing)
    outside = "original_max_position_embeddings"
    replaced = raw.get(outside) is not None and rope.get("rope_type", rope.get("type")) in (
        "yarn",
        "llama3",
        "longrope",
    )

    def places() -> dict[str, Place]:
        found = _rope_places(source, key, raw.at.get(key), rope)
        return found | ({f"rope_scaling.{outside}": source.find()[outside]} if replaced else {})

    return {**rope, outside: raw[outside]} if replaced else rope, Source(source.file, places)


def _rope_places(source: Source, key: str, at: int | None, rope: JsonObject) -> dict[str, Place]:
    """Return the places of a rope object's keys, the object being located at ``at`` as ``key``, and of all others."""
    inside = {f"rope_scaling.{name}": (f"{key}.{name}", rope.at.get(name)) for name in rope}
    theta = {"rope_theta": inside["rope_scaling.rope_theta"]} if rope.get("rope_theta") is not None else {}
    return {**source.find(), "rope_scaling": (key, at), **inside, **theta}


def _layered_rope(raw: JsonObject, source: Source, keys: ConfigKeys) -> tuple[dict[str, Any], Source]:
    """Return the rope of ``full_attention`` layers with the base of ``sliding_attention`` layers, which is unscaled."""
    key, kinds = "rope_parameters", ("full_attention", "sliding_attention")
    ropes = raw[key]
    flat = keys.flat_rope and isinstance(ropes, JsonObject) and not {*ropes} & {*kinds}
    # transformers 5 also writes the kinds next to the keys of a flat object.
    strange = isinstance(ropes, JsonObject) and {*ropes} - {*kinds, *(_FLAT if {*kinds} <= {*ropes} else ())}
    if not isinstance(ropes, JsonObject) or (strange and not flat):
        raise source.error(key, f"is {shown(ropes)}; in this family it must be an object with {' and '.join(kinds)}")
    if raw.get("rope_scaling"):
        raise UnsupportedModelError(f"{source.file}: has both {key} and rope_scaling; remove one of them")
    if flat:
        return _flat_rope(raw, key, source, keys)
    for kind in kinds:
        _check_rope_object(JsonObject({f"{key}.{kind}": ropes.get(kind)}), f"{key}.{kind}", source, keys)
    far, near = (ropes.get(kind) or JsonObject() for kind in kinds)
    if (kind := near.get("rope_type", near.get("type", "default"))) != "default":
        raise UnsupportedModelError(
            f"{source.file}: {key}.sliding_attention has rope_type {shown(kind)}; layers with a window must have the"
            " default rope"
        )
    found = dict(far)
    if near.get("rope_theta") is not None:
        found[LOCAL_THETA] = near["rope_theta"]
    if LOCAL_SHARE in keys.used:  # without a part in its object a rope is of whole heads
        share = "partial_rotary_factor"
        found |= {share: far.get(share, 1.0), LOCAL_SHARE: near.get(share, 1.0)}

    def places() -> dict[str, Place]:
        known = _rope_places(source, f"{key}.full_attention", ropes.at.get("full_attention"), far)
        if "rope_theta" in near:
            known[LOCAL_THETA] = (f"{key}.sliding_attention.rope_theta", near.at.get("rope_theta"))
        return known

    return found, Source(source.file, places)


def _flat_rope(raw: JsonObject, key: str, source: Source, keys: ConfigKeys) -> tuple[dict[str, Any], Source]:
    """Return one rope for all layers; layers with a window use only its base."""
    _check_rope_object(raw, key, source, keys)
    rope: JsonObject = raw[key]
    base = "rope_theta"
    found = {**rope, **({LOCAL_THETA: rope[base]} if rope.get(base) is not None else {})}

    def places() -> dict[str, Place]:
        known = _rope_places(source, key, raw.at.get(key), rope)
        return known | ({LOCAL_THETA: known[base]} if rope.get(base) is not None else {})

    return found, Source(source.file, places)


def _check_rope_object(raw: JsonObject, key: str, source: Source, keys: ConfigKeys) -> None:
    rope = raw.get(key)
    if rope is None:
        return
    if not isinstance(rope, JsonObject):
        raise source.error(key, f"is {shown(rope)}; it must be an object or null")
    if any(isinstance(value, dict) for value in rope.values()):
        raise UnsupportedModelError(f"{source.file}: {key} differs by layer type, which is not supported")
    keys.refuse({name: rope[name] for name in ("partial_rotary_factor",) if name in rope}, source)


def _differing(rope: dict[str, Any], other: dict[str, Any]) -> str:
    """Return the name of a parameter in which two rope objects differ, or ""; the type has two spellings."""
    one, two = ({"rope_type": each.get("type")} | each for each in (rope, other))
    names = sorted((set(one) | set(two)) - {"type"})
    return next((name for name in names if one.get(name) != two.get(name)), "")


def _is_scaled(rope: dict[str, Any]) -> bool:
    """Return True if there is more than a base: transformers 5 writes ``rope_parameters`` for unscaled rope as well."""
    return bool(set(rope) - {"rope_theta", *_IN_ROPE})


def _architectures(raw: JsonObject, source: Source) -> dict[str, Any]:
    names = raw.get("architectures")
    if names is None:
        return {}
    if not isinstance(names, list) or len(names) > 16:
        raise source.error("architectures", f"is {shown(names)}; it must be a short list of strings")
    return {"architectures": [text(source, "architectures", name) for name in names]}


def _dtype(raw: JsonObject, source: Source) -> dict[str, Any]:
    key = "dtype" if raw.get("dtype") is not None else "torch_dtype"
    if raw.get(key) is None:
        return {}
    name = text(source, key, raw[key]).removeprefix("torch.")
    return {"dtype": name} if name in _DTYPES else {}


def read_token_ids(raw: JsonObject, source: Source, vocab: int) -> dict[str, Any]:
    """Return the ids of special tokens that are present, checked."""
    found: dict[str, Any] = {}
    for key in ("bos_token_id", "pad_token_id", "eos_token_id"):
        value = raw.get(key)
        if value is None or (key == "pad_token_id" and value == -1):  # the first Llama's way to say "none"
            continue
        if key == "pad_token_id" and type(value) is int and value >= vocab:
            _log.info("%s: %s is %d; the embedding has %d rows; it is not needed", source.file, key, value, vocab)
            continue
        found[key] = (token_ids if key == "eos_token_id" else token_id)(vocab)(source, key, value)
    return found


def _log_ignored(raw: JsonObject, path: str | PathLike[str]) -> None:
    for key in raw:
        if key.startswith("_") or key.endswith("_internal") or key in ("auto_map", "custom_pipelines"):
            _log.info("%s: ignoring %s: nothing in a checkpoint is ever imported or run", path, key[:60])
