"""Generate greedily without and with lookahead, and compare speed and tokens.

python examples/lookahead.py
python examples/lookahead.py --repo-id-or-model-path meta-llama/Llama-2-7b-chat-hf --low-bit sym_int4
"""

from __future__ import annotations

import sys
import time
from typing import Any

import click
import torch
from transformers import TextStreamer

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.recommended import suggestion
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.system.terminal import counted
from ipex_lookahead.tokenization.prompts import build_prompt

PROMPT = "Write four Python functions, add, subtract, multiply and divide, each of two numbers a and b."
"""A prompt that the default model answers correctly, with much repetition in the answer."""


def generate(model: Any, ids: list[int], new_tokens: int, lookahead: int) -> tuple[list[int], GenerationStats]:
    """The new tokens, shown and timed as they come, and what is known of them."""
    streamer = TextStreamer(model.tokenizer, skip_prompt=True, skip_special_tokens=True)
    start = time.perf_counter()
    settings: dict[str, Any] = {"max_new_tokens": new_tokens, "do_sample": False, "lookahead": lookahead}
    out = model.generate(torch.tensor([ids]), streamer=streamer, **settings)
    seconds = time.perf_counter() - start
    new = out[0, len(ids) :].tolist()
    print(f"Tokens generated {len(new)}")
    print(f"E2E Generation time {seconds:.4f}s")
    print(f"First token latency {model.stats.first_token_seconds:.4f}s")
    return new, model.stats


@click.command(context_settings={"show_default": True})
@click.option("--repo-id-or-model-path", "name", default="default", help="Folder, .gguf file, hub id or 'default'.")
@click.option("--prompt", default=PROMPT, help="The prompt.")
@click.option("--n-predict", default=192, type=click.IntRange(1), help="Maximum number of new tokens.")
@click.option("--n-lookahead-tokens", default=3, type=click.IntRange(1, 64), help="Maximum tokens to draft per step.")
@click.option("--low-bit", help="sym_int4, sym_int8, bf16 or fp16. Default: the file's own.")
@click.option("--threads", type=click.IntRange(1), help="Number of threads. Default: all physical cores.")
def main(name: str, prompt: str, n_predict: int, n_lookahead_tokens: int, low_bit: str, threads: int) -> None:
    """Generate twice, greedily whatever the model recommends, without and with lookahead, and compare."""
    model = AutoModelForCausalLM.from_pretrained(name, load_in_low_bit=low_bit, threads=threads)
    if model.tokenizer is None:
        raise click.ClickException(f"{name} carries no tokenizer")
    ids = build_prompt(model.tokenizer, model.config.to_dict(), prompt)
    for lookahead in (0, n_lookahead_tokens):  # warm-up
        model.generate(torch.tensor([ids]), max_new_tokens=min(n_predict, 16), do_sample=False, lookahead=lookahead)

    print("--- without lookahead ---")
    plain, before = generate(model, ids, n_predict, 0)
    print(f"\n--- with lookahead, {n_lookahead_tokens} drafted tokens ---")
    ahead, after = generate(model, ids, n_predict, n_lookahead_tokens)

    facts = model.engine.describe()
    title = f"{facts['low_bit']} · {facts['isa']} · {counted(facts['threads'], 'thread')} · prompt {len(ids)} tokens"
    ratio = f"{after.decode_tok_s / before.decode_tok_s:.2f}x" if before.decode_tok_s else "-"
    same = "yes" if plain == ahead else "NO"
    without = "without lookahead", f"{before.decode_tok_s:.1f}", f"{before.mean_acceptance_length:.2f}", "1.00x", ""
    with_it = "with lookahead", f"{after.decode_tok_s:.1f}", f"{after.mean_acceptance_length:.2f}", ratio, same
    print()
    print_table(("", "tok/s", "tokens/step", "ratio", "identical"), [without, with_it], title=title)
    if name == "default":
        print(f"\n{suggestion()}")
    if plain != ahead:
        raise click.ClickException("the two outputs differ; lookahead must never change the output. Please report this")


if __name__ == "__main__":
    sys.exit(run_command(main))
