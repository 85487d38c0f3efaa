"""``config.json``: an allow-list of keys, each checked, and nothing else.

Keys that are not listed are dropped, whatever they hold. That includes ``auto_map``, ``custom_pipelines``, everything
that starts with an underscore or ends with ``_internal``: keys like these have made other loaders import code.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from os import PathLike
from pathlib import Path
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
from ipex_lookahead.architectures.keys import LOCAL_THETA, ConfigKeys
from ipex_lookahead.checkpoints.files import BinaryFile
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.safe_json import JsonObject, parse

MAX_BYTES = 1 << 20
MAX_DEPTH = 64

_OUTER = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "tie_word_embeddings")
"""Keys that a model with a text part may say for all of it: that goes before what the part says."""
_DERIVED = ("num_key_value_heads", "head_dim")
_IN_ROPE = ("partial_rotary_factor", LOCAL_THETA)
"""A family's own keys that may stand in the rope object."""
_FLAT = ("rope_type", "type", "rope_theta", *ROPE)
_DTYPES = ("float32", "float16", "bfloat16")

_log = logging.getLogger(__name__)


def read_json(
    path: str | PathLike[str], *, limit: int = MAX_BYTES, max_depth: int = MAX_DEPTH, any_float: bool = True
) -> JsonObject:
    """A JSON file whose top is an object. Raises ModelFormatError; reads nothing of a file larger than ``limit``.

    ``any_float``: see ``safe_json.parse``; what a key may be is its check's to say.
    """
    path = Path(path)
    file = BinaryFile(path)
    try:
        if file.size > limit:
            raise ModelFormatError(path, path.name, None, f"is {file.size} bytes; at most {limit} are read")
        data = file.read(0, file.size, path.name)
    finally:
        file.close()
    value = parse(data, path, path.name, max_depth=max_depth, any_float=any_float)
    if not isinstance(value, JsonObject):
        raise ModelFormatError(path, path.name, 0, "is not a JSON object")
    return value


def checked_config(raw: JsonObject, path: str | PathLike[str]) -> dict[str, Any]:
    """The allow-listed part of a config, with usual values for what is missing, as the family declares it.

    Rope comes out as ``rope_theta`` (float) and ``rope_scaling`` (dict with ``rope_type``, or None), however it is
    spelled; ``dtype`` stands for ``torch_dtype`` too; ids are int, ``eos_token_id`` int or list of int.
    ``tie_word_embeddings`` is None where the parts of a larger model do not agree on it: the tensors decide.
    Raises ModelFormatError, or UnsupportedModelError for an unknown family and for switches that it does not have.
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
    """The part of a config that ``keys`` list, none of which they refuse; see :func:`checked_config`."""
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
        if key in _IN_ROPE and rope.get(key) is not None:  # goes before what stands beside the rope object
            config[key] = check(rope_source, key, rope[key])
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
    """The object that holds a text model's keys, with what the whole says of it as well; its places; and ``undecided``.

    That is so where the whole and its part do not agree on whether the lm_head is the embedding, or only the whole says
    that it is (releases of transformers say so of models that have both). Then the tensors that are there decide.
    ``more``: further keys that the whole says.
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
    """The rope object under either name, {} for none, and a source that knows the places inside it.

    As transformers has it: ``rope_scaling`` goes before ``rope_parameters``, an empty one says nothing, and for yarn
    and llama3 an ``original_max_position_embeddings`` beside it goes before the one inside.
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
        _log.warning("%s: rope_scaling and rope_parameters differ in %s; rope_scaling holds", source.file, differing)
    outside = "original_max_position_embeddings"
    replaced = raw.get(outside) is not None and rope.get("rope_type", rope.get("type")) in (
        "yarn",
        "llama3",
        "longrope",
    )

    def places() -> dict[str, Place]:
        found = _rope_places(source, key, raw.at[key], rope)
        return found | ({f"rope_scaling.{outside}": source.find()[outside]} if replaced else {})

    return {**rope, outside: raw[outside]} if replaced else rope, Source(source.file, places)


def _rope_places(source: Source, key: str, at: int | None, rope: JsonObject) -> dict[str, Place]:
    """Where the keys of a rope object are that stands at ``at`` as ``key``, and all others of the file."""
    inside = {f"rope_scaling.{name}": (f"{key}.{name}", place) for name, place in rope.at.items()}
    theta = {"rope_theta": inside["rope_scaling.rope_theta"]} if rope.get("rope_theta") is not None else {}
    return {**source.find(), "rope_scaling": (key, at), **inside, **theta}


def _layered_rope(raw: JsonObject, source: Source, keys: ConfigKeys) -> tuple[dict[str, Any], Source]:
    """Ropes by kind of layer: that of ``full_attention``, and the base of ``sliding_attention``'s, which is plain."""
    key, kinds = "rope_parameters", ("full_attention", "sliding_attention")
    ropes = raw[key]
    flat = keys.flat_rope and isinstance(ropes, JsonObject) and not {*ropes} & {*kinds}
    # Release 5 writes kinds beside a flat object that it has read and passed over.
    strange = isinstance(ropes, JsonObject) and {*ropes} - {*kinds, *(_FLAT if {*kinds} <= {*ropes} else ())}
    if not isinstance(ropes, JsonObject) or (strange and not flat):
        raise source.error(key, f"is {shown(ropes)}; in this family it must be an object with {' and '.join(kinds)}")
    if raw.get("rope_scaling"):
        raise UnsupportedModelError(f"{source.file}: both {key} and rope_scaling are there; it must be one of them")
    if flat:
        return _flat_rope(raw, key, source, keys)
    for kind in kinds:
        _check_rope_object(JsonObject({f"{key}.{kind}": ropes.get(kind)}), f"{key}.{kind}", source, keys)
    far, near = (ropes.get(kind) or JsonObject() for kind in kinds)
    if (kind := near.get("rope_type", near.get("type", "default"))) != "default":
        raise UnsupportedModelError(
            f"{source.file}: {key}.sliding_attention has rope_type {shown(kind)}; layers with a window have plain rope "
            "here"
        )
    found = dict(far)
    if near.get("rope_theta") is not None:
        found[LOCAL_THETA] = near["rope_theta"]

    def places() -> dict[str, Place]:
        known = _rope_places(source, f"{key}.full_attention", ropes.at.get("full_attention"), far)
        if "rope_theta" in near:
            known[LOCAL_THETA] = (f"{key}.sliding_attention.rope_theta", near.at["rope_theta"])
        return known

    return found, Source(source.file, places)


def _flat_rope(raw: JsonObject, key: str, source: Source, keys: ConfigKeys) -> tuple[dict[str, Any], Source]:
    """One rope for all layers, of which those with a window have the base alone."""
    _check_rope_object(raw, key, source, keys)
    rope: JsonObject = raw[key]
    base = "rope_theta"
    found = {**rope, **({LOCAL_THETA: rope[base]} if rope.get(base) is not None else {})}

    def places() -> dict[str, Place]:
        known = _rope_places(source, key, raw.at[key], rope)
        return known | ({LOCAL_THETA: known[base]} if rope.get(base) is not None else {})

    return found, Source(source.file, places)


def _check_rope_object(raw: JsonObject, key: str, source: Source, keys: ConfigKeys) -> None:
    rope = raw.get(key)
    if rope is None:
        return
    if not isinstance(rope, JsonObject):
        raise source.error(key, f"is {shown(rope)}; it must be an object or null")
    if any(isinstance(value, dict) for value in rope.values()):
        raise UnsupportedModelError(f"{source.file}: {key} differs by kind of layer, which this package cannot run")
    keys.refuse({name: rope[name] for name in ("partial_rotary_factor",) if name in rope}, source)


def _differing(rope: dict[str, Any], other: dict[str, Any]) -> str:
    """The name of a parameter in which two rope objects differ, or "". The kind has two spellings."""
    one, two = ({"rope_type": each.get("type")} | each for each in (rope, other))
    names = sorted((set(one) | set(two)) - {"type"})
    return next((name for name in names if one.get(name) != two.get(name)), "")


def _is_scaled(rope: dict[str, Any]) -> bool:
    """Since version 5 transformers writes ``rope_parameters`` for plain rope too, if only with a theta."""
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
    """The ids of special tokens, checked; those that are not there are left out."""
    found: dict[str, Any] = {}
    for key in ("bos_token_id", "pad_token_id", "eos_token_id"):
        value = raw.get(key)
        if value is None or (key == "pad_token_id" and value == -1):  # the first Llama's way to say "none"
            continue
        if key == "pad_token_id" and type(value) is int and value >= vocab:
            _log.info("%s: %s is %d; the embedding has %d rows, and padding needs none", source.file, key, value, vocab)
            continue
        found[key] = (token_ids if key == "eos_token_id" else token_id)(vocab)(source, key, value)
    return found


def _log_ignored(raw: JsonObject, path: str | PathLike[str]) -> None:
    for key in raw:
        if key.startswith("_") or key.endswith("_internal") or key in ("auto_map", "custom_pipelines"):
            _log.info("%s: %s is ignored: nothing in a checkpoint is ever imported or run", path, key[:60])
