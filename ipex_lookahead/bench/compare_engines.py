"""``ipex-lookahead compare-engines``: the same prompts on every installed engine.

Engines are loaded one after the other, so that one model is in memory at a time. On each engine the modes alternate
prompt by prompt. ipex-llm's own ``generate``, with and without its own lookahead, runs on the same model object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import click

from ipex_lookahead.bench.modes import Generation, generator, with_store
from ipex_lookahead.bench.options import PACKAGED_PROMPTS, json_option, limit_option
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import command_needs_torch, config_of, model_option, threads_option
from ipex_lookahead.cli.names import in_options
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import status
from ipex_lookahead.cli.prompts import read_prompts
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import LowBit, Tokens, Words
from ipex_lookahead.config import MEMORY_STORE
from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.system.terminal import counted

_IPEX_LLM = {"ipex-llm": "ipex-llm's model in our loop"}
ENGINE = Words(native="our kernels", torch="PyTorch", **_IPEX_LLM, opencl="our kernels on GPUs")


@dataclass
class Compared:
    """The engines to compare, and their prompts."""

    low_bit: str | None = option("Weight format for all engines. Default: the file's own.", type=LowBit())
    engines: tuple[str, ...] = option("Engine to compare. Repeatable; default: all.", (), "--engine", type=ENGINE)
    given: tuple[str, ...] = option("Prompt. Repeatable.", (), "--prompt", metavar="TEXT")
    prompts: tuple[str, ...] = option(
        "Prompt file or folder. Default: three packaged prompts.", (), type=click.Path(), metavar="FILE.jsonl"
    )
    limit: int | None = limit_option
    lookahead: tuple[int | str, ...] = option("Maximum tokens to draft, or 'auto'. Repeatable.", (3,), type=Tokens())
    tokens: int = option("Maximum number of tokens per answer.", 128, "--max-new-tokens", "-n", low=2)
    texts: int = option("Number of answers to print.", 1, low=0)


@command("ipex-lookahead compare-engines --lookahead auto --limit 1", name="compare-engines")
def compare_engines(
    *, model: str = model_option, what: Compared, threads: int | None = threads_option, as_json: bool = json_option
) -> None:
    """Compare text and speed of the same prompts on native, torch and ipex-llm.

    Equal: answers with the same tokens as the same engine without lookahead, and as the native engine. Engines round
    differently, so their answers may differ; lookahead must not change them. "own" is ipex-llm's own generate.
    """
    command_needs_torch()
    from ipex_lookahead.engines import ENGINES

    for name in what.engines:
        if name not in ENGINES:
            raise click.BadParameter(
                f"unknown engine {name!r}: choose one of {', '.join(ENGINES)}", param_hint="--engine"
            )
    if what.given and what.prompts:
        raise click.UsageError("give --prompt or --prompts, not both")
    if 0 in what.lookahead:
        raise click.UsageError("plain decoding always runs; leave --lookahead 0 out")
    first = what.limit or (None if what.prompts else 3)
    texts = list(what.given) or [p.text for p in read_prompts(what.prompts or [PACKAGED_PROMPTS], first)]

    from ipex_lookahead.cli.model_facts import low_bit_in
    from ipex_lookahead.hf.auto import AutoModelForCausalLM
    from ipex_lookahead.hub import resolve_model
    from ipex_lookahead.tokenization.prompts import build_prompt

    tokenizers: list[Any] = []

    def format_for(engine: str) -> str | None:
        # ipex-llm cannot read a low-bit file: it receives floats, which it would keep by default.
        return what.low_bit or (low_bit_in(resolve_model(model, progress=False)) if engine == "ipex-llm" else None)

    def load(engine: str) -> Any:
        loaded = AutoModelForCausalLM.from_pretrained(
            model, engine=engine, load_in_low_bit=format_for(engine), threads=threads, progress=False
        )
        tokenizers.append(loaded.tokenizer)
        return loaded

    def encode(loaded: Any) -> list[list[int]]:
        return [build_prompt(loaded.tokenizer, config_of(loaded), text) for text in texts]

    with status() as show:
        found = compare(
            load,
            encode,
            engines=what.engines or tuple(ENGINES),
            lookaheads=what.lookahead,
            max_new_tokens=what.tokens,
            started=lambda engine: show(f"{engine} ..."),
        )
    absent = {name: "; ".join(filter(None, in_options(error))) for name, error in found.absent.items()}
    for name, why in absent.items():
        click.echo(f"{name} does not run here: {why}", err=True)
    if not found.rows:
        raise click.ClickException("none of these engines runs here")
    rows = report(found)
    tokenizer = tokenizers[0]
    for row in rows:
        row["texts"] = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in row["tokens"]]
    _print_texts(texts[: what.texts], rows, to_stderr=as_json)
    _print_table(
        f"{model} · {what.low_bit or 'as the file has it'} · {counted(len(texts), 'prompt')}",
        rows,
        to_stderr=as_json,
    )
    if as_json:
        entries = {"model": model, "low_bit": what.low_bit, "max_new_tokens": what.tokens, "prompts": texts}
        click.echo(json.dumps({**entries, "rows": rows, "absent": absent}))
    if broken := found.broken():
        click.echo(f"error: {broken[0].mode} changes the tokens of the {broken[0].engine} engine", err=True)
    if broken or any(name in absent for name in what.engines):
        raise click.exceptions.Exit(1)


def _print_texts(prompts: list[str], rows: list[dict[str, Any]], *, to_stderr: bool) -> None:
    """Print the answers to each prompt; equal ones once."""
    for number, prompt in enumerate(prompts):
        click.echo(f"> {prompt}\n", err=to_stderr)
        answers: dict[str, list[str]] = {}
        for row in rows:
            answers.setdefault(row["texts"][number], []).append(f"{row['engine']} {row['mode']}")
        for text, names in answers.items():
            click.echo(f"[{', '.join(names)}]\n{text.strip()}\n", err=to_stderr)


def _print_table(title: str, rows: list[dict[str, Any]], *, to_stderr: bool) -> None:
    length = "mean_acceptance_length"
    print_rows(
        {
            "engine": "{engine}",
            "mode": "{mode}",
            "tok/s": "{tok_s:.1f}",
            "ratio": "{ratio:.2f}x",
            "tok/step": lambda row: "-" if row[length] is None else f"{row[length]:.2f}",
            "equal own plain": "{identical_to_plain}",
            "equal native": lambda row: row["identical_to_native"] or "-",
        },
        rows,
        keys=2,
        title=title,
        caption="equal: answers with the same tokens",
        to_stderr=to_stderr,
    )


Generate = Callable[[Sequence[int]], Generation]
"""``generate(prompt_ids)``: one greedy answer."""

OWN = "own"
"""Prefix of the modes of ipex-llm's own ``generate``."""


@dataclass(slots=True)
class Row:
    """One engine in one mode: "plain", "lookahead 3", or ipex-llm's "own plain" and "own lookahead 3"."""

    engine: str
    mode: str
    low_bit: str
    row_invariant: bool
    answers: list[Generation] = field(default_factory=list)

    @property
    def tok_s(self) -> float:
        """Tokens per second, without the first of each answer."""
        seconds = sum(answer.stats.decode_seconds for answer in self.answers)
        return sum(answer.stats.decode_tokens for answer in self.answers) / seconds if seconds > 0 else 0.0

    def equal(self, other: Row) -> int:
        """Return the number of answers with the same tokens."""
        return sum(a.tokens == b.tokens for a, b in zip(self.answers, other.answers, strict=True))


@dataclass(slots=True)
class Comparison:
    """The rows of the engines that ran, and the errors of the others."""

    rows: list[Row] = field(default_factory=list)
    absent: dict[str, LookaheadError] = field(default_factory=dict)

    def plain_of(self, row: Row) -> Row:
        """Return the row of the same engine and ``generate`` without lookahead."""
        mode = f"{OWN} plain" if row.mode.startswith(OWN) else "plain"
        return next(other for other in self.rows if (other.engine, other.mode) == (row.engine, mode))

    def native(self) -> Row | None:
        """Return the row of the native engine without lookahead, if it ran."""
        return next((row for row in self.rows if (row.engine, row.mode) == ("native", "plain")), None)

    def broken(self) -> list[Row]:
        """Return the rows of row-invariant engines that lookahead has changed."""
        ours = [row for row in self.rows if row.row_invariant and not row.mode.startswith(OWN)]
        return [row for row in ours if row.equal(self.plain_of(row)) < len(row.answers)]


def compare(
    load: Callable[[str], Any],
    encode: Callable[[Any], list[list[int]]],
    *,
    engines: Iterable[str],
    lookaheads: Sequence[Any] = (3,),
    max_new_tokens: int = 128,
    started: Callable[[str], None] = lambda engine: None,
) -> Comparison:
    """Run the prompts on one engine after the other.

    Args:
        load: Loads a model on an engine. A LookaheadError means that the engine cannot run here.
        encode: Returns the token ids of each prompt for a model.
        engines: Keys of ``ENGINES``.
        lookaheads: Lookahead settings; each is a mode in addition to plain decoding.
        max_new_tokens: Most tokens of each answer.
        started: Called with the name of each engine before it is loaded.
    """
    found = Comparison()
    for engine in engines:
        started(engine)
        try:
            model = load(engine)
            found.rows += _rows(engine, model, encode(model), lookaheads, max_new_tokens)
            del model  # free its memory before the next one is loaded
        except LookaheadError as error:
            found.absent[engine] = error
    return found


def _rows(
    engine: str, model: Any, prompts: Sequence[Sequence[int]], lookaheads: Sequence[Any], max_new_tokens: int
) -> list[Row]:
    ours = generator(model, max_new_tokens, do_sample=False)
    modes: list[tuple[str, Generate]] = []
    for number, setting in enumerate((0, *lookaheads)):
        modes.append((_mode(setting), _bound(ours, with_store(setting, f"{MEMORY_STORE}:{number}"))))
    if engine == "ipex-llm":
        for tokens in (0, *(n for n in lookaheads if isinstance(n, int) and n > 0)):
            modes.append((f"{OWN} {_mode(tokens)}", _own(model, max_new_tokens, tokens)))
    rows = [Row(engine, mode, str(model.low_bit), bool(model.engine.row_invariant)) for mode, _ in modes]
    for _, generate in modes:  # warm-up: pages, threads, calibration
        generate(prompts[0])
    model.forget()
    for prompt in prompts:
        for row, (_, generate) in zip(rows, modes, strict=True):
            row.answers.append(generate(prompt))
    return rows


def _mode(setting: Any) -> str:
    from ipex_lookahead.runtime.lookahead import resolve_lookahead

    if resolve_lookahead(setting) is None:
        return "plain"
    return f"lookahead {setting}" if isinstance(setting, (int, str)) else f"lookahead {setting.strategy}"


def _bound(generate: Callable[[Sequence[int], Any], Generation], setting: Any) -> Generate:
    return lambda prompt: generate(prompt, setting)


def _own(model: Any, max_new_tokens: int, lookahead: int) -> Generate:
    """Return ipex-llm's own ``generate`` on the model of our engine.

    It has no statistics of plain decoding, so a further call for one token measures the time of the prompt.
    """
    import torch

    from ipex_lookahead.decoding.stats import GenerationStats
    from ipex_lookahead.engines.torch.device import torch_threads

    theirs = model.engine.model
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": model.generation_config.eos_token_id}
    options["pad_token_id"] = 0
    if lookahead:
        options["lookahead"] = lookahead

    def run(ids: torch.Tensor, tokens: int) -> tuple[list[int], float]:
        began = perf_counter()
        with torch_threads(model.engine.threads):
            out = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **options)
        return out[0, ids.shape[1] :].tolist(), perf_counter() - began

    def generate(prompt: Sequence[int]) -> Generation:
        ids = torch.tensor([list(prompt)], dtype=torch.long)
        # Its lookahead may return more than ``max_new_tokens`` tokens.
        first, all_of_it = run(ids, 1), run(ids, max_new_tokens)
        new = all_of_it[0][:max_new_tokens]
        stats = GenerationStats(tokens=len(new), prompt_tokens=len(prompt), first_token_seconds=first[1])
        stats.decode_seconds = max(all_of_it[1] - first[1], 1e-9)
        return Generation(new, stats)

    return generate


def report(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one entry for each row: speed, and equality with plain decoding and with the native engine."""
    native, entries = comparison.native(), []
    for row in comparison.rows:
        plain, count = comparison.plain_of(row), len(row.answers)
        entries.append(
            {
                "engine": row.engine,
                "mode": row.mode,
                "low_bit": row.low_bit,
                "tok_s": row.tok_s,
                "ratio": row.tok_s / plain.tok_s if plain.tok_s else 0.0,
                "mean_acceptance_length": _acceptance_length(row),
                "identical_to_plain": f"{row.equal(plain)}/{count}",
                "identical_to_native": None if native is None else f"{row.equal(native)}/{count}",
                "tokens": [answer.tokens for answer in row.answers],
            }
        )
    return entries


def _acceptance_length(row: Row) -> float | None:
    """Return the tokens per forward, or None if unknown."""
    steps = sum(answer.stats.sequence_steps for answer in row.answers)
    return sum(answer.stats.decode_tokens for answer in row.answers) / steps if steps else None
