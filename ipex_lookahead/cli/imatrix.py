"""``ipex-lookahead imatrix``: the importance of the inputs of a model's matrices, measured on a text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import command_needs_torch, model_option, threads_option
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.prompts import read_text
from ipex_lookahead.cli.writing import check_new


@dataclass
class Measured:
    """The text, and the output file."""

    text: Path = option(
        "UTF-8 text that is typical for the use of the model.",
        required=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
    )
    to: Path = option(
        "Output file; llama-quantize reads it too.",
        required=True,
        metavar="FILE.gguf",
        type=click.Path(path_type=Path, dir_okay=False),
    )
    tokens: int = option("Number of tokens of the text to use.", 16_384, low=1)
    window: int = option("Tokens per window; each starts with an empty context.", 512, low=1)
    overwrite: bool = option("Replace an existing FILE.gguf.", False)


@command("ipex-lookahead imatrix -m path/to/model --text README.md --to importance.gguf")
def imatrix(what: Measured, model: str = model_option, threads: int | None = threads_option) -> None:
    """Compute an importance matrix of MODEL on a text, for quantize --imatrix.

    The model runs on PyTorch without quantization: use the float original.
    """
    command_needs_torch()
    text, to, window = what.text, what.to, what.window
    from ipex_lookahead.checkpoints.imatrix import write_imatrix
    from ipex_lookahead.errors import InputError, SaveError
    from ipex_lookahead.files.temporary import temporary_file
    from ipex_lookahead.hub import resolve_model

    check_new(to, overwrite=what.overwrite)
    content = read_text(text)
    path = resolve_model(model)

    from ipex_lookahead.engines.torch.importance import measure_importance, model_to_measure

    measured, spec, tokenizer = model_to_measure(Path(path), threads=threads)
    ids = tokenizer.encode(content, add_special_tokens=False)[: what.tokens]
    if not ids:
        raise InputError(f"{text} has no tokens", hint="give a text of some thousand words")
    windows = -(-len(ids) // window)
    with progress_bar(windows, "windows") as advance:
        found = measure_importance(measured, spec, ids, window=window, threads=threads, progress=advance)
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
