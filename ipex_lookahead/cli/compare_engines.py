"""``ipex-lookahead compare-engines``: the same prompts on every engine that is installed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import command_needs_torch, config_of, model_option, threads_option
from ipex_lookahead.cli.measuring import json_option, limit_option
from ipex_lookahead.cli.names import in_options
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import status
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import LowBit, Tokens, Words
from ipex_lookahead.system.terminal import counted

_IPEX_LLM = {"ipex-llm": "ipex-llm's model in our loop"}
ENGINE = Words(native="our kernels", torch="PyTorch", **_IPEX_LLM, opencl="our kernels on GPUs")


@dataclass
class Compared:
    """The engines, and what they answer."""

    low_bit: str | None = option(
        "Format of the weights for all engines; as the file has it if not given.", type=LowBit()
    )
    engines: tuple[str, ...] = option("Engines to compare; all if not given.", (), "--engine", type=ENGINE)
    given: tuple[str, ...] = option("A prompt; several are compared.", (), "--prompt", metavar="TEXT")
    prompts: tuple[str, ...] = option(
        "Prompts, or a folder of them; three of ours if not given.", (), type=click.Path(), metavar="FILE.jsonl"
    )
    limit: int | None = limit_option
    lookahead: tuple[int | str, ...] = option("Most drafted tokens a step, or 'auto'.", (3,), type=Tokens())
    tokens: int = option("Most tokens to generate.", 128, "--max-new-tokens", "-n", low=2)
    texts: int = option("Prompts whose answers are printed.", 1, low=0)


@command("ipex-lookahead compare-engines --lookahead auto --limit 1", name="compare-engines")
def compare_engines(
    *, model: str = model_option, what: Compared, threads: int | None = threads_option, as_json: bool = json_option
) -> None:
    """The same prompts on native, torch and ipex-llm: text, speed, agreement.

    Equal: answers with the same tokens as the same engine without lookahead, and as the native engine. Engines that
    round differently may tell another story; only lookahead must not. "own" is ipex-llm's own generate.
    """
    command_needs_torch()
    from ipex_lookahead.bench.compare_engines import compare, report
    from ipex_lookahead.bench.prompts import PACKAGED_PROMPTS, read_prompts
    from ipex_lookahead.engines import ENGINES

    for name in what.engines:
        if name not in ENGINES:
            raise click.BadParameter(f"{name!r} is none of {', '.join(ENGINES)}", param_hint="--engine")
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

    def asked_format(engine: str) -> str | None:
        # ipex-llm reads no low-bit file: it gets the weights as floats, and would keep them so.
        return what.low_bit or (low_bit_in(resolve_model(model, progress=False)) if engine == "ipex-llm" else None)

    def load(engine: str) -> Any:
        loaded = AutoModelForCausalLM.from_pretrained(
            model, engine=engine, load_in_low_bit=asked_format(engine), threads=threads, progress=False
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
            began=lambda engine: show(f"{engine} ..."),
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
    """Each prompt's answers, equal ones once."""
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
        caption="equal: answers with the very same tokens",
        to_stderr=to_stderr,
    )
