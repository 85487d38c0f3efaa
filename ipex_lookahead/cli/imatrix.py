"""``ipex-lookahead imatrix``: which inputs of a model's matrices matter, measured on a text."""

from __future__ import annotations

from pathlib import Path

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import command_needs_torch
from ipex_lookahead.cli.options import model_option, option, threads_option
from ipex_lookahead.cli.progress import progress_bar


@command("ipex-lookahead imatrix -m path/to/model --text README.md --to importance.gguf")
@model_option
@option(
    "--text",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A UTF-8 text of the kind that the model is for.",
)
@option(
    "--to",
    required=True,
    metavar="FILE.gguf",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The importance matrix, which llama-quantize reads too.",
)
@option("--tokens", type=click.IntRange(1), default=16_384, help="The first so many tokens of the text.")
@option("--window", type=click.IntRange(1), default=512, help="Tokens in a window; each starts afresh.")
@option("--overwrite", is_flag=True, help="Replace FILE.gguf, once the new one is complete.")
@threads_option
def imatrix(model: str, text: Path, to: Path, tokens: int, window: int, overwrite: bool, threads: int | None) -> None:
    """Measure which inputs of MODEL's matrices matter on a text, for quantize --imatrix.

    The model runs on PyTorch, as it is: give the float original.
    """
    command_needs_torch()
    from ipex_lookahead.checkpoints import open_checkpoint
    from ipex_lookahead.checkpoints.imatrix import write_imatrix
    from ipex_lookahead.errors import InputError, SaveError
    from ipex_lookahead.files.temporary import temporary_file
    from ipex_lookahead.hub import resolve_model

    if not to.parent.is_dir():
        raise InputError(f"{to.parent}: there is no such folder", hint="make it first")
    if to.exists() and not overwrite:
        raise InputError(f"{to}: is there already", hint="choose another name, or --overwrite replaces it")
    try:
        written = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{text} cannot be read as UTF-8 text: {error}") from error
    path = resolve_model(model)
    checkpoint = open_checkpoint(path)
    try:
        spec = checkpoint.spec
    finally:
        checkpoint.close()

    from ipex_lookahead.auto import load_model_and_tokenizer
    from ipex_lookahead.engines.torch.importance import measure_importance

    loaded, tokenizer = load_model_and_tokenizer(str(path), engine="torch", threads=threads, dtype="float32")
    if tokenizer is None:
        raise InputError(f"{path} carries no tokenizer, so text cannot be turned into tokens")
    ids = tokenizer(written, add_special_tokens=False)["input_ids"][:tokens]
    if not ids:
        raise InputError(f"{text} holds no token", hint="give a text of some thousand words")
    windows = -(-len(ids) // window)
    with progress_bar(windows, "windows") as advance:
        found = measure_importance(loaded.engine.model, spec, ids, window=window, threads=threads, progress=advance)
    try:
        with temporary_file(to) as made:
            write_imatrix(
                made,
                found.sums,
                found.counts,
                dataset=text.name,
                chunks=windows,
                chunk=min(window, len(ids)),
            )
            made.replace(to)
    except OSError as error:
        raise SaveError(f"{to} cannot be written: {error}") from error
    click.echo(f"saved {to}: {len(found.sums)} matrices, {found.tokens:,} tokens of {text.name}")
