"""What runs on this machine, and whether it is right: versions, device, kernels, exactness, speed.

One report answers a maintainer's first questions, and holds nothing private: no path, host or user name.
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.errors import EngineError, LookaheadError, arg, first_line
from ipex_lookahead.hub import home_folder
from ipex_lookahead.system.extras import installing, need_torch, torch_missing

PACKAGES = ("ipex-lookahead", "torch", "transformers", "numpy", "ipex-llm", "intel-extension-for-pytorch")

LOOKAHEADS = (
    LookaheadConfig("prompt_lookup", 3, adaptive=False),
    LookaheadConfig("auto", 7, adaptive=False),
)
"""What is compared with plain decoding: chains of drafts, and trees where the engine takes them."""

KERNEL_SHAPE = (2048, 2048)
KERNEL_ROWS = (1, 4, 16)
"""What a kernel is timed on; 4 rows should take about as long as 1."""

BYTES_SHAPE, BYTES_ROWS = (80, 576), (1, 7, 64)
"""What an instruction set's kernels are compared with the scalar ones on: few rows, and as many as AMX takes."""

FORMATS = ("sym_int4", "asym_int4", "sym_int8", "bf16")

Say = Callable[[str], None]


def examine(
    device: str = "cpu",
    *,
    model: str = "default",
    tiny: bool = False,
    low_bit: str | None = None,
    threads: int | None = None,
    prompts: int = 3,
    max_new_tokens: int = 48,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Examine one device.

    Args:
        device: "cpu", "xpu", "cuda", or with a number.
        model: what exactness and speed are tried on: a folder, a GGUF file, a hub id or "default".
        tiny: a small random model instead of ``model``: nothing is downloaded, and speeds mean little.
        low_bit: format of its weights; None = as the file has it, and sym_int4 for the small random one.
        threads: threads on the CPU.
        prompts: answers of each kind that are compared.
        max_new_tokens: of each answer.
        say: called with a line at the beginning of each part.

    Returns:
        Plain values: versions, machine, device, kernels, by_bytes (on the CPU: the instruction set, how many formats
        were compared with scalar kernels, and which of them differ), engines, problems (sentences), healthy. Where
        torch or transformers is not installed, without_torch says what is left out. Times are in milliseconds, speeds
        in tokens a second, memory in bytes.

    Raises:
        EngineError: the device is not there, or only torch, which is not installed, could reach it; the text or the
            hint says what to install.
    """
    on_cpu, missing = device.split(":")[0] == "cpu", torch_missing()
    if missing and not on_cpu:
        need_torch(arg("device", device))
    say("versions and device")
    report: dict[str, Any] = {"versions": versions(), "machine": machine(), "device": {"device": device}, "kernels": []}
    engines = [("native", False)] if on_cpu else []
    if missing:
        report["without_torch"] = f"Without {missing} the torch engine is left out: {installing('torch')}"
        say("kernels")
    else:
        from ipex_lookahead.engines.torch.device import check_device

        found = check_device(device)
        report["device"] = device_facts(found)
        say("kernels")
        report["kernels"] = kernels(found, threads)
        engines += [("torch", False), ("torch", True)]
    if on_cpu:
        report["by_bytes"] = beside_scalar(threads)
    report["engines"] = []
    report["model"] = called(model, tiny)
    with tried_on(model, tiny, low_bit) as (source, settings, ids):
        for engine, deterministic in engines:
            say(f"exactness and speed: {engine}{', deterministic' if deterministic else ''}")
            tried = {"engine": engine, "deterministic": deterministic}
            options = {**settings, "engine": engine, "device": device, "threads": threads}
            if deterministic:
                options["deterministic"] = True
            try:
                tried |= run_engine(source, options, ids, prompts, max_new_tokens)
            except Exception as error:  # a device's library may raise anything: what it said belongs into the report
                tried["problem"] = without_paths(first_line(error))
            report["engines"].append(tried)
    report["problems"] = problems(report)
    report["healthy"] = not report["problems"]
    return report


def versions() -> dict[str, str]:
    """Python's version and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, system, instruction sets."""
    from ipex_lookahead.engines.identity import processor
    from ipex_lookahead.engines.machine import default_threads
    from ipex_lookahead.engines.native import core

    facts: dict[str, Any] = {
        "processor": processor(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    try:
        facts |= {"isa": core.chosen_isa(), "amx": core.amx_state(), "threads": default_threads()}
    except EngineError as error:
        facts["native_core"] = without_paths(str(error))
    return facts


def device_facts(device: Any) -> dict[str, Any]:
    """Name, driver, memory and what else torch knows of a device."""
    import torch

    facts: dict[str, Any] = {"device": str(device)}
    if device.type == "cpu":
        return facts | {"torch_threads": torch.get_num_threads()}
    backend: Any = getattr(torch, device.type)
    properties = backend.get_device_properties(device)
    for key in (
        "name",
        "driver_version",
        "platform_name",
        "total_memory",
        "gpu_eu_count",
        "has_fp16",
        "major",
        "minor",
    ):
        if (value := getattr(properties, key, None)) is not None:
            facts[key] = value
    if device.type == "cuda":
        facts["cuda"] = torch.version.cuda
    return facts


def kernels(device: Any, threads: int | None = None) -> list[dict[str, Any]]:
    """Every backend's self-test for every format, and its time for a few rows."""
    import torch

    from ipex_lookahead.engines.torch.linear_backends import BACKENDS, LinearBackends

    dtype = torch.float32 if device.type == "cpu" else torch.float16
    found = []
    for low_bit in FORMATS:
        for name in BACKENDS.get(device.type, ("generic",)):
            backends = LinearBackends(device, threads=threads, dtype=dtype, only=name)
            entry: dict[str, Any] = {"format": low_bit, "backend": name}
            group = 0 if low_bit == "bf16" else 32
            problem = backends.problem(name, low_bit, group)
            if problem is None:
                entry["milliseconds"] = _kernel_times(backends, low_bit, group)
            else:
                entry["problem"] = without_paths(problem)
            found.append(entry)
    return found


def beside_scalar(threads: int | None = None) -> dict[str, Any]:
    """The chosen instruction set's products in every format beside the scalar ones, by bytes; AMX takes many rows."""
    import numpy as np

    from ipex_lookahead.engines.machine import default_threads
    from ipex_lookahead.engines.native.core import chosen_isa
    from ipex_lookahead.engines.native.linear import linear_layer
    from ipex_lookahead.engines.weights import random_matrix
    from ipex_lookahead.formats import FORMATS as EVERY

    try:
        isa, count = chosen_isa(), threads or default_threads()
        rng, different = np.random.default_rng(0), []
        for name, low_bit in EVERY.items():
            weight = random_matrix(BYTES_SHAPE, name, low_bit.group_sizes[0], rng)
            made, scalar = (linear_layer(weight, threads=count, isa=one) for one in (isa, "scalar"))
            for rows in BYTES_ROWS:
                x = rng.standard_normal((rows, BYTES_SHAPE[1]), dtype=np.float32)
                if made(x).tobytes() != scalar(x).tobytes():
                    different.append(name)
                    break
    except EngineError as error:
        return {"problem": without_paths(str(error))}
    return {"isa": isa, "formats": len(EVERY), "different": different}


def _kernel_times(backends: Any, low_bit: str, group: int) -> dict[str, float]:
    """The best of several times of a linear layer of ``KERNEL_SHAPE``, milliseconds by rows."""
    import numpy as np
    import torch

    from ipex_lookahead.engines.weights import random_matrix

    kernel = backends.kernel(random_matrix(KERNEL_SHAPE, low_bit, group, np.random.default_rng(0)))
    wait: Callable[[], None] = getattr(getattr(torch, backends.device.type), "synchronize", lambda: None)
    times = {}
    with torch.inference_mode():
        for rows in KERNEL_ROWS:
            x = torch.ones(rows, KERNEL_SHAPE[1], dtype=backends.dtype, device=backends.device)
            kernel.run(x)
            wait()
            best = float("inf")
            for _ in range(10):
                start = time.perf_counter()
                kernel.run(x)
                wait()
                best = min(best, time.perf_counter() - start)
            times[str(rows)] = round(1000 * best, 4)
    return times


def run_engine(
    source: str, options: dict[str, Any], prompts: Sequence[list[int]] | None, count: int, max_new_tokens: int
) -> dict[str, Any]:
    """Load a model on an engine, answer ``count`` prompts plainly and with each of ``LOOKAHEADS``, and compare."""
    start = time.perf_counter()
    model = _loaded(source, options)
    facts = model.engine.describe()
    result: dict[str, Any] = {
        "load_seconds": round(time.perf_counter() - start, 2),
        **{
            key: facts[key]
            for key in (
                "low_bit",
                "dtype",
                "threads",
                "row_invariant",
                "supports_tree",
                "device_memory",
                "weight_bytes",
            )
            if key in facts
        },
    }
    if isinstance(backends := facts.get("backends"), dict):
        result["backends"] = backends.get("linear", {})
    ids = (prompts or encoded(model, count))[:count]

    def answers(lookahead: Any) -> tuple[list[list[int]], dict[str, float]]:
        return answers_of(model, ids, max_new_tokens, lookahead)

    answers(0)  # the first answers pay for memory, compilation and caches
    plain, speed = answers(0)
    result["plain_tok_s"] = speed["tok_s"]
    result["lookahead"] = []
    for config in LOOKAHEADS:
        got, speed = answers(config)
        equal = sum(a == b for a, b in zip(got, plain, strict=True))
        result["lookahead"].append(
            {"strategy": config.strategy, "draft_tokens": config.num_draft_tokens, **speed, "equal": equal}
            | {"answers": len(ids)}
        )
    return result


def _loaded(source: str, options: dict[str, Any]) -> Any:
    """The model as ``generate`` and ``serve`` have it, without torch, on the native engine; else as Python has it."""
    from ipex_lookahead.hf.auto import AutoModelForCausalLM
    from ipex_lookahead.runtime.loading import load_text_model

    if options["engine"] != "native":
        return AutoModelForCausalLM.from_pretrained(source, progress=False, **options)
    low_bit, threads = options["load_in_low_bit"], options["threads"]
    return load_text_model(source, engine="native", low_bit=low_bit, threads=threads, progress=False)


def answers_of(
    model: Any, prompts: Sequence[list[int]], max_new_tokens: int, lookahead: Any
) -> tuple[list[list[int]], dict[str, float]]:
    """Greedy answers to prompts: their tokens, and the speed in tokens a second and a step."""
    from ipex_lookahead.runtime.sampling_params import SamplingParams
    from ipex_lookahead.runtime.text_model import TextModel

    tokens: list[list[int]] = []
    seconds, emitted, steps = 0.0, 0, 0
    for prompt in prompts:
        if isinstance(model, TextModel):
            tokens.append(model.generate(prompt, SamplingParams(max_new_tokens), lookahead=lookahead))
        else:
            import torch

            ids, settings = torch.tensor([prompt]), {"max_new_tokens": max_new_tokens, "do_sample": False}
            tokens.append(model.generate(ids, lookahead=lookahead, **settings)[0, len(prompt) :].tolist())
        stats: Any = model.stats
        seconds += stats.decode_seconds
        emitted += stats.tokens - 1
        steps += stats.steps
    speed = round(emitted / seconds, 1) if seconds else 0.0
    return tokens, {"tok_s": speed, "tokens_per_step": round(emitted / max(steps, 1), 2)}


def problems(report: dict[str, Any]) -> list[str]:
    """What is wrong, in sentences. Equal text is demanded where it is promised only."""
    found = []
    for low_bit in FORMATS:
        tested = [entry for entry in report["kernels"] if entry["format"] == low_bit]
        if tested and all("problem" in entry for entry in tested):
            found.append(f"no kernel multiplies {low_bit}: " + "; ".join(entry["problem"] for entry in tested))
    by_bytes = report.get("by_bytes", {})
    if by_bytes.get("different"):
        found.append(f"{by_bytes['isa']} gives other bytes than scalar for {', '.join(by_bytes['different'])}")
    for tried in report["engines"]:
        name = tried["engine"] + (" (deterministic)" if tried["deterministic"] else "")
        if "problem" in tried:
            found.append(f"{name}: {tried['problem']}")
            continue
        if not (tried["deterministic"] or tried.get("row_invariant")):
            continue
        for row in tried["lookahead"]:
            if row["equal"] != row["answers"]:
                found.append(
                    f"{name}: with {row['strategy']} {row['answers'] - row['equal']} of {row['answers']} answers"
                    " are not plain decoding's"
                )
    return found


def called(model: str, tiny: bool) -> str:
    """What a report calls a model."""
    return "a small random one" if tiny else Path(model).name if Path(model).exists() else model


@contextmanager
def tried_on(
    model: str, tiny: bool, low_bit: str | None
) -> Iterator[tuple[str, dict[str, Any], list[list[int]] | None]]:
    """What to load, with which arguments, and prompts where it has no tokenizer."""
    if not tiny:
        yield model, {"load_in_low_bit": low_bit}, None
        return
    with TemporaryDirectory() as folder:
        yield folder, {"load_in_low_bit": low_bit or "sym_int4"}, _write_tiny(Path(folder))


def _write_tiny(folder: Path) -> list[list[int]]:
    """A random Llama in ``folder`` with a tokenizer of bytes, and prompts for it."""
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from ipex_lookahead.architectures import spec_for
    from ipex_lookahead.checkpoints.config_json import checked_config
    from ipex_lookahead.files.safe_json import JsonObject

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    rng, tensors = np.random.default_rng(0), {}
    for tensor in spec_for(checked_config(JsonObject(config), folder)).tensors():
        # Wide enough for answers that do not end in one repeated token.
        random = 0.08 * rng.standard_normal(tensor.shape, np.float32) if tensor.is_matrix else None
        tensors[tensor.name] = np.ones(tensor.shape, np.float32) if random is None else random
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    of_bytes = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    of_bytes.pre_tokenizer, of_bytes.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    of_bytes.save(str(folder / "tokenizer.json"))
    return [rng.integers(3, 512, 24).tolist() * 2 for _ in range(8)]


def encoded(model: Any, count: int) -> list[list[int]]:
    """Token ids of ``count`` questions in the chat template. Raises LookaheadError where there is no tokenizer."""
    from ipex_lookahead.tokenization.prompts import build_prompt

    if model.tokenizer is None:
        why = model.engine.describe().get("no_tokenizer") or "the model carries none"
        raise LookaheadError(f"there is no tokenizer: {why}", hint="put its tokenizer.json into the folder")
    config = model.config if isinstance(model.config, dict) else model.config.to_dict()
    return [build_prompt(model.tokenizer, config, text) for text in questions(count)]


def questions(count: int) -> list[str]:
    """So many of the packaged prompts, spread over their kinds; beyond them their first halves, then thirds, ..."""
    from ipex_lookahead.bench.prompts import PACKAGED_PROMPTS, read_prompts

    texts = [prompt.text for prompt in read_prompts([PACKAGED_PROMPTS], None)]
    found = texts[:: max(1, len(texts) // count)][:count]
    while len(found) < count:
        part = 1 + len(found) // len(texts)
        found += [" ".join(text.split()[: -(-len(text.split()) // part)]) for text in texts][: count - len(found)]
    return found


def without_paths(text: str) -> str:
    """``text`` with the folders of absolute paths left out: a report is pasted in public."""
    home = home_folder()
    if home is not None and str(home) != "/":
        text = text.replace(f"{home}/", "")
    return re.sub(r"(?<![\w:/.])(?:[A-Za-z]:)?[/\\](?:[^\s/\\'\"]+[/\\])+", "", text)
