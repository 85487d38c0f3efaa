"""What the files of a model state about vectors: pooling, dense layers, prompts, lengths.

Folders have the form of sentence-transformers, of its early and its current releases. No class that a file names is
imported: modules are known by the last part of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from ipex_lookahead.architectures.hparams import shown
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.safe_json import JsonObject, parse, read_file

MODULES = "modules.json"
MAX_BYTES = 1 << 20
MAX_MODULES = 32
MAX_WIDTH = 1 << 20
MAX_PROMPT = 1 << 16
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""Poolings by sentence-transformers' names; vectors of several are joined in this order."""
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
"""Activations of dense layers, by PyTorch's class."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A dense layer after pooling.

    Attributes:
        path: folder of its ``model.safetensors``.
        inputs: width of its input.
        outputs: width of its output.
        bias: whether it has one.
        activation: one of ``ACTIVATIONS``.
    """

    path: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class Settings:
    """How rows become a vector.

    Attributes:
        modes: poolings, names of ``MODES``; empty: the files state none.
        include_prompt: whether pooling includes the prompt's rows.
        dense: layers after pooling.
        normalize: whether vectors have length 1; None: the files do not say.
        max_length: largest number of tokens of a text; None: the files do not say.
        lowercase: whether texts are lowercased first.
        prompts: name of a task -> text before a text.
        default_prompt: name of the prompt without a task; None: no prompt.
        dimensions: length that vectors are cut to; None: not cut.
        similarity: "cosine", "dot", or another name of sentence-transformers; None: not stated.
        weights: folder with the model's weights.
        yes: id of the token that means relevant, in a reranker made of a text model; None: not stated.
        no: id of the token that means irrelevant.
    """

    modes: tuple[str, ...] = ()
    include_prompt: bool = True
    dense: tuple[DenseLayer, ...] = ()
    normalize: bool | None = None
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    dimensions: int | None = None
    similarity: str | None = None
    weights: Path = Path()
    yes: int | None = None
    no: int | None = None


def folder_settings(folder: str | PathLike[str]) -> Settings | None:
    """Return the settings of a folder; None if it has no ``modules.json``.

    Raises:
        ModelFormatError: a file is damaged or contradicts another one.
        UnsupportedModelError: a module that is not supported, by name.
    """
    path = Path(folder)
    if not (path / MODULES).is_file():
        return None
    return _Folder(path).settings()


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def settings(self) -> Settings:
        found: dict[str, Any] = {"normalize": False, "weights": self.path}
        dense: list[DenseLayer] = []
        for name, folder in self.modules():
            if name == "Transformer":
                found["weights"] = folder
                found |= self.transformer(folder)
            elif name == "Pooling":
                found |= self.pooling(folder / "config.json")
            elif name == "Dense":
                dense.append(self.dense(folder))
            elif name == "Normalize":
                found["normalize"] = True
            elif name == "LogitScore":
                found |= self.logit_score(folder / "config.json")
            else:
                raise UnsupportedModelError(
                    f"{self.path / MODULES}: has a module {name}; supported are Transformer, Pooling, Dense, Normalize"
                    " and LogitScore",
                    hint="choose a model with these modules; `ipex-lookahead pull` lists recommended ones",
                )
            if found["normalize"] and name == "Dense":
                raise UnsupportedModelError(f"{self.path / MODULES}: has a Dense module after Normalize")
        return Settings(dense=tuple(dense), **found, **self.prompts())

    def modules(self) -> list[tuple[str, Path]]:
        """Return the class and the folder of each module, in order."""
        file = self.path / MODULES
        entries = parse(read_file(file, MAX_BYTES), file)
        if not isinstance(entries, list) or not 0 < len(entries) <= MAX_MODULES:
            raise ModelFormatError(file, MODULES, 0, f"must be an array of 1 to {MAX_MODULES} modules")
        found = []
        for number, entry in enumerate(entries):
            kind = entry.get("type") if isinstance(entry, JsonObject) else None
            where = entry.get("path", "") if isinstance(entry, JsonObject) else None
            if not isinstance(kind, str) or not isinstance(where, str):
                raise ModelFormatError(file, f"module {number}", None, "must be an object with a type and a path")
            if Path(where).is_absolute() or ".." in Path(where).parts:
                raise ModelFormatError(file, f"module {number}", None, f"path {where[:80]!r} leaves the folder")
            found.append((kind.rpartition(".")[2], self.path / where))
        return found

    def transformer(self, folder: Path) -> dict[str, Any]:
        names = (
            "sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json",
            "sentence_camembert_config.json", "sentence_albert_config.json", "sentence_xlm-roberta_config.json",
            "sentence_xlnet_config.json",
        )  # fmt: skip
        file = next((folder / name for name in names if (folder / name).is_file()), None)
        if file is None:
            return {}
        raw = read_json(file)
        return {
            "max_length": _whole(file, raw, "max_seq_length", 1, 1 << 30),
            "lowercase": _of_kind(file, raw, "do_lower_case", bool) or False,
        }

    def pooling(self, file: Path) -> dict[str, Any]:
        raw = read_json(file)
        given = raw.get("pooling_mode")
        if given is None:
            old = [mode for key, mode in _OLD_MODES.items() if _of_kind(file, raw, key, bool)]
            given = old or ["mean"]
        modes = [given] if isinstance(given, str) else given
        if not isinstance(modes, list) or not modes or len(modes) > len(MODES) or not all(m in MODES for m in modes):
            raise ModelFormatError(
                file, "pooling_mode", raw.at.get("pooling_mode"), f"is {shown(given)}; choose from {', '.join(MODES)}"
            )
        include = _of_kind(file, raw, "include_prompt", bool)
        return {"modes": tuple(modes), "include_prompt": include is not False}

    def dense(self, folder: Path) -> DenseLayer:
        file = folder / "config.json"
        raw = read_json(file)
        sizes = [_whole(file, raw, key, 1, MAX_WIDTH) for key in ("in_features", "out_features")]
        if sizes[0] is None or sizes[1] is None:
            raise ModelFormatError(file, "in_features", None, "or out_features is missing")
        named = _of_kind(file, raw, "activation_function", str) or "torch.nn.modules.activation.Tanh"
        activation = named.rpartition(".")[2]
        if activation not in ACTIVATIONS:
            raise UnsupportedModelError(
                f"{file}: activation_function is {shown(named)}; supported are {', '.join(ACTIVATIONS)}"
            )
        if raw.get("use_residual"):
            raise UnsupportedModelError(f"{file}: use_residual is true, which is not supported")
        names = [raw.get(key) or "sentence_embedding" for key in ("module_input_name", "module_output_name")]
        if names != ["sentence_embedding"] * 2:
            raise UnsupportedModelError(
                f"{file}: the layer reads {shown(names[0])} and writes {shown(names[1])}; only layers of the pooled"
                " vector, sentence_embedding, are supported"
            )
        return DenseLayer(folder, sizes[0], sizes[1], _of_kind(file, raw, "bias", bool) is not False, activation)

    def logit_score(self, file: Path) -> dict[str, Any]:
        raw = read_json(file)
        yes, no = (_whole(file, raw, key, 0, 1 << 31) for key in ("true_token_id", "false_token_id"))
        if yes is None or no is None:
            raise UnsupportedModelError(f"{file}: true_token_id or false_token_id is missing; both are needed")
        return {"yes": yes, "no": no}

    def prompts(self) -> dict[str, Any]:
        """Return the settings in ``config_sentence_transformers.json``."""
        file = self.path / "config_sentence_transformers.json"
        if not file.is_file():
            return {}
        raw = read_json(file)
        given = raw.get("prompts")
        given = JsonObject() if given is None else given
        if not isinstance(given, JsonObject) or len(given) > 1000:
            raise ModelFormatError(file, "prompts", raw.at.get("prompts"), "must be an object of texts")
        prompts = {}
        for name, text in given.items():
            if text is not None and (not isinstance(text, str) or len(text) > MAX_PROMPT):
                raise ModelFormatError(
                    file, f"prompts.{name[:40]}", given.at.get(name), f"must be text of up to {MAX_PROMPT} characters"
                )
            if text is not None:
                prompts[name] = text
        default = _of_kind(file, raw, "default_prompt_name", str)
        if default is not None and default not in given:
            raise ModelFormatError(
                file, "default_prompt_name", raw.at["default_prompt_name"], f"is {shown(default)}, which has no prompt"
            )
        return {
            "prompts": prompts,
            "default_prompt": default,
            "dimensions": _whole(file, raw, "truncate_dim", 1, MAX_WIDTH),
            "similarity": _of_kind(file, raw, "similarity_fn_name", str),
        }


def _whole(file: Path, raw: JsonObject, key: str, least: int, most: int) -> int | None:
    value = _of_kind(file, raw, key, int)
    if value is not None and not least <= value <= most:
        raise ModelFormatError(file, key, raw.at.get(key), f"is {value}; it must be {least} to {most}")
    return value


def _of_kind(file: Path, raw: JsonObject, key: str, kind: type[Value]) -> Value | None:
    value = raw.get(key)
    if value is not None and type(value) is not kind:
        raise ModelFormatError(file, key, raw.at.get(key), f"is {shown(value)}; it must be {kind.__name__}")
    return value


# ---- GGUF ------------------------------------------------------------------------------------------------------------

POOLING_TYPES: tuple[tuple[str, ...], ...] = ((), ("mean",), ("cls",), ("lasttoken",), ())
"""Poolings by number in GGUF files: none, mean, cls, last, and rank (a classifier instead of a vector)."""
RANK = 4

QWEN_TASK = "Given a web search query, retrieve relevant passages that answer the query"
_PROMPTS: Mapping[str, Mapping[str, str]] = {
    "qwen3": {"query": f"Instruct: {QWEN_TASK}\nQuery:", "document": ""},
    "gemma-embedding": {"query": "task: search result | query: ", "document": "title: none | text: "},
    "nomic-bert": {"query": "search_query: ", "document": "search_document: "},
    "nomic-bert-moe": {"query": "search_query: ", "document": "search_document: "},
}
"""Architecture of a GGUF file -> the prompts of the models that have it. Files do not hold prompts."""


def gguf_settings(metadata: Mapping[str, Any], fail: Callable[[str, str], Exception]) -> Settings:
    """Return the settings in the metadata of a GGUF file.

    Vectors are normalized, as llama.cpp does, because files do not state it.

    Args:
        metadata: keys and values.
        fail: makes an error of a key and a problem.
    """
    architecture = metadata.get("general.architecture", "")
    kind = pooling_type(metadata, fail)
    if kind == 0:
        raise UnsupportedModelError(
            f"{fail(architecture + '.pooling_type', 'is 0: the model makes a vector for each token, not for a text')}",
            hint="choose a model with a pooling",
        )
    modes = () if kind is None else POOLING_TYPES[kind]
    return Settings(modes=modes, normalize=True, prompts=_PROMPTS.get(architecture, {}))


def pooling_type(metadata: Mapping[str, Any], fail: Callable[[str, str], Exception]) -> int | None:
    """Return the number of a file's pooling, an index of ``POOLING_TYPES``; None if it states none."""
    key = f"{metadata.get('general.architecture', '')}.pooling_type"
    kind = metadata.get(key)
    if kind is not None and (type(kind) is not int or not 0 <= kind < len(POOLING_TYPES)):
        raise fail(key, f"is {shown(kind)}; it must be 0 to {len(POOLING_TYPES) - 1}")
    return kind


def labels(metadata: Mapping[str, Any], fail: Callable[[str, str], Exception]) -> Sequence[str]:
    """Return the names of a classifier's outputs in a GGUF file, or an empty list."""
    key = f"{metadata.get('general.architecture', '')}.classifier.output_labels"
    found = metadata.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise fail(key, "must be an array of strings")
    return found
