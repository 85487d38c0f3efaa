"""The checks of ``doctor`` on a CPU, or on a device that torch drives: kernels, exactness, speed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ipex_lookahead.bench.examine_embedding import embedding_problems, examine_embedding
from ipex_lookahead.bench.facts import machine, versions, without_paths
from ipex_lookahead.bench.options import PACKAGED_PROMPTS
from ipex_lookahead.cli.prompts import read_prompts
from ipex_lookahead.cli.serve_embedding import is_for_text
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.errors import EngineError, LookaheadError, arg, first_line
from ipex_lookahead.system.extras import installing, need_torch, torch_missing

LOOKAHEADS = (
    LookaheadConfig("prompt_lookup", 3, adaptive=False),
    LookaheadConfig("auto", 7, adaptive=False),
)
"""The settings to compare with plain decoding: chains of drafts, and trees if the engine supports them."""

KERNEL_SHAPE = (2048, 2048)
KERNEL_ROWS = (1, 4, 16)
"""Size of the timed layer; 4 rows should take about as long as 1."""

BYTES_SHAPE, BYTES_ROWS = (80, 576), (1, 7, 64)
"""Sizes of the products to compare with scalar kernels; the largest number of rows is enough for AMX."""

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
        device: "cpu" or "cuda", optionally with a number.
        model: Model for exactness and speed: a folder, a GGUF file, a hub id or "default".
        tiny: Use a small random model instead of ``model``: nothing to download, but no meaningful speeds.
        low_bit: Format of the weights; by default the file's own, and sym_int4 for the small random model.
        threads: CPU threads.
        prompts: Number of answers to compare in each mode.
        max_new_tokens: Most tokens of each answer.
        say: Called with a line at the beginning of each part.

    Returns:
        versions, machine, device, kernels, by_bytes (on the CPU: the instruction set, the number of formats compared
        with scalar kernels, and those that differ), engines, problems (sentences) and healthy; without_torch is a
        sentence if torch or transformers is not installed. Times are in milliseconds, speeds in tokens/s, memory in
        bytes.

    Raises:
        EngineError: The device does not exist, or needs torch, which is not installed.
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
        report["by_bytes"] = compare_with_scalar(threads)
    report["engines"] = []
    report["model"] = reported_name(model, tiny)
    if on_cpu and not tiny and not is_for_text(model, progress=True):
        say("vectors alone and in a batch")
        report["embedding"] = examine_embedding(model, low_bit, threads)
        report["problems"] = problems(report) + embedding_problems(report["embedding"])
        report["healthy"] = not report["problems"]
        return report
    with model_to_load(model, tiny, low_bit) as (source, settings, ids):
        for engine, deterministic in engines:
            say(f"exactness and speed: {engine}{', deterministic' if deterministic else ''}")
            tried = {"engine": engine, "deterministic": deterministic}
            options = {**settings, "engine": engine, "device": device, "threads": threads}
            if deterministic:
                options["deterministic"] = True
            try:
                tried |= run_engine(source, options, ids, prompts, max_new_tokens)
            except Exception as error:  # a device's library may raise anything; the report has its message
                tried["problem"] = without_paths(first_line(error))
            report["engines"].append(tried)
    report["problems"] = problems(report)
    report["healthy"] = not report["problems"]
    return report


def device_facts(device: Any) -> dict[str, Any]:
    """Return what torch reports of a device: name, driver, memory."""
    import torch

    facts: dict[str, Any] = {"device": str(device)}
    if device.type == "cpu":
        return facts | {"torch_threads": torch.get_num_threads()}
    backend: Any = getattr(torch, device.type)
    properties = backend.get_device_properties(device)
    for key in "name driver_version platform_name total_memory gpu_eu_count has_fp16 major minor".split():
        if (value := getattr(properties, key, None)) is not None:
            facts[key] = value
    if device.type == "cuda":
        facts["cuda"] = torch.version.cuda
    return facts


def kernels(device: Any, threads: int | None = None) -> list[dict[str, Any]]:
    """Run the self-test of every backend for every format, and time it for a few rows."""
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


def compare_with_scalar(threads: int | None = None) -> dict[str, Any]:
    """Compare the kernels of the chosen instruction set with scalar kernels, byte by byte, in every format."""
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
    """Return the best milliseconds of a linear layer of ``KERNEL_SHAPE`` by rows."""
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
    """Load a model, answer ``count`` prompts without lookahead and with each of ``LOOKAHEADS``, and compare."""
    start = time.perf_counter()
    model = _loaded(source, options)
    facts = model.engine.describe()
    result: dict[str, Any] = {
        "load_seconds": round(time.perf_counter() - start, 2),
        **{
            key: facts[key]
            for key in "low_bit dtype threads row_invariant supports_tree device_memory weight_bytes".split()
            if key in facts
        },
    }
    if isinstance(backends := facts.get("backends"), dict):
        result["backends"] = backends.get("linear", {})
    ids = (prompts or encoded(model, count))[:count]

    def answers(lookahead: Any) -> tuple[list[list[int]], dict[str, float]]:
        return answers_of(model, ids, max_new_tokens, lookahead)

    answers(0)  # warm-up: memory, compilation, caches
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
    """Return a ``TextModel``, which needs no torch, on the native engine; else the Python API's model."""
    from ipex_lookahead.hf.auto import AutoModelForCausalLM
    from ipex_lookahead.runtime.loading import load_text_model

    if options["engine"] != "native":
        return AutoModelForCausalLM.from_pretrained(source, progress=False, **options)
    low_bit, threads = options["load_in_low_bit"], options["threads"]
    return load_text_model(source, engine="native", low_bit=low_bit, threads=threads, progress=False)


def answers_of(
    model: Any, prompts: Sequence[list[int]], max_new_tokens: int, lookahead: Any
) -> tuple[list[list[int]], dict[str, float]]:
    """Return the tokens of greedy answers, and the speed in tokens per second and per step."""
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
    """Return the problems as sentences. Unequal answers count for row-invariant engines only."""
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


def reported_name(model: str, tiny: bool) -> str:
    """Return the name of a model for the report, without its folder."""
    return "a small random one" if tiny else Path(model).name if Path(model).exists() else model


@contextmanager
def model_to_load(
    model: str, tiny: bool, low_bit: str | None
) -> Iterator[tuple[str, dict[str, Any], list[list[int]] | None]]:
    """Return the model's path, arguments to load it, and token ids of prompts for the random model."""
    if not tiny:
        yield model, {"load_in_low_bit": low_bit}, None
        return
    with TemporaryDirectory() as folder:
        yield folder, {"load_in_low_bit": low_bit or "sym_int4"}, _write_tiny(Path(folder))


def _write_tiny(folder: Path) -> list[list[int]]:
    """Write a random Llama with a byte tokenizer, and return prompts for it."""
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
        # With smaller weights, answers would repeat one token.
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
    """Return the token ids of ``count`` questions. Raises LookaheadError without a tokenizer."""
    from ipex_lookahead.tokenization.prompts import build_prompt

    if model.tokenizer is None:
        why = model.engine.describe().get("no_tokenizer") or "the model carries none"
        raise LookaheadError(f"the model has no tokenizer: {why}", hint="add its tokenizer.json to the folder")
    config = model.config if isinstance(model.config, dict) else model.config.to_dict()
    return [build_prompt(model.tokenizer, config, text) for text in questions(count)]


def questions(count: int) -> list[str]:
    """Return ``count`` prompts: packaged ones of all categories, then first halves of them, then thirds, ..."""
    texts = [prompt.text for prompt in read_prompts([PACKAGED_PROMPTS], None)]
    found = texts[:: max(1, len(texts) // count)][:count]
    while len(found) < count:
        part = 1 + len(found) // len(texts)
        found += [" ".join(text.split()[: -(-len(text.split()) // part)]) for text in texts][: count - len(found)]
    return found
