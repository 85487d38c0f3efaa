"""Quantize once, save, and load the low-bit folder, which has a fraction of the original's bytes.

python examples/save_and_load_low_bit.py --model path/to/Llama-2-7b-chat-hf --low-bit sym_int4 --out llama-2-7b-int4
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import torch

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.running import run_command


@click.command()
@click.option("--model", "name", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--low-bit", default="sym_int8", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Output folder, which must not exist.")
def main(name: str, low_bit: str, out: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(name, load_in_low_bit=low_bit)
    model.save_low_bit(out)
    print(f"saved {out}: {sum(f.stat().st_size for f in out.iterdir()) / 1e6:.1f} MB")

    again = AutoModelForCausalLM.load_low_bit(out)
    ids = torch.tensor([[1, 5, 6, 7]])
    before, after = (m.generate(ids, max_new_tokens=8).tolist() for m in (model, again))
    print("the same tokens before and after:", "yes" if before == after else "NO")
    if before != after:
        raise click.ClickException("a saved model must answer as it did before. Please report this")


if __name__ == "__main__":
    sys.exit(run_command(main))
