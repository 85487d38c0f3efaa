"""``ipex-lookahead drafter``: heads for drafting."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ipex_lookahead.cli.commands import LazyGroup, command
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.prompts import read_text
from ipex_lookahead.cli.types import Model
from ipex_lookahead.cli.writing import check_new

COMMANDS = {"cut": "choose the draft vocabulary of a head from texts"}
"""Subcommand -> its line in ``--help``."""


@click.group(cls=LazyGroup, lines=COMMANDS, module="ipex_lookahead.cli.drafter")
def drafter() -> None:
    """Prepare draft heads."""


@dataclass
class Cut:
    """The texts to count, and the output file."""

    text: tuple[Path, ...] = option(
        "UTF-8 text to count tokens in. Repeatable.",
        (),
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
    )
    store: str | None = option(
        "Store of earlier outputs to count tokens in.",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
    )
    output: Path = option(
        "Output file for --draft-vocab.",
        required=True,
        metavar="FILE.json",
        type=click.Path(path_type=Path, dir_okay=False),
    )
    tokens: int = option("Number of most frequent tokens to keep.", 32_768, low=1)
    overwrite: bool = option("Replace an existing FILE.json.", False)


@command("ipex-lookahead drafter cut path/to/model --text README.md --output words.json")
@click.argument("model", type=Model())
def cut(model: str, what: Cut) -> None:
    """Choose the draft vocabulary of a head for MODEL: the most frequent tokens of texts.

    A smaller draft vocabulary makes drafting faster. Answers can still have any token.
    """
    import numpy as np

    from ipex_lookahead.checkpoints import open_checkpoint
    from ipex_lookahead.checkpoints.draft_vocab import frequent_ids, write_ids
    from ipex_lookahead.drafting.store import Store, vocabulary_digest
    from ipex_lookahead.errors import InputError
    from ipex_lookahead.hub import resolve_model

    if not what.text and what.store is None:
        raise click.UsageError("no text to count: give --text or --store")
    check_new(what.output, overwrite=what.overwrite)
    texts = [read_text(file) for file in what.text]
    checkpoint = open_checkpoint(resolve_model(model))
    try:
        vocab, tokenizer = checkpoint.spec.vocab, checkpoint.text_tokenizer()
    finally:
        checkpoint.close()
    if tokenizer is None:
        raise InputError(f"{model} has no tokenizer")
    counts = np.zeros(vocab, np.int64)
    with progress_bar(len(texts) + 1, "texts") as advance:
        for text in texts:
            np.add.at(counts, np.array(tokenizer.encode(text, add_special_tokens=False), np.int64), 1)
            advance()
        if what.store is not None:
            store = Store.open(what.store, vocab, vocabulary_digest(tokenizer.get_vocab()))
            for answer in store.texts():
                np.add.at(counts, np.array(answer, np.int64), 1)
        advance()
    if not counts.any():
        raise InputError("the texts have no tokens", hint="give texts of several thousand words")
    ids = frequent_ids(counts, what.tokens)
    write_ids(what.output, ids, vocab)
    share = counts[ids].sum() / counts.sum()
    click.echo(f"saved {what.output}: {len(ids):,} of {vocab:,} tokens, which cover {share:.2%} of the texts")
