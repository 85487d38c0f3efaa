"""Several prompts in one call: the weights are read once for all of them, and each answer is what it is alone.

python examples/batch.py
python examples/batch.py "Why is the sky blue?" "Name a prime number." "Tell me a joke."
"""

from __future__ import annotations

import sys
import time

import click
import torch

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.tokenization.prompts import build_prompt

PROMPTS = ("Why is the sky blue?", "Name the planets, the innermost first.", "What is a hash table?", "Tell me a joke.")


@click.command()
@click.argument("prompts", nargs=-1)
@click.option("--model", "name", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--lookahead", default=3, type=click.IntRange(0, 128), help="Most drafted tokens a step of each.")
@click.option("--max-new-tokens", default=48, type=click.IntRange(1))
def main(prompts: tuple[str, ...], name: str, lookahead: int, max_new_tokens: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = model.tokenizer
    encoded = [build_prompt(tokenizer, model.config.to_dict(), prompt) for prompt in prompts or PROMPTS]
    longest = max(map(len, encoded))
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (longest - len(one)) + one for one in encoded])  # padded on the left
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in encoded])
    settings = {"max_new_tokens": max_new_tokens, "do_sample": False, "lookahead": lookahead}
    model.generate(ids[:1], attention_mask=mask[:1], max_new_tokens=4, lookahead=lookahead)  # warm-up

    started = time.perf_counter()
    together = model.generate(ids, attention_mask=mask, pad_token_id=pad, **settings)[:, longest:].tolist()
    between = time.perf_counter()
    alone = [model.generate(torch.tensor([one]), **settings)[0, len(one) :].tolist() for one in encoded]
    ended = time.perf_counter()

    equal = all(row[: len(own)] == own for row, own in zip(together, alone, strict=True))
    for prompt, own in zip(prompts or PROMPTS, alone, strict=True):
        print(f"> {prompt}\n{tokenizer.decode(own, skip_special_tokens=True)}\n")
    seconds = f"together {between - started:.2f} s, one by one {ended - between:.2f} s"
    print(f"{len(encoded)} prompts, {sum(map(len, alone))} tokens: {seconds};", end=" ")
    print("the same answers:", "yes" if equal else "no")
    if model.engine.row_invariant and not equal:
        raise click.ClickException("an answer must not depend on its neighbours. Please report this")


if __name__ == "__main__":
    sys.exit(run_command(main))
