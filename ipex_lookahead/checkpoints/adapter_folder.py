"""LoRA adapters as PEFT saves them: ``adapter_config.json`` and ``adapter_model.safetensors``.

The tensors decide which matrices are changed. Lists of modules in the config are checked against them;
regular expressions in ``target_modules`` and ``exclude_modules`` are not evaluated.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures.adapter import MAX_RANK
from ipex_lookahead.architectures.hparams import MAX_LAYERS, Source, boolean, integer, number, shown
from ipex_lookahead.architectures.spec import ModelSpec, Place, Tensor
from ipex_lookahead.checkpoints.adapter_base import CONFIG, Floats, LowRankPair
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.float_tensors import check_kind, read_float
from ipex_lookahead.checkpoints.safetensors_reader import SafetensorsFile, StoredTensor
from ipex_lookahead.checkpoints.tensor_names import renamed
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.formats import dequantize

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
MAX_PATTERNS = 4096
MAX_ALPHA = 1e9
_ROOT = "base_model.model."
_MERGE = "merge the adapter with peft (merge_and_unload) into the model that it was trained with, and load the result"
_RESTORE = (
    "save the adapter again with peft's save_pretrained(..., path_initial_model_for_weight_conversion=...), or merge it"
    " with merge_and_unload"
)
_NOTHING: tuple[Any, ...] = (None, False, [], {}, "")
_REFUSED: Mapping[str, Refusal] = {
    "use_dora": Refusal("adds a magnitude per output (DoRA)", _NOTHING, _MERGE),
    "modules_to_save": Refusal("replaces whole modules of the model", _NOTHING, _MERGE),
    "bias": Refusal("changes the biases of the model", ("none", *_NOTHING), _MERGE),
    "lora_bias": Refusal("adds biases", _NOTHING, _MERGE),
    "target_parameters": Refusal("changes parameters of experts, which take no adapter", _NOTHING, _MERGE),
    "trainable_token_indices": Refusal("changes rows of the embedding, which takes no adapter", _NOTHING, _MERGE),
    "alora_invocation_tokens": Refusal("activates the adapter in the middle of a text (aLoRA)", _NOTHING),
    "layer_replication": Refusal("repeats layers of the model", _NOTHING, _MERGE),
    "use_qalora": Refusal("pools the inputs of A (QA-LoRA)", _NOTHING, _MERGE),
    "use_bdlora": Refusal("makes A or B block-diagonal (BD-LoRA)", _NOTHING, _MERGE),
    "arrow_config": Refusal("selects adapters by token (Arrow)", _NOTHING),
    "kasa_config": Refusal("changes the model's weights (KaSA)", _NOTHING, _MERGE),
    "monteclora_config": Refusal("samples adapters (MonteCLoRA)", _NOTHING),
    "megatron_config": Refusal("is for models of Megatron", _NOTHING),
}
"""Options of PEFT that change what is computed."""
_BASE_CHANGED = re.compile("pissa.*|olora|corda|loftq|lora_ga|kasa", re.I)
"""Initializations that subtract the first adapter from the model's weights or quantize them."""
_NEUTRAL = frozenset(
    "alpha_pattern auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config exclude_modules"
    " fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config lora_alpha"
    " lora_dropout lora_ga_config megatron_core peft_type peft_version qalora_group_size r rank_pattern revision"
    " runtime_config target_modules task_type use_rslora velora_config".split()
)
"""Keys that are used here, or have no effect on what is computed."""
_SHARED_MLP = {
    "gate_proj.weight": ("input_linear", 0), "up_proj.weight": ("input_linear", 1),
    "down_proj.weight": ("output_linear", 0),
}  # fmt: skip
"""Matrix of Granite -> (matrix, half of its rows) of ``granitemoehybrid``."""
_TASKS = (None, "CAUSAL_LM", "FEATURE_EXTRACTION")
_MAX_PATTERN_SECONDS = 10.0
_QUANTIFIED = re.compile(r"[*+{]|(?<!\()\?")
_RISKY = re.compile(r"\)[*+{]|\(\?(?!:)|\\[0-9]|\[.*(?:\[|--|&&|~~|\|\|)", re.S)
"""In a regular expression: a repeated group, a lookaround and a backreference, which can take exponential time; and a
set in a set, on which Python's meaning is to change."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A key of ``rank_pattern`` or ``alpha_pattern`` with its value, for modules with a name that ends with the key."""

    expression: re.Pattern[str]
    value: float

    def applies(self, module: str) -> bool:
        return self.expression.match(module) is not None


class AdapterFolder:
    """An adapter in a PEFT folder; see ``AdapterFile``."""

    kind = "PEFT"

    def __init__(self, path: Path) -> None:
        """Open and validate the config and the header of the tensors. Raises as ``open_adapter``."""
        self.path = path
        self.notes: Sequence[str] = ()
        self._pattern_seconds = 0.0
        raw = read_json(path / CONFIG)
        self._source = Source.of(raw, path / CONFIG)
        self._check_config(raw)
        self.base = _base(raw)
        self.rank = _positive(self._source, "r", raw.get("r", 8))
        self.alpha = number(-MAX_ALPHA, MAX_ALPHA)(self._source, "lora_alpha", raw.get("lora_alpha", 8))
        self.rank_stabilized = boolean(self._source, "use_rslora", raw.get("use_rslora") or False)
        ranks = self._patterns(raw, "rank_pattern", _positive)
        alphas = self._patterns(raw, "alpha_pattern", number(-MAX_ALPHA, MAX_ALPHA))
        self._is_target = self._targets(raw)
        if not os.path.exists(path / WEIGHTS):
            raise self._no_weights()
        self._file = SafetensorsFile(path / WEIGHTS)
        try:
            self._pairs = [self._pair(module, parts, ranks, alphas) for module, parts in self._modules().items()]
        except BaseException:
            self.close()
            raise

    def pairs(self) -> Sequence[LowRankPair]:
        return self._pairs

    def places(self, tensor: Tensor, spec: ModelSpec) -> Sequence[Place]:
        """See ``AdapterFile``. GGUF files have Granite 4 without Mamba layers as the family ``granite``."""
        stem, _, part = tensor.hf.name.rpartition(".mlp.")
        if spec.model_type != "granite" or part not in _SHARED_MLP:
            return (tensor.hf,)
        name, first = _SHARED_MLP[part]
        (rows, columns), fused = tensor.shape, name == "input_linear"
        shape = (2 * rows, columns) if fused else tensor.shape
        place = Place(f"{stem}.shared_mlp.{name}.weight", shape, rows=(first * rows, 1) if fused else None)
        return (tensor.hf, place)

    def tiled(self, spec: ModelSpec) -> bool:
        return False

    def check_family(self, spec: ModelSpec) -> None:
        """Do nothing: a PEFT folder names a model, not its family."""

    def close(self) -> None:
        self._file.close()

    # ---- config ------------------------------------------------------------------------------------------------------

    def _check_config(self, raw: JsonObject) -> None:
        kind = raw.get("peft_type")
        if kind != "LORA":
            raise UnsupportedModelError(
                f"{self.path}: peft_type is {shown(kind)}; LORA is supported", hint="merge the adapter with peft"
            )
        if (task := raw.get("task_type")) not in _TASKS:
            raise UnsupportedModelError(
                f"{self.path}: task_type is {shown(task)}; adapters of models that generate text (CAUSAL_LM) are"
                " supported"
            )
        for key, refusal in _REFUSED.items():
            if key in raw and refusal.refuses(raw[key]):
                raise UnsupportedModelError(
                    f"{self.path}: {key} is {shown(raw[key])}, which {refusal.reason}; that is not supported",
                    hint=refusal.hint,
                )
        start = raw.get("init_lora_weights", True)
        if isinstance(start, str) and _BASE_CHANGED.fullmatch(start):
            raise UnsupportedModelError(
                f"{self.path}: init_lora_weights is {shown(start)}: this initialization changed the weights of the"
                " model that the adapter was trained with, so the adapter does not fit the original model",
                hint=_RESTORE,
            )
        if isinstance(start, str) and start.lower() == "mica":
            raise UnsupportedModelError(
                f"{self.path}: init_lora_weights is 'mica', which is not supported", hint=_MERGE
            )
        unknown = sorted(
            key for key, value in raw.items() if key not in _NEUTRAL and key not in _REFUSED and value not in _NOTHING
        )
        if unknown:
            names = ", ".join(key[:60] for key in unknown[:8])
            self.notes = (f"ignoring unknown options of PEFT: {names}; if one changes the computation, so do answers",)

    def _patterns(self, raw: JsonObject, key: str, check: Callable[[Source, str, Any], float]) -> list[_Pattern]:
        """Return the checked entries of ``rank_pattern`` or ``alpha_pattern``, in order."""
        given = raw.get(key) or JsonObject()
        if not isinstance(given, JsonObject) or len(given) > MAX_PATTERNS:
            raise self._source.error(key, f"must be an object of at most {MAX_PATTERNS} module names and numbers")
        inner = Source.of(given, self.path / CONFIG, key)
        return [_Pattern(_expression(inner, name), check(inner, name, value)) for name, value in given.items()]

    def _targets(self, raw: JsonObject) -> Callable[[str], bool]:
        """Return a predicate of module names by the lists of modules and layers in the config."""
        wanted, excluded = (_names(self._source, key, raw.get(key)) for key in ("target_modules", "exclude_modules"))
        layers = raw.get("layers_to_transform")
        layers = [layers] if isinstance(layers, int) else layers or None
        if layers is not None:
            check = integer(0, MAX_LAYERS)
            if not isinstance(layers, list):
                raise self._source.error("layers_to_transform", f"is {shown(layers)}; it must be a list of layers")
            layers = {check(self._source, "layers_to_transform", one) for one in layers}

        def is_target(module: str) -> bool:
            at = re.search(r"\.(\d+)\.", module)
            return (
                (wanted is None or _ends_with(module, wanted))
                and (excluded is None or not _ends_with(module, excluded))
                and (layers is None or (at is not None and int(at[1]) in layers))
            )

        return is_target

    def _no_weights(self) -> Exception:
        if os.path.exists(self.path / PICKLE):
            return UnsupportedModelError(
                f"{self.path}: the adapter is in {PICKLE}, a pickle, which can run code when loaded and is therefore"
                f" refused; {WEIGHTS} is needed",
                hint="convert it on an isolated machine, in Python: safetensors.torch.save_file(torch.load("
                f"'{PICKLE}', weights_only=True), '{WEIGHTS}')",
            )
        return ModelFormatError(
            self.path, WEIGHTS, None, "is missing from the folder", hint="the adapter is incomplete: download it again"
        )

    # ---- tensors -----------------------------------------------------------------------------------------------------

    def _modules(self) -> dict[str, dict[str, StoredTensor]]:
        """Return the tensors "A" and "B" of each module, by its name in transformers."""
        found: dict[str, dict[str, StoredTensor]] = {}
        others = []
        for name, tensor in self._file.tensors.items():
            module, part = self._split(name, tensor)
            if renamed(f"{module}.weight") is None:
                others.append(module)
                continue
            check_kind(self._file, name, tensor)
            if part in (parts := found.setdefault(module, {})):
                raise self._error(tensor, f"is stored twice for {module}")
            parts[part] = tensor
        if not self._file.tensors or not found:
            raise ModelFormatError(
                self.path / WEIGHTS, "tensors", None, "the adapter changes no matrix of a text model"
            )
        if others:
            self.notes = (
                *self.notes,
                f"{len(others)} tensors of vision or audio parts are not used ({others[0]}, ...)",
            )
        return found

    def _split(self, name: str, tensor: StoredTensor) -> tuple[str, str]:
        """Return the module and "A" or "B" of a tensor's name; refuse other tensors with the reason."""
        inner = name.removeprefix(_ROOT)
        for part in "AB":
            if inner.endswith(end := f".lora_{part}.weight") and inner != name:
                return inner.removesuffix(end), part
        reasons = {
            ".lora_magnitude_vector": "is a magnitude of DoRA",
            ".lora_embedding_": "changes an embedding, which takes no adapter",
            ".bias": "is a bias",
            ".lora_diag": "is a diagonal of KaSA",
            ".token_adapter": "changes rows of an embedding, which takes no adapter",
        }
        if why := next((why for word, why in reasons.items() if word in inner), ""):
            raise UnsupportedModelError(f"{self.path}: tensor {name} {why}, which is not supported", hint=_MERGE)
        if ".lora_" not in inner and inner.endswith(".weight"):
            raise UnsupportedModelError(
                f"{self.path}: tensor {name} replaces a whole matrix of the model (resized vocabularies and"
                " modules_to_save do that), which is not supported",
                hint=_MERGE,
            )
        raise self._error(tensor, f"is not a tensor of a LoRA adapter, such as {_ROOT}MODULE.lora_A.weight")

    def _pair(
        self, module: str, parts: Mapping[str, StoredTensor], ranks: Iterable[_Pattern], alphas: Iterable[_Pattern]
    ) -> LowRankPair:
        first = next(iter(parts.values()))
        if missing := {"A", "B"} - {*parts}:
            raise self._error(first, f"has no lora_{missing.pop()} next to it")
        if not self._is_target(module):
            raise self._error(first, f"{module} is not one of the modules that {CONFIG} lists")
        a, b = parts["A"], parts["B"]
        rank = int(self._first(ranks, module, self.rank))
        if a.shape[0] != rank or b.shape[-1] != rank:
            raise self._error(
                a, f"A has shape {list(a.shape)} and B {list(b.shape)}, but {CONFIG} gives {module} the rank {rank}"
            )
        alpha = self._first(alphas, module, self.alpha)
        scale = alpha / (math.sqrt(rank) if self.rank_stabilized else rank)
        matrix = renamed(f"{module}.weight")
        assert matrix is not None  # ``_modules`` drops the others
        return LowRankPair(
            matrix, a.shape, b.shape, scale, lambda: (self._read(a), self._read(b)), lambda text: self._error(a, text)
        )

    def _first(self, patterns: Iterable[_Pattern], module: str, default: float) -> float:
        """Return the value of the first pattern for a module; stop if an untrusted file's patterns take too long."""
        began = time.monotonic()
        found = next((one.value for one in patterns if one.applies(module)), default)
        self._pattern_seconds += time.monotonic() - began
        if self._pattern_seconds > _MAX_PATTERN_SECONDS:
            problem = f"the regular expressions take more than {_MAX_PATTERN_SECONDS:g} s; write the modules out"
            raise self._source.error("alpha_pattern", problem)
        return found

    def _read(self, tensor: StoredTensor) -> Floats:
        return dequantize(read_float(self._file, tensor.name, tensor))

    def _error(self, tensor: StoredTensor, problem: str) -> ModelFormatError:
        return ModelFormatError(self.path / WEIGHTS, tensor.name, tensor.entry, problem)


def _base(raw: JsonObject) -> str:
    found = raw.get("base_model_name_or_path")
    return found[:256] if isinstance(found, str) and found.isprintable() else ""


def _positive(source: Source, key: str, value: Any) -> int:
    return integer(1, MAX_RANK)(source, key, value)


def _expression(source: Source, key: str) -> re.Pattern[str]:
    """Return the expression that PEFT makes of a key; refuse what could take exponential time."""
    if len(key) > 512 or _RISKY.search(key) or len(_QUANTIFIED.findall(key)) > 2 or key.count("(") > 3:
        raise source.error(
            key[:60],
            "is a regular expression of more than 512 characters, 2 repetitions or 3 groups, or with a repeated group,"
            " a lookaround, a backreference or a set in a set; write the names of the modules out",
        )
    try:
        return re.compile(rf"(.*\.)?({key})$")
    except (re.error, OverflowError, RecursionError) as error:
        raise source.error(key[:60], f"is not a regular expression: {error}") from None


def _names(source: Source, key: str, value: Any) -> frozenset[str] | None:
    """Return a list of module names as a set; None for an absent one and for a regular expression."""
    if value is None or isinstance(value, str) or (key == "exclude_modules" and not value):
        return None
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise source.error(key, f"is {shown(value)}; it must be a list of module names or a regular expression")
    return frozenset(value)


def _ends_with(module: str, names: frozenset[str]) -> bool:
    """Return True if a name is the module's, or the last components of it."""
    parts = module.split(".")
    return any(".".join(parts[at:]) in names for at in range(len(parts)))
