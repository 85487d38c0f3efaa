"""``ipex-lookahead quantize``: save a model in a low-bit format."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import FORMATS, option
from ipex_lookahead.cli.types import LowBit, Model


@command()
@click.argument("model", type=Model())
@click.argument("out", type=click.Path(path_type=Path))
@option("--low-bit", type=LowBit(), default="sym_int4", help=f"{FORMATS}.")
@option("--group-size", type=click.Choice(["32", "64"]), default="32", help="Weights that share a scale.")
@option("--mixed-precision", is_flag=True, help="Keep the output layer in 8 bits.")
@option("--threads", type=click.IntRange(1), help="Worker threads; all physical cores if not given.")
def quantize(model: str, out: Path, low_bit: str, group_size: str, mixed_precision: bool, threads: int | None) -> None:
    """Save MODEL (a folder, a .gguf file, a hub id or 'default') in a low-bit format as the new folder OUT."""
    from ipex_lookahead.auto import load_model_and_tokenizer

    loaded, _ = load_model_and_tokenizer(
        model,
        low_bit=low_bit,
        group_size=int(group_size),
        mixed_precision=mixed_precision,
        threads=threads,
        progress=True,
    )
    loaded.save_low_bit(out)
    saved = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    click.echo(f"saved {out}: {saved / 1e6:.1f} MB in {low_bit} (group size {group_size})")
    if shutil.which("ipex-lookahead"):
        click.echo(f"try it: ipex-lookahead generate --model {out} 'Once upon a time'")
