"""Answer several prompts in one batch; each answer equals that of the prompt alone.

python examples/batch.py
python examples/batch.py "Why is the sky blue?" "Name a prime number." "Tell me a joke."
"""

from __future__ import annotations

import sys
import time

import click

from ipex_lookahead import LLM
from ipex_lookahead.cli.running import run_command

PROMPTS = ("Why is the sky blue?", "Name the planets, the innermost first.", "What is a hash table?", "Tell me a joke.")


@click.command()
@click.argument("prompts", nargs=-1)
@click.option("--model", default="default", help="A folder, a .gguf file, a short name, a hub id, or 'default'.")
@click.option("--max-new-tokens", default=48, type=click.IntRange(1))
def main(prompts: tuple[str, ...], model: str, max_new_tokens: int) -> None:
    prompts = prompts or PROMPTS
    with LLM(model) as llm:
        llm.chat("Hello", max_new_tokens=4)  # warm-up

        started = time.perf_counter()
        together = llm.complete_batch(prompts, max_new_tokens=max_new_tokens)
        between = time.perf_counter()
        alone = [llm.chat(prompt, max_new_tokens=max_new_tokens) for prompt in prompts]
        ended = time.perf_counter()

        for prompt, answer in zip(prompts, together, strict=True):
            print(f"> {prompt}\n{answer}\n")
        equal = [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
        tokens = sum(len(answer.token_ids) for answer in together)
        seconds = f"together {between - started:.2f} s, one by one {ended - between:.2f} s"
        print(f"{len(prompts)} prompts, {tokens} tokens: {seconds}; the same answers: {'yes' if equal else 'no'}")
    if not equal:
        raise click.ClickException("an answer must not depend on its neighbors. Please report this")


if __name__ == "__main__":
    sys.exit(run_command(main))
