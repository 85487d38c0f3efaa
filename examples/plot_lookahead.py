"""Plot tokens per second over n_lookahead_tokens: python examples/plot_lookahead.py (needs matplotlib)."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.bench.decode import summarize
from ipex_lookahead.bench.facts import where_and_when
from ipex_lookahead.bench.modes import generator, measure, modes_of
from ipex_lookahead.bench.options import PACKAGED_PROMPTS
from ipex_lookahead.bench.plots.decode import plot_decode
from ipex_lookahead.bench.plots.drawing import check_plot
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.prompts import read_prompts
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.tokenization.prompts import build_prompt


@click.command(context_settings={"show_default": True})
@click.option("--repo-id-or-model-path", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--n-lookahead-tokens", multiple=True, type=click.IntRange(1, 64), default=(1, 2, 3, 4, 6, 8))
@click.option("--n-predict", default=128, type=click.IntRange(2), help="Maximum number of tokens per answer.")
@click.option(
    "--prompts",
    type=click.Path(),
    default=str(PACKAGED_PROMPTS),
    show_default="packaged",
    help="JSONL file of prompts.",
)
@click.option("--output", default="lookahead.svg", help="Output file, .svg or .png.")
def main(
    repo_id_or_model_path: str, n_lookahead_tokens: tuple[int, ...], n_predict: int, prompts: str, output: str
) -> None:
    """Measure lookahead off, with each number of tokens, and with 'auto', alternating prompt by prompt."""
    check_plot(Path(output))
    model = AutoModelForCausalLM.from_pretrained(repo_id_or_model_path)
    if model.tokenizer is None:
        raise click.ClickException(f"{repo_id_or_model_path} carries no tokenizer")
    texts = read_prompts([prompts])
    ids = [build_prompt(model.tokenizer, model.config.to_dict(), prompt.text) for prompt in texts]
    settings = [*n_lookahead_tokens, "auto"]
    with progress_bar(len(ids) * len(modes_of(settings))) as advance:
        modes = measure(
            generator(model, n_predict, do_sample=False),
            ids,
            settings,
            answered=lambda *_: advance(),
            forget=model.forget,
        )
    runs = summarize(modes, categories=[prompt.category for prompt in texts])
    facts = {"model": repo_id_or_model_path, "low_bit": model.engine.describe()["low_bit"], "max_new_tokens": n_predict}
    names = {"prompts": [prompt.id for prompt in texts], "categories": [prompt.category for prompt in texts]}
    plot_decode({**facts, **names, **where_and_when(), "runs": runs}, Path(output))
    for run in runs:
        name = " ".join(filter(None, (str(run["lookahead"]), run["memory"])))
        print(f"lookahead {name}: {run['decode_tok_s']:.1f} tokens a second, identical {run['identical_to_plain']}")
    print(f"saved {output}")


if __name__ == "__main__":
    sys.exit(run_command(main))
