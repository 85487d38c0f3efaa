"""``ipex-lookahead drafter train``: an EAGLE-3 head for a model, of its own answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.interrupt import asks_to_stop
from ipex_lookahead.cli.loading import command_needs_torch, low_bit_option, threads_option
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.reading import read_text
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import Model
from ipex_lookahead.system.terminal import bar


@dataclass
class Data:
    """What the head is made of."""

    text: tuple[Path, ...] = option(
        "A UTF-8 text of the kind that the model is for: its paragraphs are the prompts. May be given several times.",
        (),
        required=True,
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
    )
    output: Path = option(
        "The folder of the head, which is not there yet.", required=True, type=click.Path(path_type=Path)
    )
    tokens: int = option("Of answers that the model gives, all together.", 100_000, low=1)
    prompt_tokens: int = option("Of a paragraph; what is behind them is left out.", 64, low=1)
    answer_tokens: int = option("Of an answer, at most.", 128, low=8)
    greedy: bool = option("Answers of the most likely tokens; else sampled as the model's makers recommend.", False)
    draft_vocab: int | None = option(
        "Tokens that the head can say, the most frequent ones; if not given, a quarter of the model's, 8192 to 32768.",
        low=1,
    )


@dataclass
class Taught:
    """How it is taught."""

    steps: int = option("Steps of the optimiser, at most.", 2000, low=1)
    minutes: float | None = option("Of training, at most, after the answers; if not given, --steps alone ends it.",
                                   low=0, above=True)  # fmt: skip
    learning_rate: float | None = option(
        "The highest, after a linear rise, before half a cosine; if not given, 0.5 / hidden size, 0.002 at most.",
        low=0,
        above=True,
    )
    batch: int = option("Answers a step.", 4, low=1)
    unroll: int = option("Tokens of the chains that it is taught to draft.", 4, low=1, high=16)
    seed: int = option("Of the answers, the first weights and the order.", 0, low=0)


@command(
    "ipex-lookahead drafter train path/to/model --text README.md --output head",
)
@click.argument("model", type=Model())
def train(
    model: str, data: Data, how: Taught, low_bit: str | None = low_bit_option, threads: int | None = threads_option
) -> None:
    """Make a head of one layer for MODEL: an EAGLE-3 head, as SpecForge's folders have it.

    The model answers what the texts say, and the head learns to foresee the answers from what the model thinks of
    them. An interrupted run goes on when the same command is given again.
    """
    command_needs_torch()
    from ipex_lookahead.training.job import Asked, check_output, make_head, work_folder
    from ipex_lookahead.training.train import Recipe

    check_output(data.output)
    texts = [read_text(file) for file in data.text]
    recipe = Recipe(how.steps, how.minutes, how.learning_rate, how.batch, how.unroll, how.seed)
    asked = Asked(
        data.tokens, data.prompt_tokens, data.answer_tokens, data.greedy, data.draft_vocab, recipe, threads=threads
    )
    from ipex_lookahead.auto import load_text_model

    loaded = load_text_model(model, low_bit=low_bit, threads=threads, engine="native")
    with asks_to_stop() as stop, bar("answering", data.tokens) as shown:
        made = make_head(loaded, texts, data.output, asked, stopped=stop.is_set, shown=shown)
    if made is None:
        click.echo(f"what is done lies in {work_folder(data.output)}; the same command goes on from there", err=True)
        raise click.Abort
    size = sum(file.stat().st_size for file in data.output.iterdir())
    click.echo(
        f"saved {data.output}: {size / 1e6:.1f} MB, taught in {made.steps:,} steps on {made.tokens:,} tokens of"
        f" {made.answers:,} answers"
    )
    found = made.acceptance
    rates = [(depth, f"{rate:.1%}") for depth, rate in enumerate(found.by_depth, 1)]
    print_table(("depth", "accepted"), rates, title="answers that were held out, chains of 4")
    click.echo(f"tokens a step: {found.tokens_a_step:.2f}; accepted of drafted: {found.rate:.1%}")
