"""Lookahead Decoding as in the paper (ICML 2024): n-grams from a window of tokens that is improved in parallel.

python examples/jacobi_lookahead.py
python examples/jacobi_lookahead.py --window 5 --ngram 4 --guesses 5
"""

from __future__ import annotations

import sys

import click
import torch

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.tokenization.prompts import build_prompt


@click.command()
@click.argument("prompt", default="Write a Python function that counts the words of a text.")
@click.option("--model", "name", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--window", default=7, type=click.IntRange(1, 60), help="Width of the window (W in the paper).")
@click.option("--ngram", default=4, type=click.IntRange(2, 16), help="Tokens per n-gram (N in the paper).")
@click.option("--guesses", default=7, type=click.IntRange(1, 60), help="N-grams to verify per step (G in the paper).")
@click.option("--max-new-tokens", default=96, type=click.IntRange(2))
def main(prompt: str, name: str, window: int, ngram: int, guesses: int, max_new_tokens: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(name)
    ids = torch.tensor([build_prompt(model.tokenizer, model.config.to_dict(), prompt)])
    rows_a_step = min(128, (ngram - 1) * (window + guesses))
    settings = {"strategy": "jacobi", "window": window, "ngram": ngram, "guesses": guesses}
    always = LookaheadConfig(num_draft_tokens=rows_a_step, adaptive=False, **settings)
    adaptive = LookaheadConfig(num_draft_tokens=rows_a_step, **settings)
    model.generate(ids, max_new_tokens=8, do_sample=False, lookahead=adaptive)  # warm-up; rows are timed once
    rows, texts = [], []
    for label, lookahead in (("off", 0), ("whole window, always", always), ("where it pays", adaptive)):
        out = model.generate(ids, max_new_tokens=max_new_tokens, do_sample=False, lookahead=lookahead)
        texts.append(out[0].tolist())
        stats = model.stats
        same = "yes" if texts[-1] == texts[0] else "NO"
        rows.append((label, f"{stats.decode_tok_s:.1f}", f"{stats.mean_acceptance_length:.2f}", stats.steps, same))
    print(model.tokenizer.decode(texts[0][ids.shape[1] :], skip_special_tokens=True), end="\n\n")
    print_table(("jacobi", "tok/s", "tokens/step", "steps", "identical"), rows)
    if model.engine.row_invariant and not texts[0] == texts[1] == texts[2]:
        raise click.ClickException("lookahead must never change the output. Please report this")


if __name__ == "__main__":
    sys.exit(run_command(main))
