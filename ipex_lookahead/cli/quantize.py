"""``ipex-lookahead quantize``: save a model in a low-bit format."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import threads_option
from ipex_lookahead.cli.names import WEIGHTS, in_options
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import byte_bar
from ipex_lookahead.cli.types import LowBit, Model, Refused

SHARED = ("low_bit", "mixed_precision", "drafter_low_bit", "imatrix", "threads")
"""Options that are arguments of ``LoadRequest`` and ``load_model_and_tokenizer`` too."""


@dataclass
class Saved:
    """The format of the saved weights."""

    low_bit: str | None = option(
        f"Weight format: {WEIGHTS}. Default: sym_int4 for a float model, sym_int8 for a text encoder, else the file's"
        " own.",
        type=LowBit(),
    )
    group_size: Literal["32", "64"] = option("Number of weights that share a scale.", "32")
    mixed_precision: bool = option("Keep the output layer in 8 bits.", False)
    drafter_low_bit: str | None = option(
        "Format of the MTP head. Default: --low-bit if that has 6 bits or more, else sym_int8.",
        type=LowBit(alike=True),
    )
    imatrix: Path | None = option(
        "Importance matrix from imatrix or llama.cpp (.gguf, .dat).",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
    )
    allow_requantize: bool = option("Quantize weights that are already quantized, which loses accuracy.", False)
    overwrite: bool = option("Replace an existing save in OUT.", False)
    threads: int | None = threads_option

    def settings(self) -> dict[str, Any]:
        """Return arguments for ``LoadRequest`` and ``load_model_and_tokenizer``."""
        shared = {name: getattr(self, name) for name in SHARED}
        return {**shared, "group_size": int(self.group_size)}


@command("ipex-lookahead quantize path/to/model out-folder --low-bit sym_int4")
@click.argument("model", type=Model())
@click.argument("out", type=click.Path(path_type=Path))
def quantize(model: str, out: Path, how: Saved) -> None:
    """Save MODEL in a low-bit format as folder OUT. Start from the float original for best accuracy."""
    from ipex_lookahead.checkpoints.encoders import is_encoder
    from ipex_lookahead.checkpoints.low_bit_save import check_target
    from ipex_lookahead.cli.model_facts import describe, license_of
    from ipex_lookahead.engines.weights import WeightPlan, check_format, check_low_bit
    from ipex_lookahead.errors import LookaheadError
    from ipex_lookahead.hub import DEFAULT, resolve_model

    try:  # check before the model is fetched
        how.low_bit = how.low_bit and check_low_bit(how.low_bit)
        how.drafter_low_bit = how.drafter_low_bit and check_format(how.drafter_low_bit)
        WeightPlan(how.low_bit, int(how.group_size))
        check_target(out, how.overwrite)
    except LookaheadError as error:
        message, hint = in_options(error)
        raise Refused(message, hint=hint) from error
    path = resolve_model(model)
    encoder = is_encoder(path)
    how.low_bit = _checked_format_of_encoder(path, how) if encoder else _checked_format(path, how)
    if how.imatrix is not None and how.low_bit is None:
        raise Refused("--imatrix needs --low-bit: without it the weights keep their formats",
                      hint="add --low-bit q4_k, for example")  # fmt: skip

    label = _save_encoder(path, out, how) if encoder else _save(path, out, how)
    saved = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    as_found = "" if how.low_bit else " (unchanged)"
    click.echo(f"saved {out}: {saved / 1e6:.1f} MB in {label}{as_found} {_groups(out)}".rstrip())
    if license := DEFAULT.license if model == "default" else license_of(path, describe(path)):
        click.echo(f"license of {model}: {license}")
    if shutil.which("ipex-lookahead"):
        command, text = ("embed", "A sentence") if encoder else ("generate", "Once upon a time")
        click.echo(f'try it: ipex-lookahead {command} -m {out} "{text}"')


def _checked_format_of_encoder(path: Path, how: Saved) -> str | None:
    """Return the format of an encoder's layers, or None for the file's own. Raises Refused for options of decoders."""
    from ipex_lookahead.checkpoints.low_bit import FLOATS
    from ipex_lookahead.embedding.checkpoint import format_of

    for name in ("mixed_precision", "drafter_low_bit", "imatrix"):
        if getattr(how, name):
            raise Refused(
                f"--{name.replace('_', '-')} is for models that generate text; {path} is a text encoder",
                hint="leave it out",
            )
    return how.low_bit or ("sym_int8" if format_of(path) in FLOATS else None)


def _save_encoder(path: Path, out: Path, how: Saved) -> str:
    """Save the folder and return its format."""
    from ipex_lookahead.embedding.checkpoint import save_encoder

    with byte_bar("saving") as progress:
        return save_encoder(
            path, out, how.low_bit, group_size=int(how.group_size), threads=how.threads, overwrite=how.overwrite,
            allow_requantize=how.allow_requantize, progress=progress,
        )  # fmt: skip


def _save(path: Path, out: Path, how: Saved) -> str:
    """Save the folder and return its format."""
    from ipex_lookahead.architectures import model_types
    from ipex_lookahead.checkpoints import family_of
    from ipex_lookahead.engines.convert import convert
    from ipex_lookahead.engines.loading import LoadRequest

    family = family_of(path)
    if family is None or family in model_types():
        with byte_bar("saving") as progress:
            return convert(LoadRequest(path, **how.settings()), out, overwrite=how.overwrite, progress=progress)

    from ipex_lookahead.hf.auto import load_model_and_tokenizer

    loaded, _ = load_model_and_tokenizer(str(path), **how.settings(), progress=True)
    with byte_bar("saving") as progress:
        loaded.save_low_bit(out, overwrite=how.overwrite, progress=progress)
    return str(loaded.low_bit)


def _checked_format(path: Path, how: Saved) -> str | None:
    """Return the format, or None for the file's own. Raises Refused if weights would be quantized a second time."""
    from ipex_lookahead.architectures import model_types
    from ipex_lookahead.checkpoints import family_of, open_checkpoint
    from ipex_lookahead.checkpoints.config_json import read_json
    from ipex_lookahead.checkpoints.low_bit import FLOATS, MARKER
    from ipex_lookahead.engines.requantize import requantized
    from ipex_lookahead.engines.weights import WeightPlan, label_in

    low_bit = how.low_bit
    if (family := family_of(path)) is not None and family not in model_types():
        saved = MARKER in read_json(path / "config.json")  # the torch engine can keep its format only
        return low_bit if saved else low_bit or "sym_int4"
    checkpoint = open_checkpoint(path)
    try:
        spec = checkpoint.spec
        own = label_in(checkpoint, spec)
        if low_bit is None and own in FLOATS:
            low_bit = "sym_int4"
        plan = WeightPlan(low_bit, int(how.group_size), how.mixed_precision).of_spec(spec)
        found = requantized(checkpoint, plan, kept=spec.kept())
    finally:
        checkpoint.close()
    if found is not None and not how.allow_requantize:
        keep = "--mixed-precision keeps it in 8 bits" if found.only_head else f"leave --low-bit out to keep {own}"
        raise Refused(
            str(found),
            hint=f"use the float original of this model; or {keep}; or add --allow-requantize",
        )
    return low_bit


def _groups(out: Path) -> str:
    from ipex_lookahead.checkpoints.config_json import read_json
    from ipex_lookahead.checkpoints.low_bit import MARKER

    size = read_json(out / "config.json")[MARKER]["group_size"]
    return f"(group size {size})" if size else ""
