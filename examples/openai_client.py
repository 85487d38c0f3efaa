"""Call ``ipex-lookahead serve`` with OpenAI's client (pip install openai): a stream, then structured output.

python examples/openai_client.py --url http://127.0.0.1:8080 "Why is the sky blue?"
"""

from __future__ import annotations

import sys

import click

from ipex_lookahead import InputError
from ipex_lookahead.cli.running import run_command

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 60}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}


@click.command()
@click.argument("prompt", default="Why is the sky blue?")
@click.option("--url", default="http://127.0.0.1:8080", help="URL of the server.")
@click.option("--key", default="none", help="An API key, if the server requires one.")
@click.option("--max-new-tokens", default=64, type=click.IntRange(1))
def main(prompt: str, url: str, key: str, max_new_tokens: int) -> None:
    try:
        from openai import OpenAI, OpenAIError
    except ImportError:
        raise click.ClickException("this example needs OpenAI's client: pip install openai") from None

    client = OpenAI(base_url=f"{url}/v1", api_key=key)
    try:
        model = client.models.list().data[0].id
    except OpenAIError as error:
        hint = "start a server, ipex-lookahead serve, or name another: --url, --key"
        raise InputError(f"{url} lists no models: {error}", hint=hint) from None
    messages = [{"role": "user", "content": prompt}]
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        temperature=0,
        max_completion_tokens=max_new_tokens,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        elif chunk.usage:
            print(f"\n{chunk.usage.completion_tokens} tokens")
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    whole = client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_completion_tokens=512, response_format=wanted
    )
    print(whole.choices[0].message.content)


if __name__ == "__main__":
    sys.exit(run_command(main))
