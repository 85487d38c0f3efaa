"""Record digests of what the package computes and answers (`--write FILE`), or compare with a record (`--check FILE`).

A refactoring is safe when it changes no digest. Each line of a record is the digest of one result and the result's
name: tokens and logits of tiny random models on every instruction set of this machine, the files of saved folders, HTTP
answers and event streams, and what commands print with `--json`. `--check` prints the names of digests that differ, are
missing or are new, and exits with status 1 if there are any. `--only TEXT` limits both to names that contain TEXT.
`--show` prints each result in full: run it on two commits to see how a result changed.

Masked are times, ids, numbers of drafted tokens (they follow measured times) and the words of messages.
Digests depend on torch, numpy and the machine's instruction sets: record and check on one machine, with one .venv.
"""

# ruff: noqa: E402
from __future__ import annotations

import hashlib
import http.client
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")

# All imports that a move can rename.
import click
import numpy as np
import torch

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig, LookaheadError
from ipex_lookahead.formats import FORMATS
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.family_table import FAMILIES, variants
from tests.support.gguf_families import write_gguf
from tests.support.heads import KINDS as HEADS
from tests.support.heads import write as write_head
from tests.support.ipex_llm_folder import write_ipex_llm
from tests.support.pairs import pairwise
from tests.support.quantized_float_folders import compressed_fp8, fp8, mxfp4, nvfp4
from tests.support.quantized_folders import ORDERED, awq, bnb4, bnb8, compressed, gptq, write_quantized
from tests.support.tiny import write_tiny_gguf, write_tiny_llama
from tests.support.tiny_families import build, write_folder

Results = Iterator[tuple[str, Any]]
"""Names and what is hashed: bytes, or an object that JSON can hold."""

PROMPTS = [[1, 40, 7, 7, 40, 7], [0, 0, 1, 9, 30, 31], [0, 1, 50, 9, 50, 9]]
"""A batch; the zeros at the left are padding."""
HOW: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 11},
}
STRATEGIES = ("off", "auto", "jacobi", "prompt_lookup", "recycling", "suffix")
SECOND = ("draft_model", "self_speculation")
"""Strategies that run a second model."""
WIDE = ("sym_int8", "fp16", "bf16", "fp32", None)
"""Formats that self_speculation accepts: a copy in four bits is smaller."""
MIXTURES = ("gguf_q4k_m", "gguf_q4k_s", "mixed_fp4", "mixed_fp8", "sym_int4_head5")
QUANTIZED = (
    gptq(4, 32, True), gptq(8, -1, False), gptq(3, 32, True), gptq(2, 64, False), awq(64), awq(32, layout="gemv"),
    compressed(4, "group", 32, False), compressed(8, "channel", -1, True, packed=False), bnb4("nf4", nested=True),
    bnb4("fp4"), bnb8(), *ORDERED, fp8(), compressed_fp8("channel"), nvfp4(), mxfp4(),
)  # fmt: skip


# ---- models ----------------------------------------------------------------------------------------------------------


def load(path: Path, isa: str, low_bit: str | None, threads: int = 1, **options: Any) -> Any:
    """Return the checkpoint on the native engine."""
    os.environ["IPEX_LOOKAHEAD_ISA"] = isa
    return AutoModelForCausalLM.from_pretrained(
        path, load_in_low_bit=low_bit, threads=threads, engine="native", progress=False, **options
    )


def drafts(strategy: str) -> Any:
    """Return the ``lookahead`` argument of ``generate``: draft lengths that do not follow measured times."""
    if strategy == "off":
        return 0
    return LookaheadConfig(strategy, 5, adaptive=False, draft_min_prob=0.0)


def generated(model: Any, how: str, batch: int, strategy: str, tokens: int = 16, **options: Any) -> bytes:
    """Return the bytes of the token ids and of the logits of a generation."""
    out = model.generate(
        torch.tensor(PROMPTS[:batch]), attention_mask=torch.tensor(PROMPTS[:batch]).ne(0).long(), eos_token_id=None,
        pad_token_id=0, max_new_tokens=tokens, lookahead=drafts(strategy), return_dict_in_generate=True,
        output_logits=True, **HOW[how], **options,
    )  # fmt: skip
    return b"".join([out.sequences.numpy().tobytes(), *(step.float().numpy().tobytes() for step in out.logits)])


def prompt_logits(model: Any) -> bytes:
    """Return the bytes of the logits of each position of a text."""
    ids = torch.tensor([np.random.default_rng(0).integers(3, 90, 20).tolist()])
    return bytes(model(ids).logits.float().numpy().tobytes())


def rotating(values: tuple[Any, ...], *at: int) -> Any:
    """Return a value for an index, or for several: neighbors in each of them get different values."""
    return values[sum(index * step for index, step in zip(at, (1, 7, 3), strict=False)) % len(values)]


def families(folder: Path, isas: tuple[str, ...]) -> Results:
    """Each variant of each family on each instruction set, in formats and with strategies that rotate."""
    formats = (None, *FORMATS)
    every = [(family, variant) for family in FAMILIES for variant in variants(family)]
    for at, (family, variant) in enumerate(every):
        made = build(family, variant)
        path = write_folder(folder / f"{family}-{at}", made)
        for number, isa in enumerate(isas):
            low_bit, kv_cache = rotating(formats, at, number), rotating(("fp16", "int8"), at, number)
            model = load(path, isa, low_bit, kv_cache=kv_cache, threads=1 + at % 2)
            name = f"family/{family}/{variant.name}/{isa}/{low_bit}/{kv_cache}"
            yield f"{name}/prompt", prompt_logits(model)
            for turn in range(4 if isa != "scalar" else 2):
                strategy = rotating(STRATEGIES, at + turn, number)
                how, batch = list(HOW)[(at + turn) % 2], (1, 3)[(at + turn // 2 + number) % 2]
                yield f"{name}/{strategy}/{how}/{batch}", generated(model, how, batch, strategy)
    for at, family in enumerate(FAMILIES):
        try:
            path = write_gguf(folder / f"{family}.gguf", build(family, variants(family)[0]))
        except (KeyError, NotImplementedError, ValueError):  # a family without GGUF files
            continue
        isa = rotating(isas, at)
        model = load(path, isa, None)
        yield f"gguf/{family}/{isa}/prompt", prompt_logits(model)
        yield f"gguf/{family}/{isa}/greedy/3", generated(model, "greedy", 3, "auto")


def other_engines(folder: Path, isas: tuple[str, ...]) -> Results:
    """Families on PyTorch, and on OpenCL where pyopencl is installed (the environment of `make test-opencl`)."""
    engines = ["torch", *["opencl"] * (importlib.util.find_spec("pyopencl") is not None)]
    for at, family in enumerate(FAMILIES):
        path = write_folder(folder / family, build(family, variants(family)[0]))
        for engine in engines:
            low_bit = rotating(("sym_int4", "fp32", "sym_int8", "nf4"), at)
            try:
                model = AutoModelForCausalLM.from_pretrained(
                    path, load_in_low_bit=low_bit, engine=engine, threads=1, progress=False
                )
                yield f"{engine}/{family}/{low_bit}/greedy", generated(model, "greedy", 1, "off")
            except LookaheadError as error:  # the engine refuses some families
                yield f"{engine}/{family}/{low_bit}/greedy", type(error).__name__


def formats(folder: Path, isas: tuple[str, ...]) -> Results:
    """Each format and each quantized checkpoint on each instruction set; every pair of options of ``generate``."""
    path = write_tiny_llama(folder / "llama", layers=3, tie=False)
    small = write_tiny_llama(folder / "small", layers=1, hidden=32, intermediate=64)
    for low_bit in (*FORMATS, *MIXTURES):
        for isa in isas:
            model = load(path, isa, low_bit)
            yield f"format/{low_bit}/{isa}/prompt", prompt_logits(model)
            yield f"format/{low_bit}/{isa}/greedy/3", generated(model, "greedy", 3, "off")
    for at, kind in enumerate(QUANTIZED):
        write_quantized(folder / f"quantized-{at}", kind)
        for isa in isas:
            model = load(folder / f"quantized-{at}", isa, None)
            yield f"checkpoint/{kind.name}/{isa}/prompt", prompt_logits(model)
    for quant in ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "Q2_K", "IQ4_NL", "IQ3_XXS", "IQ1_M", "TQ2_0"):
        file = write_tiny_gguf(folder / f"{quant}.gguf", quant=quant, hidden=256, intermediate=256)
        yield f"checkpoint/{quant}/prompt", prompt_logits(load(file, isas[0], None))
    options: dict[str, tuple[Any, ...]] = {
        "isa": isas, "low_bit": (None, "fp16", "sym_int8", "sym_int4", "asym_int4", "mxfp4", "nf4", "q4_k"),
        "strategy": (*STRATEGIES, *SECOND), "how": tuple(HOW), "batch": (1, 3), "kv_cache": ("fp16", "int8"),
        "threads": (1, 2), "mixed_precision": (False, True), "group_size": (32, 64),
    }  # fmt: skip
    for row in pairwise(options, lambda r: r.get("strategy") != "self_speculation" or r.get("low_bit") in WIDE):
        loading = {name: row[name] for name in ("low_bit", "threads", "kv_cache", "mixed_precision", "group_size")}
        model = load(path, row["isa"], **loading)
        more = {"draft_model": load(small, row["isa"], None)} if row["strategy"] == "draft_model" else {}
        name = "options/" + "/".join(str(row[name]) for name in options)
        yield name, generated(model, row["how"], row["batch"], row["strategy"], 32, **more)


def heads(folder: Path, isas: tuple[str, ...]) -> Results:
    """Each kind of head that drafts, on each instruction set."""
    for at, kind in enumerate(HEADS):
        target, head = write_head(kind, folder / str(at))
        for number, isa in enumerate(isas):
            low_bit = rotating((None, "sym_int4", "sym_int8", "q6_k"), at, number)
            model = load(target, isa, low_bit, **({} if head is None else {"drafter": head}))
            for how in HOW:
                for batch in (1, 3):
                    for strategy in ("off", "head", "auto"):
                        name = f"head/{kind}/{isa}/{low_bit}/{strategy}/{how}/{batch}"
                        yield name, generated(model, how, batch, strategy, 12)


def files_of(folder: Path) -> dict[str, str]:
    """Return the digest of each file below a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in found}


def saved(folder: Path, isas: tuple[str, ...]) -> Results:
    """The files that ``save_low_bit`` writes, and the logits after loading them again."""
    for family in ("llama", "qwen3_moe", "qwen3_5_text", "gpt_oss", "deepseek_v2"):
        path = write_folder(folder / family, build(family, variants(family)[0]))
        for low_bit in (*FORMATS, *MIXTURES) if family == "llama" else ("sym_int4", "q4_k", "fp16"):
            out = folder / f"{family}-{low_bit}"
            load(path, isas[0], low_bit).save_low_bit(out)
            yield f"saved/{family}/{low_bit}", files_of(out)
            yield f"saved/{family}/{low_bit}/prompt", prompt_logits(load(out, isas[0], None))


# ---- commands and the server -----------------------------------------------------------------------------------------

MEASURED = re.compile(
    r"(^|_)(ms|s|us|cpu|ratios?|quartiles|noise|lengths|seconds|duration|time|created|at|costs|milliseconds|drafted|"
    r"accepted|acceptance|ttft|memory|rss|used|latency|fingerprint|versions?)($|_)|tok_s|^draft_|tokens_per|per_second|"
    r"^(id|item_id|response_id|call_id|isa|threads|timings|digest|build_info|date|machine|left_out)$"
)
"""Keys of JSON objects with values that follow times, the machine or the release."""
WORDS = ("message", "hint", "error")
"""Keys of the texts of errors."""
ID = re.compile(r"\b(chatcmpl|cmpl|resp|msg|call|toolu|fc|rs|req)[-_][0-9A-Za-z_-]+")


def masked(value: Any, folder: Path | None = None, key: str = "") -> Any:
    """Return a JSON value without what differs from run to run."""
    if MEASURED.search(key) and not isinstance(value, bool) or key in WORDS and isinstance(value, str):
        return "*"
    if isinstance(value, dict):
        return {name: masked(one, folder, name) for name, one in value.items()}
    if isinstance(value, list):
        return [masked(one, folder, "") for one in value]
    if isinstance(value, str):
        return ID.sub(r"\1-*", value if folder is None else value.replace(str(folder), "FOLDER"))
    return value


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of commands: caches below ``folder``, and no colors."""
    own = {"IPEX_LOOKAHEAD_CACHE": "cache", "IPEX_LOOKAHEAD_COSTS": "costs", "HF_HOME": "hub"}
    inherited = {name: value for name, value in os.environ.items() if name != "IPEX_LOOKAHEAD_ISA"}
    return {**inherited, **{name: str(folder / at) for name, at in own.items()}, "NO_COLOR": "1"}


def command(folder: Path, *words: str) -> Any:
    """Return the exit status of a command and the JSON objects that it prints; other lines are left out."""
    full = [sys.executable, "-m", "ipex_lookahead", *words]
    done = subprocess.run(full, capture_output=True, text=True, env=environment(folder), cwd=ROOT, timeout=300)
    objects = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [done.returncode, masked(objects, folder)]


def served_model(folder: Path) -> Path:
    """Write a tiny model with a tokenizer of bytes and a chat template."""
    path = write_tiny_llama(folder / "served", vocab=SIZE, context=2048, seed=3)
    chat_tokenizer().save_pretrained(path)
    return path


def commands(folder: Path, isas: tuple[str, ...]) -> Results:
    """What commands print with ``--json``, and the files that they write."""
    path, gguf = str(served_model(folder)), str(write_tiny_gguf(folder / "tiny.gguf", quant="Q4_K", hidden=256))
    text, prompts = folder / "text.txt", folder / "prompts.jsonl"
    text.write_text("the cat sat on the mat and the dog sat on the cat. " * 40, encoding="utf-8")
    lines = [{"id": at, "prompt": one} for at, one in enumerate(("one two one two", "three"))]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    write_ipex_llm(folder / "ipex_llm", "sym_int4")
    small = ["--threads", "1", "-m", path]
    fixed = ["--no-adaptive", "-n", "24", "--json", *small]
    sampled = ["--temperature", "0.9", "--top-p", "0.9", "--seed", "5"]
    for name, words in {
        "info folder": ["info", path, "--json"],
        "info gguf": ["info", gguf, "--json"],
        "list": ["list", "--json"],
        "generate": ["generate", "hello hello", *fixed],
        "generate sampled": ["generate", "hello", *sampled, "--strategy", "suffix", *fixed],
        "generate raw": ["generate", "ab ab ab", "--raw", "--strategy", "jacobi", *fixed],
        "generate low bit": ["generate", "hello", "--low-bit", "sym_int4", "--kv-cache", "int8", *fixed],
        "generate penalties": ["generate", "hi", "--presence-penalty", "1", "--repetition-penalty", "1.2", *fixed],
        "generate prompts": ["generate", "--prompts", str(prompts), "--no-adaptive", "-n", "12", *small],
        "generate no model": ["generate", "hello", "-m", str(folder / "none"), "--json"],
        "quantize": ["quantize", path, str(folder / "quantized"), "--low-bit", "q4_k"],
        "quantize mixed": ["quantize", path, str(folder / "mixed"), "--low-bit", "sym_int4", "--mixed-precision"],
        "imatrix": ["imatrix", "-m", path, "--text", str(text), "--to", str(folder / "matters.gguf"), "--threads", "1"],
        "convert-ipex-llm": ["convert-ipex-llm", str(folder / "ipex_llm"), str(folder / "converted")],
        "drafter cut": ["drafter", "cut", path, "--text", str(text), "--output", str(folder / "cut.json")],
        "bench exact": ["bench", "exact", "--prompts", str(prompts), "-n", "12", "--mode", "fixed", "--json", *small],
        "bench decode": ["bench", "decode", "--prompts", str(prompts), "-n", "12", "--json", *small],
        "bench quality": ["bench", "quality", "--low-bit", "sym_int4,q4_k", "--text", str(text), "--no-speed"]
        + ["--tokens", "300", "--window", "64", "--json", *small],
    }.items():
        yield f"command/{name}", command(folder, *words)
    for made in ("quantized", "mixed", "converted"):
        yield f"command/files of {made}", files_of(folder / made)
    yield (
        "command/files of imatrix and cut",
        [(folder / made).read_bytes().hex() for made in ("matters.gguf", "cut.json")],
    )


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one two one two"}]
USER = CHAT[1:]
TOOL = {
    "name": "look",
    "description": "look up",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}
OPENAI_TOOL = {"type": "function", "function": TOOL}
CLAUDE_TOOL = {"name": "look", "description": "look up", "input_schema": TOOL["parameters"]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "enum": [1, 2]}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "one", "schema": SCHEMA, "strict": True}}
COOL = {"temperature": 0.8, "top_p": 0.9, "seed": 7}
OPENAI, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CLAUDE, OLLAMA, LLAMA = "/v1/messages", "/api/chat", "/completion"

REQUESTS: tuple[tuple[str, Any], ...] = (
    ("/v1/models", None), ("/v1/models/tiny", None), ("/health", None), ("/api/tags", None), ("/props", None),
    ("/tokenizer_info", None), ("/openapi.json", None),
    ("/tokenize", {"prompt": "hello <|im_end|>"}), ("/detokenize", {"tokens": [70, 71, 72]}),
    ("/apply-template", {"messages": CHAT}), ("/api/show", {"model": "tiny"}),
    (OPENAI, {"messages": CHAT, "max_tokens": 24}),
    (OPENAI, {"messages": CHAT, "max_tokens": 24, "stream": True, "stream_options": {"include_usage": True}}),
    (OPENAI, {"messages": USER, "max_tokens": 12, "n": 2, "logprobs": True, "top_logprobs": 3, **COOL}),
    (OPENAI, {"messages": USER, "max_tokens": 24, "response_format": FORMAT}),
    (OPENAI, {"messages": USER, "max_tokens": 16, "tools": [OPENAI_TOOL], "tool_choice": "auto"}),
    (OPENAI, {"messages": USER, "max_tokens": 200, "tools": [OPENAI_TOOL], "tool_choice": "required", "stream": True}),
    (OPENAI, {"messages": "none", "max_tokens": 24}),
    (OPENAI, {"messages": USER, "max_tokens": 24, "presence_penalty": 1.5, "logit_bias": {"70": 5}, "stop": ["zz"]}),
    (TEXTS, {"prompt": "one two one", "max_tokens": 20, "echo": True, "logprobs": 2}),
    (TEXTS, {"prompt": ["one two", "three"], "max_tokens": 10, **COOL}),
    (TEXTS, {"prompt": "one two one", "max_tokens": 20, "stream": True, **COOL}),
    (TEXTS, {"prompt": "one", "max_tokens": "many"}),
    (RESPONSES, {"input": "one two one", "max_output_tokens": 20, "temperature": 0.9}),
    (RESPONSES, {"input": CHAT, "max_output_tokens": 20, "stream": True, "store": False, "temperature": 1}),
    (RESPONSES, {"input": [{"type": "unknown"}]}),
    (CLAUDE, {"messages": USER, "system": "Be brief.", "max_tokens": 20}),
    (CLAUDE, {"messages": USER, "max_tokens": 20, "stream": True, "stop_sequences": ["zz"], "top_k": 5}),
    (CLAUDE, {"messages": USER, "max_tokens": 200, "tools": [CLAUDE_TOOL], "tool_choice": {"type": "any"}}),
    (CLAUDE, {"messages": USER}),
    (CLAUDE + "/count_tokens", {"messages": CHAT[1:], "system": "Be brief."}),
    (OLLAMA, {"messages": CHAT, "stream": False, "options": {"num_predict": 20}}),
    (OLLAMA, {"messages": CHAT, "options": {"num_predict": 20, "temperature": 0.7, "seed": 3}}),
    ("/api/generate", {"prompt": "one two", "options": {"num_predict": 20}}),
    ("/api/generate", {"prompt": 5}),
    (LLAMA, {"prompt": "one two one two", "n_predict": 20, "stop": ["zz"]}),
    (LLAMA, {"prompt": "one two one two", "n_predict": 20, "stream": True, **COOL}),
    (LLAMA, {"prompt": "one", "n_predict": "many"}),
)  # fmt: skip
"""Paths and bodies; ``model`` is added to each. None: a GET."""


def one_shape(event: Any, texts: list[str], key: str = "") -> Any:
    """Return an event with the words of its pieces taken out, into ``texts``: how they are cut follows times."""
    if key in ("tokens", "sequence_number", "tokens_predicted"):
        return "*"
    if isinstance(event, dict):
        return {name: one_shape(one, texts, name) for name, one in event.items()}
    if isinstance(event, list):
        return [one_shape(one, texts, key) for one in event]
    if isinstance(event, str) and key in ("content", "text", "delta", "response", "arguments", "partial_json"):
        texts.append(event)
        return "..."
    return event


def stream_of(body: str) -> list[Any]:
    """Return the events of a stream; neighbors of the same kind become one, with their texts joined."""
    found: list[Any] = []
    for line in body.splitlines():
        data = line.removeprefix("data: ")
        if not data.startswith("{"):
            found += [line] * (bool(line) and not line.startswith(":") and not line.startswith("event:"))
            continue
        texts: list[str] = []
        shape = one_shape(masked(json.loads(data)), texts)
        if found and isinstance(found[-1], dict) and found[-1]["event"] == shape:
            found[-1]["text"] += "".join(texts)
        else:
            found.append({"event": shape, "text": "".join(texts)})
    return found


def answer(port: int, path: str, body: Any) -> Any:
    """Return the status, the content type and the masked body of an answer."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    if body is None:
        link.request("GET", path)
    else:
        link.request("POST", path, json.dumps({"model": "tiny", **body}), {"content-type": "application/json"})
    got = link.getresponse()
    text, kind = got.read().decode(), got.headers["content-type"] or ""
    link.close()
    if "event-stream" in kind or "ndjson" in kind:
        return [got.status, kind, stream_of(text)]
    if path == "/openapi.json":  # its descriptions are prose
        return [got.status, kind, {path: sorted(methods) for path, methods in json.loads(text)["paths"].items()}]
    return [got.status, kind, masked(json.loads(text)) if "json" in kind else text]


def served(folder: Path, isas: tuple[str, ...]) -> Results:
    """The answers of a server, twice: the second time prompts come from its cache."""
    words = ["serve", "-m", str(served_model(folder)), "--port", "0", "--threads", "1", "--served-model-name", "tiny"]
    log = folder / "serve.log"
    with log.open("w") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "ipex_lookahead", *words, "--lookahead", "3", "--no-adaptive"],
            stdout=output, stderr=output, env=environment(folder), cwd=ROOT,
        )  # fmt: skip
    try:
        while (ready := re.search(r"ready at http://127.0.0.1:(\d+)", log.read_text())) is None:
            if running.poll() is not None:
                raise SystemExit(f"error: the server does not start:\n{log.read_text()}")
            time.sleep(0.1)
        for again in ("first", "again"):
            for at, (path, body) in enumerate(REQUESTS):
                yield f"http/{at:02} {path}/{again}", answer(int(ready[1]), path, body)
    finally:
        running.terminate()
        running.wait(60)


# ---- records ---------------------------------------------------------------------------------------------------------

PARTS = (families, formats, served, heads, other_engines, saved, commands)


def plain(value: Any) -> bytes:
    """Return what is hashed of a result."""
    return value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, ensure_ascii=False).encode()


def digest(data: bytes) -> str:
    """Return 16 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:16]


def part(number: int, isas: tuple[str, ...], only: str, show: bool) -> dict[str, str]:
    """Return the digests of a part, by name; with ``show`` the results themselves."""
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="digests-") as folder:
        os.environ["IPEX_LOOKAHEAD_COSTS"] = str(Path(folder) / "costs")
        for name, value in PARTS[number](Path(folder), isas):
            if name in found:
                raise SystemExit(f"error: two results have the name {name!r}: give each its own")
            if only in name:
                data = plain(value)
                found[name] = (data.hex() if isinstance(value, bytes) else data.decode()) if show else digest(data)
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--write", type=Path, metavar="FILE", help="Record.")
@click.option("--check", type=Path, metavar="FILE", help="Compare with a record.")
@click.option("--show", is_flag=True, help="Print each result in full.")
@click.option("--only", default="", metavar="TEXT", help="Results with names that contain this text.")
@click.option("--jobs", default=2, show_default=True, metavar="N", help="Processes.")
def main(write: Path | None, check: Path | None, show: bool, only: str, jobs: int) -> None:
    """Record digests of what the package computes, or compare with a record."""
    if (write is not None) + (check is not None) + show != 1:
        raise click.UsageError("give one of --write FILE, --check FILE and --show")
    facts = subprocess.run([sys.executable, "-m", "ipex_lookahead", "info", "--json"], capture_output=True, cwd=ROOT)
    isas = tuple(json.loads(facts.stdout)["engine"]["isa_available"])
    found: dict[str, str] = {}
    with ProcessPoolExecutor(jobs) as pool:
        waiting = [pool.submit(part, number, isas, only, show) for number in range(len(PARTS))]
        for one in waiting:
            found |= one.result()
    lines = [f"{value} {name}\n" for name, value in sorted(found.items())]
    if write:
        head = f"# instruction sets: {', '.join(isas)}; torch {torch.__version__}; numpy {np.__version__}\n"
        write.write_text("".join([head, *lines]), encoding="utf-8")
        print(f"{len(found)} digests written to {write}")
    elif check:
        recorded = (line.split(" ", 1) for line in check.read_text(encoding="utf-8").splitlines() if line[0] != "#")
        before = {name: value for value, name in recorded if only in name}
        changes = [f"differs: {name}" for name in sorted(found.keys() & before.keys()) if found[name] != before[name]]
        changes += [f"missing: {name}" for name in sorted(before.keys() - found.keys())]
        changes += [f"new: {name}" for name in sorted(found.keys() - before.keys())]
        print("\n".join([*changes, f"{len(found)} digests compared, {len(changes)} changed"]))
        sys.exit(bool(changes))
    else:
        sys.stdout.writelines(lines)


if __name__ == "__main__":
    main()
