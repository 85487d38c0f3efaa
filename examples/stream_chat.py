"""A conversation in Python: answers come as they are made, and each turn reads only what is new.

python examples/stream_chat.py "Name three rivers." "Which of them is the longest?"
python examples/stream_chat.py          # reads messages; an empty one ends it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import torch
from transformers import TextStreamer

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.running import run_command


def user_messages() -> Iterator[str]:
    while message := click.prompt("you", default="", show_default=False):
        yield message


@click.command()
@click.argument("messages", nargs=-1)
@click.option("--model", "name", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--system", help="System message before the conversation.")
@click.option("--max-new-tokens", default=128, type=click.IntRange(1))
def main(messages: tuple[str, ...], name: str, system: str | None, max_new_tokens: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = model.tokenizer
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    chat = [{"role": "system", "content": system}] if system else []
    past = None
    for message in messages or user_messages():
        chat.append({"role": "user", "content": message})
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        out = model.generate(
            torch.tensor([ids]),
            max_new_tokens=max_new_tokens,
            lookahead="auto",
            streamer=streamer,
            past_key_values=past,  # as far as the prompt begins like the last turn, it is not read again
            return_dict_in_generate=True,
        )
        past = out.past_key_values
        answer = tokenizer.decode(out.sequences[0, len(ids) :], skip_special_tokens=True)
        chat.append({"role": "assistant", "content": answer})
        stats = model.stats
        print(f"({stats.cached_tokens} of {stats.prompt_tokens} prompt tokens kept, {stats.decode_tok_s:.1f} tok/s)")


if __name__ == "__main__":
    sys.exit(run_command(main))
