"""Compare low-bit formats of a model: size, speed, and where the answer differs from that of the first format.

python examples/compare_formats.py
python examples/compare_formats.py --model path/to/Llama-2-7b-chat-hf --low-bit bf16 --low-bit sym_int8 --low-bit q4_k
"""

from __future__ import annotations

import sys

import click
import torch

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.tokenization.prompts import build_prompt


@click.command()
@click.option("--model", "name", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--low-bit", "formats", multiple=True, default=("fp16", "sym_int8", "sym_int4"), show_default=True)
@click.option("--prompt", default="Why is the sky blue?")
@click.option("--max-new-tokens", default=64, type=click.IntRange(2))
def main(name: str, formats: tuple[str, ...], prompt: str, max_new_tokens: int) -> None:
    rows = []
    first: list[int] = []
    for low_bit in formats:
        model = AutoModelForCausalLM.from_pretrained(name, load_in_low_bit=low_bit)
        ids = torch.tensor([build_prompt(model.tokenizer, model.config.to_dict(), prompt)])
        model.generate(ids, max_new_tokens=2, do_sample=False)  # warm-up
        answer = model.generate(ids, max_new_tokens=max_new_tokens, do_sample=False)[0, ids.shape[1] :].tolist()
        first = first or answer
        alike = next((at for at, (a, b) in enumerate(zip(first, answer, strict=False)) if a != b), len(answer))
        megabytes = model.engine.describe()["weight_bytes"] / 1e6
        rows.append((low_bit, f"{megabytes:,.1f}", f"{model.stats.decode_tok_s:.1f}", f"{alike} of {len(answer)}"))
        print(f"--- {low_bit}: {model.tokenizer.decode(answer, skip_special_tokens=True)}\n")
    print_table(("format", "MB", "tok/s", f"tokens like {formats[0]}'s"), rows)


if __name__ == "__main__":
    sys.exit(run_command(main))
