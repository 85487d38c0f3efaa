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
from ipex_lookahead.cli.writing import check_new

SHARED = ("low_bit", "mixed_precision", "drafter_low_bit", "imatrix", "threads")
"""Options that ``LoadRequest`` and ``load_model_and_tokenizer`` have too."""


@dataclass
class Saved:
    """How the weights are saved."""

    to: Path | None = option(
        "Write a GGUF file, which llama.cpp runs too, instead of OUT; MODEL is a GGUF file, or a folder made of one.",
        metavar="FILE.gguf",
        type=click.Path(path_type=Path, dir_okay=False),
    )
    low_bit: str | None = option(
        f"{WEIGHTS}; if not given, sym_int4 for a float model, else as the file has it.", type=LowBit()
    )
    group_size: Literal["32", "64"] = option("Weights that share a scale.", "32")
    mixed_precision: bool = option("Keep the output layer in 8 bits.", False)
    drafter_low_bit: str | None = option(
        "Format of a block for drafting (MTP); if not given, --low-bit's where that has 6 bits or more, else sym_int8.",
        type=LowBit(alike=True),
    )
    imatrix: Path | None = option(
        "An importance matrix (llama.cpp's, .gguf or .dat): errors of what matters more weigh more.",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
    )
    allow_requantize: bool = option("Round weights again that the file holds in another low-bit format.", False)
    overwrite: bool = option("Replace an earlier save in OUT, once the new one is complete.", False)
    threads: int | None = threads_option

    def settings(self) -> dict[str, Any]:
        """The arguments that ``LoadRequest`` and ``load_model_and_tokenizer`` share."""
        shared = {name: getattr(self, name) for name in SHARED}
        return {**shared, "group_size": int(self.group_size)}


@command(
    "ipex-lookahead quantize path/to/model out-folder --low-bit sym_int4",
    "ipex-lookahead quantize model-F16.gguf --to model-q4_k.gguf --low-bit q4_k",
)
@click.argument("model", type=Model())
@click.argument("out", type=click.Path(path_type=Path), required=False)
def quantize(model: str, out: Path | None, how: Saved) -> None:
    """Save MODEL (a folder, a .gguf file, owner/repo[:file.gguf] or 'default') in a low-bit format as the folder OUT.

    With --to it becomes a GGUF file.

    Start from the float original: a file that is quantised already loses more with every other format.
    """
    from ipex_lookahead.checkpoints.low_bit_save import check_target
    from ipex_lookahead.cli.model_facts import describe, licence_of
    from ipex_lookahead.engines.gguf_export import check_export
    from ipex_lookahead.engines.weights import WeightPlan, check_format, check_low_bit
    from ipex_lookahead.errors import LookaheadError
    from ipex_lookahead.hub import DEFAULT, resolve_model

    if (out is None) == (how.to is None):
        raise click.UsageError("give either OUT, a folder, or --to FILE.gguf")
    try:  # what can be refused without the model, and then without its weights, is refused so
        how.low_bit = how.low_bit and check_low_bit(how.low_bit)
        how.drafter_low_bit = how.drafter_low_bit and check_format(how.drafter_low_bit)
        plan = WeightPlan(how.low_bit, int(how.group_size))
        if out is not None:
            check_target(out, how.overwrite)
        else:
            assert how.to is not None
            check_export(plan)
            if how.drafter_low_bit is not None:
                check_export(WeightPlan(how.drafter_low_bit))
            check_new(how.to, overwrite=how.overwrite)
    except LookaheadError as error:
        message, hint = in_options(error)
        raise Refused(message, hint=hint) from error
    path = resolve_model(model)
    if how.to is not None:
        _check_source(path)
    how.low_bit = _checked_format(path, how)
    if how.imatrix is not None and how.low_bit is None:
        raise Refused("--imatrix has no effect where nothing is quantised: the formats of the file stay",
                      hint="--low-bit q4_k, say, quantises; or leave --imatrix out")  # fmt: skip
    if out is None:
        _export(path, how)
        return

    label = _save(path, out, how)
    saved = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    as_found = "" if how.low_bit else ", as in the file"
    click.echo(f"saved {out}: {saved / 1e6:.1f} MB in {label}{as_found} {_groups(out)}".rstrip())
    if licence := DEFAULT.licence if model == "default" else licence_of(path, describe(path)):
        click.echo(f"licence of {model}: {licence}")
    if shutil.which("ipex-lookahead"):
        click.echo(f"try it: ipex-lookahead generate --model {out} 'Once upon a time'")


def _save(path: Path, out: Path, how: Saved) -> str:
    """Write the folder; the name of its format."""
    from ipex_lookahead.architectures import model_types
    from ipex_lookahead.checkpoints import family_of
    from ipex_lookahead.engines.convert import convert
    from ipex_lookahead.engines.loading import LoadRequest

    family = family_of(path)
    if family is None or family in model_types():
        with byte_bar("saving") as progress:
            return convert(LoadRequest(path, **how.settings()), out, overwrite=how.overwrite, progress=progress)

    from ipex_lookahead.auto import load_model_and_tokenizer

    loaded, _ = load_model_and_tokenizer(str(path), **how.settings(), progress=True)
    with byte_bar("saving") as progress:
        loaded.save_low_bit(out, overwrite=how.overwrite, progress=progress)
    return str(loaded.low_bit)


def _check_source(path: Path) -> None:
    from ipex_lookahead.checkpoints import kind_of
    from ipex_lookahead.checkpoints.gguf_metadata import has_metadata

    if kind_of(path)[0] != "gguf" and not has_metadata(path):
        raise Refused(
            f"{path}: --to writes GGUF from a GGUF file, or from a folder that quantize made of one: what GGUF says "
            "of a tokenizer is not to be had from another folder",
            hint="make a float GGUF file of it with llama.cpp's convert_hf_to_gguf.py, and give that; or save a folder",
        )


def _export(path: Path, how: Saved) -> None:
    from ipex_lookahead.checkpoints import GgufCheckpoint, LowBitCheckpoint, kind_of
    from ipex_lookahead.checkpoints.imatrix import read_imatrix
    from ipex_lookahead.engines.gguf_export import export_gguf
    from ipex_lookahead.engines.weights import WeightPlan

    to = how.to
    assert to is not None
    kind, path = kind_of(path)
    checkpoint = GgufCheckpoint(path) if kind == "gguf" else LowBitCheckpoint(path)
    try:
        read = None if how.imatrix is None else read_imatrix(how.imatrix)
        plan = WeightPlan(how.low_bit, 32, how.mixed_precision, imatrix=read).of_spec(checkpoint.spec)
        with byte_bar("saving") as progress:
            head = how.drafter_low_bit
            export_gguf(checkpoint, to, plan, threads=how.threads, drafter_low_bit=head, progress=progress)
    finally:
        checkpoint.close()
    click.echo(f"saved {to}: {to.stat().st_size / 1e6:.1f} MB in {plan.name or 'the formats of the file'}")


def _checked_format(path: Path, how: Saved) -> str | None:
    """The format to ask for, None for the file's own. Raises Refused where weights would be rounded a second time."""
    from ipex_lookahead.architectures import model_types
    from ipex_lookahead.checkpoints import family_of, open_checkpoint
    from ipex_lookahead.checkpoints.config_json import read_json
    from ipex_lookahead.checkpoints.low_bit import FLOATS, MARKER
    from ipex_lookahead.engines.requantize import requantized
    from ipex_lookahead.engines.weights import WeightPlan, label_in

    low_bit = how.low_bit
    if (family := family_of(path)) is not None and family not in model_types():
        saved = MARKER in read_json(path / "config.json")  # of that the torch engine gives the folder's own format only
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
            hint=f"give the float original of this model; or {keep}; or --allow-requantize does it all the same",
        )
    return low_bit


def _groups(out: Path) -> str:
    from ipex_lookahead.checkpoints.config_json import read_json
    from ipex_lookahead.checkpoints.low_bit import MARKER

    size = read_json(out / "config.json")[MARKER]["group_size"]
    return f"(group size {size})" if size else ""
