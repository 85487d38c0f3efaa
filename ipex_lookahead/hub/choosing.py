"""Choice of the files of a hub repository that make up a model: only what is needed, no pickles, no code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.files.paths import is_drafter
from ipex_lookahead.hub.names import HubName

GGUF_TYPES = (
    "Q4_0", "Q4_K_M", "Q4_K_S", "Q4_K", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_K", "Q5_0", "Q5_1", "Q8_0", "Q6_K", "IQ4_XS",
    "IQ4_NL", "MXFP4", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q3_K", "Q2_K", "BF16", "F16", "F32", "TQ2_0", "TQ1_0", "Q2_0",
    "Q1_0", "NVFP4", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S",
)  # fmt: skip
"""Supported types in the names of GGUF files, in order of preference; types that must be decoded are last. (_S, _M and
_L are mixtures of the K types; IQ3_M, IQ3_XS and IQ2_M of IQ types.)"""

VISION_TYPES = ("BF16", "F16", "F32", "Q8_0")
"""Types of vision parts, in order of preference: the types of their published weights first."""
WEIGHTS = (".gguf", ".safetensors")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_LISTED = 12
MAX_PARTS = 4096

_WORDS = re.compile(r"tokenizer\.model|merges\.txt|[^/]*\.json|[^/]*\.jinja|README\.md|(LICEN[SC]E|NOTICE)[^/]*", re.I)
"""Files downloaded with the weights: config, tokenizer, chat template, model card and license."""
_MODULE = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")
"""Files of the modules of sentence-transformers: pooling, dense heads and normalization."""
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_TYPE = re.compile(r"(?<![A-Z0-9])(I?Q\d+_[A-Z0-9_]+|TQ\d_\d|BF16|FP?16|FP?32|MXFP4|NVFP4)(?![A-Z0-9])", re.I)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen files of a repository.

    Attributes:
        entry: the model: a GGUF file (the first part of a split one), or the folder (empty for the top).
        files: all files to download.
        said: a message about the choice if there were alternatives, else empty.
    """

    entry: str
    files: tuple[str, ...]
    said: str = ""


def choose(name: HubName, files: Mapping[str, int | None]) -> Choice:
    """Choose the files of a model or an adapter from all files of its repository and their sizes.

    Raises:
        InputError: if the file, or a part of it, does not exist.
        UnsupportedModelError: if there are only pickles or unsupported GGUF types.
    """
    if name.file is not None:
        return _one_gguf(name, name.file, files)
    prefix = f"{name.subfolder}/" if name.subfolder else ""
    here = {path[len(prefix) :]: size for path, size in files.items() if path.startswith(prefix)}
    top = {path: size for path, size in here.items() if "/" not in path}
    if name.subfolder and not here:
        raise InputError(f"{name.repo} has no folder {name.subfolder!r}", hint=_offer(name, files))
    weights = _safetensors(top) if "config.json" in top else []
    if weights:
        words = [path for path in top if _WORDS.fullmatch(path) and not path.endswith(".safetensors.index.json")]
        modules = [path for path in here if "modules.json" in top and _MODULE.fullmatch(path)]
        index = [] if weights == ["model.safetensors"] else [p for p in top if p == "model.safetensors.index.json"]
        return Choice(name.subfolder, tuple(prefix + path for path in sorted({*words, *index, *weights, *modules})))
    if any(path.endswith(".gguf") and not _is_part_of_a_model(path) for path in here):
        return _best_gguf(name, sorted(path for path in _models(files) if path.startswith(prefix)), files)
    if {"adapter_config.json", "adapter_model.safetensors"} <= {*top}:
        words = [path for path in top if _WORDS.fullmatch(path)]
        return Choice(name.subfolder, tuple(prefix + path for path in sorted({*words, "adapter_model.safetensors"})))
    raise _no_model(name, here)


def choose_vision(name: HubName, files: Mapping[str, int | None]) -> Choice:
    """Choose the file with the vision part of a GGUF model: ``mmproj`` in its name, in the model's own folder.

    Of several, the one with the most words of the model's name is chosen, then by type.

    Raises InputError if there is none, and as :func:`choose`.
    """
    model = choose(name, files).entry
    folder, _, own = model.rpartition("/")
    there = [path for path in files if path.rpartition("/")[0] == folder and is_vision_part(path)]
    if not model.endswith(".gguf") or not there:
        raise InputError(f"{name.repo} has no mmproj file with a vision part next to {model or 'its model'}")

    def rank(path: str) -> tuple[int, int, str]:
        kind = type_in(path) or ""
        order = VISION_TYPES.index(kind) if kind in VISION_TYPES else len(VISION_TYPES)
        return -len(_words(path) & _words(own)), order, path

    best = min(there, key=rank)
    return Choice(best, parts_of(best))


def is_vision_part(path: str) -> bool:
    """Return True if the name is that of a GGUF file with a model's vision part, by llama.cpp's convention."""
    return path.endswith(".gguf") and "mmproj" in path.rpartition("/")[2].lower()


def _words(path: str) -> set[str]:
    """Return the words of a file's name without its type, such as ``gemma``, ``4`` and ``e4b``."""
    name = _TYPE.sub("", path.rpartition("/")[2].removesuffix(".gguf"))
    return {word for word in re.split(r"[^a-z0-9]+", name.lower()) if word}


def _safetensors(top: Mapping[str, int | None]) -> list[str]:
    """Return ``model.safetensors`` or the shards, without the copies under other names that some repositories have."""
    if "model.safetensors" in top:
        return ["model.safetensors"]
    if "model.safetensors.index.json" not in top:
        return []
    shards = [path for path in top if _SHARD.fullmatch(path)]
    others = [
        path for path in top if path.endswith(".safetensors") and not path.startswith(("consolidated", "adapter"))
    ]
    return shards or others


def _one_gguf(name: HubName, wanted: str, files: Mapping[str, int | None]) -> Choice:
    if wanted not in files:
        models = _models(files)
        of_type = [path for path in models if type_in(path) == wanted.upper()]
        by_name = [path for path in files if path.endswith(".gguf") and path.rpartition("/")[2] == wanted]
        if len(found := of_type or by_name) != 1:
            held = f"{len(found)} files of type" if found else "no file"
            raise InputError(f"{name.repo} has {held} {wanted!r}", hint=_offer(name, found or files))
        wanted = found[0]
    if wanted.endswith(PICKLES):
        raise _pickled(name, [wanted])
    if not wanted.endswith(".gguf"):
        raise InputError(f"{name.repo}:{wanted} is not a .gguf file", hint=_offer(name, files))
    parts = parts_of(wanted)
    if missing := [path for path in parts if path not in files]:
        raise InputError(
            f"{name.repo}:{wanted} is part of a split file with {len(parts)} parts, and the repository lacks "
            f"{', '.join(missing[:3])}{', ...' if missing[3:] else ''}",
            hint=_offer(name, _models(files)),
        )
    wanted = parts[0]
    kind = type_in(wanted)
    if kind is not None and kind not in GGUF_TYPES:
        raise _unread_types(name, files, f"{name.repo}:{wanted} has type {kind}")
    return Choice(wanted, _with_license(wanted, files))


def _best_gguf(name: HubName, models: list[str], files: Mapping[str, int | None]) -> Choice:
    if len(models) == 1 and (type_in(models[0]) or "F32") in GGUF_TYPES:
        return Choice(models[0], _with_license(models[0], files))
    for kind in GGUF_TYPES:
        fit = sorted((path for path in models if type_in(path) == kind), key=lambda path: len(parts_of(path)))
        if fit:
            said = f"{name.repo} has {len(models)} GGUF files; using {fit[0]}{_size(_bytes_of(fit[0], files))}"
            return Choice(fit[0], _with_license(fit[0], files), said + f"; choose another with {name.repo}:FILE")
    if models and all(type_in(path) is None for path in models):
        raise InputError(f"{name.repo} has {len(models)} GGUF files; choose one", hint=_offer(name, files))
    raise _unread_types(name, files, f"{name.repo} has no complete GGUF file of a supported type")


def _models(files: Iterable[str]) -> list[str]:
    """Return the GGUF models: complete files, and the first part of each complete split file."""
    there = {path for path in files if path.endswith(".gguf") and not _is_part_of_a_model(path)}
    return [path for path in files if path in there and (parts := parts_of(path))[0] == path and there >= {*parts}]


def _is_part_of_a_model(path: str) -> bool:
    """Return True if a GGUF file holds a vision part or a drafting head, by llama.cpp's naming conventions."""
    return "mmproj" in path.lower() or is_drafter(path)


def parts_of(path: str) -> tuple[str, ...]:
    """Return the names of all parts of a split model, given the name of one; other names are returned alone."""
    part = _PART.search(path)
    if part is None or int(part[2]) > MAX_PARTS:
        return (path,)
    model = path[: part.start()]
    return tuple(f"{model}-{number:05}-of-{part[2]}.gguf" for number in range(1, int(part[2]) + 1)) or (path,)


def _bytes_of(path: str, files: Mapping[str, int | None]) -> int:
    return sum(files[part] or 0 for part in parts_of(path))


def _with_license(model: str, files: Mapping[str, int | None]) -> tuple[str, ...]:
    return (
        *parts_of(model),
        *(path for path in files if re.fullmatch(r"README\.md|(LICEN[SC]E|NOTICE)[^/]*", path, re.I)),
    )


def type_in(path: str) -> str | None:
    """Return the GGUF type in a file's name, such as ``Q4_K_M``, or None."""
    found = _TYPE.findall(_PART.sub("", path.rpartition("/")[2]).removesuffix(".gguf"))
    return {"FP16": "F16", "FP32": "F32"}.get(found[-1].upper(), found[-1].upper()) if found else None


def _unread_types(name: HubName, files: Mapping[str, int | None], problem: str) -> UnsupportedModelError:
    fit = [path for path in _models(files) if type_in(path) in GGUF_TYPES]
    hint = (
        f"use {name.repo}:{min(fit, key=lambda p: GGUF_TYPES.index(type_in(p) or ''))}"
        if fit
        else "choose another repository, or convert a file: llama-quantize --allow-requantize FILE.gguf OUT.gguf Q8_0"
    )
    return UnsupportedModelError(f"{problem}; supported types: {', '.join(GGUF_TYPES)}", hint=hint)


def _no_model(name: HubName, here: Mapping[str, int | None]) -> Exception:
    if pickles := [path for path in here if path.endswith(PICKLES) and not path.startswith("training_args")]:
        return _pickled(name, pickles)
    if "adapter_config.json" in here:
        return UnsupportedModelError(f"{name.repo} is an adapter without adapter_model.safetensors")
    if any(path.endswith(".safetensors") for path in here) and "config.json" not in here:
        return UnsupportedModelError(f"{name.repo} has weights but no config.json")
    return InputError(f"{name.repo} has no model: no .gguf file, and no config.json with safetensors")


def _pickled(name: HubName, pickles: list[str]) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{name.repo} stores its weights in {sorted(pickles)[0]}, a pickle; pickles can run code and are not read",
        hint="choose a repository with safetensors or GGUF files",
    )


def _offer(name: HubName, files: Iterable[str] | Mapping[str, int | None]) -> str:
    sizes = files if isinstance(files, Mapping) else dict.fromkeys(files)
    models = sorted(path for path in sizes if path.endswith(".gguf"))
    if not models:
        return f"leave the file out: {name.repo}" if "config.json" in sizes else "see the repository's page"
    shown = ", ".join(f"{path}{_size(sizes[path])}" for path in models[:MAX_LISTED])
    return f"give {name.repo}:FILE with one of {shown}" + (", ..." if models[MAX_LISTED:] else "")


def _size(size: int | None) -> str:
    return f" ({size / 1e6:,.0f} MB)" if size else ""
