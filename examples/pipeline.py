"""Use the model in transformers' pipeline.

python examples/pipeline.py "Once upon a time"
"""

from __future__ import annotations

import sys

import click
from transformers import pipeline

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.running import run_command


@click.command()
@click.argument("prompt", default="Once upon a time")
@click.option("--model", "name", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--max-new-tokens", default=64, type=click.IntRange(1))
def main(prompt: str, name: str, max_new_tokens: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(name)
    writer = pipeline("text-generation", model=model, tokenizer=model.tokenizer)
    print(writer(prompt, max_new_tokens=max_new_tokens, do_sample=False)[0]["generated_text"])


if __name__ == "__main__":
    sys.exit(run_command(main))
