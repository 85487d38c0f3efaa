"""``ipex-lookahead convert-ipex-llm``: convert the pickles of a folder saved by ipex-llm to safetensors."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.progress import byte_bar


@command("ipex-lookahead convert-ipex-llm saved-by-ipex-llm new-folder", name="convert-ipex-llm")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
def convert_ipex_llm(folder: Path, new: Path) -> None:
    """Convert FOLDER, saved by ipex-llm's save_low_bit, to folder NEW with safetensors, which all commands accept.

    The weights do not change. No code in the pickle is executed.
    """
    from ipex_lookahead.checkpoints.ipex_llm_convert import convert_ipex_llm as convert

    with byte_bar("converting") as progress:
        made = convert(folder, new, progress=progress)
    size = sum(file.stat().st_size for file in made.iterdir())
    click.echo(f"saved {new}: {size / 1e6:.1f} MB")
    if not any((made / name).exists() for name in ("tokenizer.json", "tokenizer.model")):
        click.echo(f"ipex-llm saves no tokenizer: copy the original model's tokenizer files into {new}")
    elif shutil.which("ipex-lookahead"):
        click.echo(f'try it: ipex-lookahead generate -m {new} "Once upon a time"')
