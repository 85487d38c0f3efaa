"""Use transformers' API: load a model in a low-bit format, generate token ids and decode them.

python examples/generate.py --model default "Why is the sky blue?"
"""

from __future__ import annotations

import sys

import click
import torch

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.tokenization.prompts import build_prompt


@click.command()
@click.argument("prompt", default="Why is the sky blue?")
@click.option("--model", "name", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--low-bit", help="Weight format, such as sym_int4. Default: the file's own.")
@click.option("--max-new-tokens", default=64, type=click.IntRange(1))
def main(prompt: str, name: str, low_bit: str | None, max_new_tokens: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(name, load_in_low_bit=low_bit)
    ids = torch.tensor([build_prompt(model.tokenizer, model.config.to_dict(), prompt)])
    out = model.generate(ids, max_new_tokens=max_new_tokens, lookahead=3)
    print(model.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    sys.exit(run_command(main))
