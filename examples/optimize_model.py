"""Pack the linear layers of a model that transformers has loaded, and add lookahead.

python examples/optimize_model.py --model FOLDER      # any causal model that transformers runs, with its tokenizer
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import torch
import transformers

from ipex_lookahead import InputError, optimize_model, wrap  # was: from ipex_llm import optimize_model
from ipex_lookahead.cli.running import run_command


@click.command()
@click.option("--model", "folder", required=True, help="A folder with config.json, safetensors and a tokenizer.")
@click.option("--prompt", default="Once upon a time")
@click.option("--low-bit", default="sym_int4")
def main(folder: str, prompt: str, low_bit: str) -> None:
    if not Path(folder).is_dir():
        raise InputError(f"there is no folder {folder!r}", hint="give one that transformers loads, with its tokenizer")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    before = model.get_memory_footprint()
    model = optimize_model(model, low_bit=low_bit)  # the same call; model.generate goes on as before
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.inference_mode():
        plain = model.generate(ids, max_new_tokens=24, do_sample=False)
    fast = wrap(model, tokenizer)  # the one new line: generate(lookahead=...)
    out = fast.generate(ids, max_new_tokens=24, do_sample=False, lookahead=3)
    print(tokenizer.decode(out[0], skip_special_tokens=True))
    print(f"weights: {before:,} bytes before, {fast.engine.describe()['weight_bytes']:,} in {fast.low_bit}")
    print("text equal to the model's own generate:", "yes" if torch.equal(out, plain) else "no")


if __name__ == "__main__":
    sys.exit(run_command(main))
