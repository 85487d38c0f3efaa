"""Generate twice, without and with lookahead, and compare speed and tokens.

python examples/lookahead.py
python examples/lookahead.py --repo-id-or-model-path meta-llama/Llama-2-7b-chat-hf --low-bit sym_int4
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import click
import torch
from transformers import TextStreamer

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.terminal import counted
from ipex_lookahead.tokenization.prompts import build_prompt

ARTICLE = """\
Summarise the following article in one paragraph.

For almost a century the small river that runs through the town of Aldersby was hidden. In 1931 the council had it \
covered with concrete, because it flooded the market square nearly every spring and because the tanneries upstream had \
made it smell. A road was built on top, then a car park, and most people who grew up in the town after the war never \
knew that water was flowing under their feet. The only sign of it was the name of a street, Millrace Lane, and a line \
of damp along the cellar walls of the houses on its northern side.

The idea of opening the river again came from a school. In 2009 a geography class measured the temperature in the car \
park on a hot day in July and found that it was six degrees warmer than the cemetery a few hundred metres away. Their \
teacher, Helen Marsh, asked them what could be done about it. One pupil had found an old map in the library and \
suggested taking the lid off the river. The class wrote a letter to the council, which answered politely that the car \
park was needed. The pupils then counted the cars on thirty different days, and showed that the car park was never \
more than half full, except on the four Saturdays before Christmas.

It took another eight years before work began. The council was worried about floods, and so were the owners of the \
houses in Millrace Lane. An engineer explained that the concrete channel itself was the danger: it was too narrow for \
the heavy rains of recent years, and when it was full the water had nowhere to go but up through the drains. An open \
river with a broad, shallow bank could hold three times as much. The tanneries had closed long ago, and tests showed \
that the water was clean enough for trout.

The first hundred metres were opened in the spring of 2018. Today the river can be seen along half a kilometre, with \
steps down to the water, willow trees and a narrow wooden bridge where the entrance of the car park used to be. The \
summer temperature in the square has fallen by almost four degrees. In the winter of 2020, after three days of rain, \
the river rose to the second step and stayed there; the cellars of Millrace Lane remained dry for the first time that \
anyone could remember. Shops on the square report more customers, although two of them complained at first that there \
was no longer a place to park in front of the door.

Not everything went as planned. The trout have not come back, because a weir downstream keeps them out. Helen Marsh \
has retired. The pupil who found the map works as a hydrologist, and last year she came back to measure the \
temperature in the square with a new class from her old school.
"""


class Run(NamedTuple):
    """One generation: its new tokens, its times in seconds, tokens a step and tokens a second."""

    tokens: list[int]
    seconds: float
    first_token: float
    per_step: float
    speed: float


def generate(
    model: Any, tokenizer: Any, ids: list[int], new_tokens: int, lookahead: int, *, quiet: bool = False
) -> Run:
    streamer = None if quiet else TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    start = time.perf_counter()
    out = model.generate(torch.tensor([ids]), max_new_tokens=new_tokens, lookahead=lookahead, streamer=streamer)
    seconds = time.perf_counter() - start
    stats = model.stats
    return Run(
        out[0, len(ids) :].tolist(),
        seconds,
        stats.first_token_seconds,
        stats.mean_acceptance_length,
        stats.decode_tok_s,
    )


def report(run: Run) -> None:
    print(f"Tokens generated {len(run.tokens)}")
    print(f"E2E Generation time {run.seconds:.4f}s")
    print(f"First token latency {run.first_token:.4f}s")


@click.command(context_settings={"show_default": True})
@click.option("--repo-id-or-model-path", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--prompt", default=ARTICLE, show_default="an article to summarise", help="What to answer.")
@click.option("--n-predict", default=128, type=click.IntRange(1), help="Most tokens to generate.")
@click.option("--n-lookahead-tokens", default=3, type=click.IntRange(1, 64), help="Most drafted tokens a step.")
@click.option("--low-bit", help="sym_int4, sym_int8, bf16, fp16; as the file has it if not given.")
@click.option("--threads", type=click.IntRange(1), help="All physical cores if not given.")
def main(
    repo_id_or_model_path: str,
    prompt: str,
    n_predict: int,
    n_lookahead_tokens: int,
    low_bit: str | None,
    threads: int | None,
) -> None:
    """Generate twice, without and with lookahead, and compare."""
    model = AutoModelForCausalLM.from_pretrained(repo_id_or_model_path, load_in_low_bit=low_bit, threads=threads)
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise click.ClickException(f"{repo_id_or_model_path} carries no tokenizer")
    ids = build_prompt(tokenizer, model.config.to_dict(), prompt)

    for lookahead in (0, n_lookahead_tokens):  # warm-up
        generate(model, tokenizer, ids, min(n_predict, 16), lookahead, quiet=True)

    print("--- without lookahead ---")
    plain = generate(model, tokenizer, ids, n_predict, 0)
    report(plain)
    print(f"\n--- with lookahead, {n_lookahead_tokens} drafted tokens ---")
    ahead = generate(model, tokenizer, ids, n_predict, n_lookahead_tokens)
    report(ahead)

    identical = plain.tokens == ahead.tokens
    facts = model.engine.describe()
    ratio = f"{ahead.speed / plain.speed:.2f}x" if plain.speed else "-"
    print()
    print_table(
        ("", "tok/s", "tokens/step", "ratio", "identical"),
        [
            ("without lookahead", f"{plain.speed:.1f}", f"{plain.per_step:.2f}", "1.00x", ""),
            ("with lookahead", f"{ahead.speed:.1f}", f"{ahead.per_step:.2f}", ratio, "yes" if identical else "NO"),
        ],
        title=f"{facts['low_bit']} · {facts['isa']} · {counted(facts['threads'], 'thread')} · prompt {len(ids)} tokens",
    )
    if not identical:
        raise click.ClickException("the two outputs differ; lookahead must never change the output. Please report this")


if __name__ == "__main__":
    sys.exit(run_command(main))
