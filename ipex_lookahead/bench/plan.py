"""The plan of ``bench run``: a YAML file with the keys of ipex-llm's all-in-one benchmark and further ones.

repo_id: [default, meta-llama/Llama-2-7b-chat-hf]   # folders, .gguf files, hub ids, or default
local_model_hub: /models                            # folder of the models
low_bit: [sym_int4, q4_k]                           # one or several; the file's own if not given
in_out_pairs: ['32-32', '1024-128']                 # tokens in and tokens out
batch_size: 1
warm_up: 1
num_trials: 3
lookahead: [0, 3, auto]                             # most drafted tokens per step; 0 always runs
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting import PROPOSERS, SECOND_MODEL
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_yaml import load_yaml
from ipex_lookahead.low_bits import NAMES, is_rules_file
from ipex_lookahead.runtime.lookahead import resolve_lookahead, strategy_config

MOST_VALUES = 256
"""Maximum number of values of a key."""
TASKS = {
    "continuation": "",
    "QA": "Read the text and answer what it is about.\n\n",
    "summarize": "Summarize the following text in a few sentences.\n\n",
}
"""``task`` -> text of the prompt before the input."""

APIS: Mapping[str, Mapping[str, str]] = {
    "native": {"engine": "native"},
    "torch": {"engine": "torch"},
    "ipex-llm": {"engine": "ipex-llm"},
    "auto": {"engine": "auto"},
    # Names of ipex-llm: they select a format or a device; its different engines are one engine here.
    "transformer_int4": {},
    "native_int4": {"low_bit": "sym_int4"},
    "optimize_model": {},
    "pytorch_autocast_bf16": {"low_bit": "bf16"},
    "transformer_autocast_bf16": {"low_bit": "bf16"},
    "bigdl_ipex_bf16": {"low_bit": "bf16"},
    "bigdl_ipex_int4": {"low_bit": "sym_int4"},
    "bigdl_ipex_int8": {"low_bit": "sym_int8"},
    "speculative_cpu": {"low_bit": "bf16", "strategy": "self_speculation"},
    "transformer_int4_gpu": {"device": "xpu"},
    "transformer_int4_fp16_gpu": {"device": "xpu"},
    "bigdl_fp16_gpu": {"device": "xpu", "low_bit": "fp16"},
    "optimize_model_gpu": {"device": "xpu"},
    "speculative_gpu": {"device": "xpu", "low_bit": "fp16", "strategy": "self_speculation"},
}
"""``test_api`` -> settings of a case."""
NO_API = {
    "deepspeed": "several processes for one model are not supported",
    "pipeline": "several devices for one model are not supported",
    "npu": "there is no engine for NPUs",
    "win": "this package runs on Linux (on Windows in WSL2): leave the _win out",
}
"""Part of a ``test_api``'s name -> why it is not supported."""
NO_EFFECT = {
    "use_fp16_torch_dtype": "the engines choose the dtype of activations",
    "cpu_embedding": "the embedding is on the device of the engine",
    "optimize_model": "a model is always loaded ready to run",
    "transpose_value_cache": "for NPUs",
    "npu_group_size": "for NPUs",
    "n_gpu": "one device runs a model",
}
"""Keys of ipex-llm without effect -> the reason. The CSV file has the values of some."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model in one format on one engine, with numbers of input and output tokens, in all modes."""

    model: str
    path: str
    api: str
    engine: str
    device: str | None
    low_bit: str | None
    threads: int | None
    tokens_in: int
    tokens_out: int
    batch: int
    modes: tuple[tuple[str, LookaheadConfig | None], ...]

    @property
    def loading(self) -> tuple[Any, ...]:
        """The settings that determine the loaded model; equal for cases that share it."""
        return (self.path, self.engine, self.device, self.low_bit, self.threads)

    @property
    def key(self) -> str:
        """The key of the case in results."""
        modes = ",".join(name for name, _ in self.modes)
        placed = f"{self.api}/{self.engine}/{self.device or 'cpu'}/{self.threads or 'all'}"
        sizes = f"{self.tokens_in}-{self.tokens_out}x{self.batch}"
        return f"{self.model} {self.low_bit or 'as-is'} {placed} {sizes} lookahead {modes}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked file.

    Attributes:
        cases: Cases, grouped by model.
        warm_up: Answers of each mode before the trials.
        trials: Measured answers of each mode.
        streaming: Use a streamer.
        task: A key of ``TASKS``.
        isa: Instruction set; "" for the best.
        kv_cache: "fp16" or "int8".
        prompts: Text file for the input; "" for the packaged one.
        settings: The contents of the file, for the report.
    """

    cases: tuple[Case, ...]
    warm_up: int
    trials: int
    streaming: bool
    task: str
    isa: str
    kv_cache: str
    prompts: str
    settings: Mapping[str, Any]

    @property
    def answers(self) -> int:
        """Total number of answers."""
        return sum(len(case.modes) * (self.warm_up + self.trials) for case in self.cases)


def read_plan(file: Path, changes: Mapping[str, Any] | None = None) -> Plan:
    """Read and check a file.

    Args:
        file: YAML file.
        changes: Keys that override those of the file.

    Raises:
        InputError: The file is missing or not YAML, or a key or a value is invalid.
    """
    loaded = load_yaml(file, error=InputError)
    if not isinstance(loaded, dict):
        raise InputError(f"{file}: a plan is a YAML mapping, got {type(loaded).__name__}")
    given = {str(key): value for key, value in loaded.items()} | dict(changes or {})
    return _Reader(file, given).plan()


class _Reader:
    """Reads and checks the values of a plan."""

    def __init__(self, file: Path, given: Mapping[str, Any]) -> None:
        self.file, self.given = file, given

    def plan(self) -> Plan:
        known = [*_KEYS, *NO_EFFECT]
        for key in self.given:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]}?" if near else ""
                raise InputError(f"{self.file}: unknown key {key!r}: choose one of {', '.join(known)}", hint=hint)
        if self.one("num_beams", self.whole(1, 1 << 10), 1) != 1:
            raise self.error("num_beams", "beam search is not supported; leave the key out, or give 1")
        warm_up = self.one("warm_up", self.whole(0, 1000), 1)
        trials = self.one("num_trials", self.whole(1, 1000), 3)
        isa = self.one("isa", self.text, "")
        kv_cache = self.one("kv_cache", self.word("fp16", "int8"), "fp16")
        task = self.one("task", self.word(*TASKS), "continuation")
        prompts = self.one("prompts", self.text, "")
        streaming = self.one("streaming", self.flag, False)
        return Plan(tuple(self.cases()), warm_up, trials, streaming, task, isa, kv_cache, prompts, dict(self.given))

    def cases(self) -> list[Case]:
        models = self.several("repo_id", self.text, ["default"])
        hub = self.one("local_model_hub", self.text, "")
        low_bits = self.several("low_bit", self.low_bit, [None])
        apis = self.several("test_api", self.api, ["auto"])
        device = self.one("device", self.text, None)
        threads = self.several("threads", self.whole(1, 4096), [None])
        pairs = self.several("in_out_pairs", self.pair, [(32, 32), (1024, 128)])
        batches = self.several("batch_size", self.whole(1, 1024), [1])
        found = []
        for model, api, low_bit, thread in product(models, apis, low_bits, threads):
            sets = APIS[api]
            modes = tuple(self.modes(sets.get("strategy")))
            for (tokens_in, tokens_out), batch in product(pairs, batches):
                found.append(
                    Case(
                        model=model,
                        path=_local(model, hub),
                        api=api,
                        engine=sets.get("engine", "auto"),
                        device=device or sets.get("device"),
                        low_bit=sets.get("low_bit", low_bit),
                        threads=thread,
                        tokens_in=tokens_in,
                        tokens_out=tokens_out,
                        batch=batch,
                        modes=modes,
                    )
                )
        return list(dict.fromkeys(found))

    def modes(self, implied: str | None) -> list[tuple[str, LookaheadConfig | None]]:
        """Return (name, configuration) of each mode; plain decoding is the first."""
        numbers = self.several("lookahead", self.tokens, ["auto"] if "strategy" in self.given or implied else [0])
        strategies = self.several("strategy", self.word(*PROPOSERS, *SECOND_MODEL), [implied])
        found: dict[str, LookaheadConfig | None] = {"0": None}
        for number, strategy in product(numbers, strategies):
            if number == 0:
                continue
            if strategy == "draft_model":
                raise self.error("strategy", "draft_model needs a second model, which a plan cannot name")
            name = str(number) if strategy is None else f"{number} {strategy}"
            if strategy is None:
                found[name] = resolve_lookahead(number)
            else:
                found[name] = strategy_config(strategy, number)
        return list(found.items())

    # ---- values ----------------------------------------------------------------------------------------------------

    def one(self, key: str, check: Callable[[str, Any], Any], default: Any) -> Any:
        """Return the checked value of a key, or ``default`` if it is missing or null."""
        value = self.given.get(key)
        return default if value is None else check(key, value)

    def several(self, key: str, check: Callable[[str, Any], Any], default: list[Any]) -> list[Any]:
        """Return the checked values of a key with one value or a list."""
        value = self.given.get(key)
        if value is None:
            return default
        values = value if isinstance(value, list) else [value]
        if not 0 < len(values) <= MOST_VALUES:
            raise self.error(key, f"has {len(values)} values; it may have 1 to {MOST_VALUES}")
        return list(dict.fromkeys(check(key, one) for one in values))

    def text(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= 4096 or "\0" in value:
            raise self.error(key, f"is {value!r:.60}; it must be text")
        return value

    def flag(self, key: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r:.60}; it must be True or False")
        return value

    def whole(self, low: int, high: int) -> Callable[[str, Any], int]:
        def check(key: str, value: Any) -> int:
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise self.error(key, f"is {value!r:.60}; it must be a whole number from {low} to {high}")
            return value

        return check

    def word(self, *words: str) -> Callable[[str, Any], str]:
        def check(key: str, value: Any) -> str:
            if value not in words:
                raise self.error(key, f"is {value!r:.60}; it must be one of {', '.join(words)}")
            return str(value)

        return check

    def pair(self, key: str, value: Any) -> tuple[int, int]:
        found = re.fullmatch(r"(\d{1,7})-(\d{1,7})", value.strip(), re.ASCII) if isinstance(value, str) else None
        sizes = (int(found[1]), int(found[2])) if found else (0, 0)
        if not (sizes[0] >= 1 and sizes[1] >= 2):
            raise self.error(key, f"has {value!r:.60}; a pair is tokens in and tokens out, such as '1024-128'")
        return sizes

    def tokens(self, key: str, value: Any) -> int | str:
        if value == "auto":
            return "auto"
        return self.whole(0, 128)(key, value)

    def low_bit(self, key: str, value: Any) -> str:
        name = self.text(key, value)
        if name not in NAMES and not is_rules_file(name):
            near = difflib.get_close_matches(name, NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else ""
            raise InputError(f"{self.file}: {key}: unknown format {name!r}", hint=hint)
        return name

    def api(self, key: str, value: Any) -> str:
        name = self.text(key, value)
        if name in APIS:
            return name
        for part, why in NO_API.items():
            if part in re.split(r"[_-]|s_", name):
                raise self.error(key, f"is {name}: {why}")
        raise self.error(key, f"is {name!r:.60}; it must be one of {', '.join(APIS)}")

    def error(self, key: str, problem: str) -> InputError:
        return InputError(f"{self.file}: {key} {problem}")


_KEYS = (
    *("repo_id", "local_model_hub", "warm_up", "num_trials", "num_beams", "low_bit", "batch_size", "in_out_pairs"),
    *("test_api", "streaming", "task", "lookahead", "strategy", "threads", "isa", "kv_cache", "prompts", "device"),
)
"""Keys with an effect."""


def _local(model: str, hub: str) -> str:
    """Return the folder of a model in ``local_model_hub``, by its id or the last part of it, else its name."""
    for name in (model, model.rsplit("/", 1)[-1]) if hub else ():
        if (Path(hub).expanduser() / name).exists():
            return str(Path(hub).expanduser() / name)
    return model
