"""Stream with transformers' TextIteratorStreamer, while a thread generates.

python examples/stream.py "Tell me a story about a clock."
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import click
import torch
from transformers import TextIteratorStreamer

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.tokenization.prompts import build_prompt


@click.command()
@click.argument("prompt", default="Tell me a story about a clock.")
@click.option("--model", "name", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--max-new-tokens", default=64, type=click.IntRange(1))
def main(prompt: str, name: str, max_new_tokens: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(name)
    ids = torch.tensor([build_prompt(model.tokenizer, model.config.to_dict(), prompt)])
    streamer = TextIteratorStreamer(model.tokenizer, skip_prompt=True, skip_special_tokens=True)
    settings = {"max_new_tokens": max_new_tokens, "lookahead": 3, "streamer": streamer}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(model.generate, ids, **settings)
        for piece in streamer:
            print(piece, end="", flush=True)
        print()
        answer.result()  # an error of the thread is an error of the program


if __name__ == "__main__":
    sys.exit(run_command(main))
