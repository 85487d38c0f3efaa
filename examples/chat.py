"""Chat in Python without torch: stream the answers; each turn reads only the new message.

python examples/chat.py "Why is the sky blue?"
python examples/chat.py "Name three rivers." "Which of them is the longest?"
python examples/chat.py          # reads messages; an empty message ends the chat
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from ipex_lookahead import LLM
from ipex_lookahead.cli.running import run_command


def typed_messages() -> Iterator[str]:
    while message := click.prompt("you", default="", show_default=False):
        yield message


@click.command()
@click.argument("messages", nargs=-1)
@click.option("--model", default="default", help="A folder, a .gguf file, a short name, a hub id, or 'default'.")
@click.option("--system", help="System message.")
@click.option("--max-new-tokens", default=256, type=click.IntRange(1))
def main(messages: tuple[str, ...], model: str, system: str | None, max_new_tokens: int) -> None:
    with LLM(model) as llm:
        conversation = []
        for message in messages or typed_messages():
            conversation.append({"role": "user", "content": message})
            stream = llm.stream(conversation, system=system, max_new_tokens=max_new_tokens)
            for text in stream:
                print(text, end="", flush=True)
            conversation.append(stream.answer.message)
            stats = stream.answer.stats
            print(
                f"\n({stats.tokens} tokens, {stats.decode_tok_s:.1f} tok/s,"
                f" {stats.cached_tokens} of {stats.prompt_tokens} prompt tokens cached)"
            )


if __name__ == "__main__":
    sys.exit(run_command(main))
