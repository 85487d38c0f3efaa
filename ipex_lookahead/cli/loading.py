"""The options that select a model, and the functions that load it for a command."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ipex_lookahead.cli.names import WEIGHTS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.types import DraftVocab, LowBit, Model, Size, Words
from ipex_lookahead.config import DRAFT_VOCAB
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.extras import need_torch
from ipex_lookahead.system.terminal import print_status

if TYPE_CHECKING:
    from ipex_lookahead.engines.load_weights import Progress
    from ipex_lookahead.runtime.text_model import TextModel

DEVICES = Words(cpu="processors", xpu="Intel GPUs", cuda="GPUs of PyTorch's CUDA and ROCm builds")
PLACES = Words(**{**DEVICES.words, "opencl": "the first GPU; opencl:1 is the second device"})


model_option = option("Folder, .gguf file, short name (list: pull) or hub id.", "default", "-m", type=Model())
low_bit_option = option(f"Weight format: {WEIGHTS}. Default: the file's own.", type=LowBit())
threads_option = option("Number of threads. Default: all physical cores.", low=1)
kv_cache_option = option("KV cache format; int8 halves its memory.", "fp16")
draft_model_option = option("Draft model: a smaller model with the same vocabulary.", type=Model())
drafter_option = option(
    "Draft head (MTP, EAGLE-3): folder, .gguf file or hub id. Default: the one in the model's files.",
    type=Model(),
)
draft_vocab_option = option(
    f"Draft vocabulary of the head: a number of tokens, 0 for all, or a file from drafter cut. Default: {DRAFT_VOCAB}.",
    metavar="N|FILE",
    type=DraftVocab(),
)
mmproj_option = option("GGUF file with the model's vision part. Default: the one next to it.", type=Model())


@dataclass
class ModelOptions:
    """The options of every command that runs a model."""

    model: str = model_option
    low_bit: str | None = low_bit_option
    threads: int | None = threads_option
    kv_cache: Literal["fp16", "int8"] = kv_cache_option
    engine: Literal["auto", "native", "torch", "ipex-llm", "opencl"] = option(
        "Inference engine; auto picks opencl for such a --device, else native, else torch.", "auto"
    )
    device: str | None = option("Device: cpu, xpu (Intel GPU), cuda or opencl[:N]. Default: the engine's.", type=PLACES)
    gpu_layers: int | None = option(
        "OpenCL: number of layers to run on the device, the rest on the CPU. Default: all that fit.",
        None, "-ngl", low=0,
    )  # fmt: skip
    cpu_moe: bool = option("OpenCL: run the routed experts of all layers on the CPU.", False, "-cmoe")
    n_cpu_moe: int | None = option(
        "OpenCL: run the routed experts of the first N layers on the CPU. Default: the fewest that make it fit.",
        None, "-ncmoe", low=0,
    )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """Return the arguments for the load functions, without the model."""
        return {name: value for name, value in vars(self).items() if name != "model"}

    def load(self, **more: Any) -> tuple[Any, Any]:
        """Call :func:`load`."""
        return load(self.model, progress=True, **self.settings(), **more)

    def load_text(self, *, progress: bool, **more: Any) -> TextModel:
        """Call :func:`load_text`."""
        return load_text(self.model, progress=progress, **self.settings(), **more)


@dataclass
class TextModelOptions(ModelOptions):
    """The options of a command that answers text."""

    deterministic: bool | None = option("torch engine: make lookahead exact, slower.")
    draft_model: str | None = draft_model_option
    drafter: str | None = drafter_option
    draft_vocab: int | Path | None = draft_vocab_option
    mmproj: str | None = mmproj_option
    special_tokens_in_content: bool = option(
        "Parse control tokens such as <|im_end|> in messages; by default they are plain text.",
        False,
    )


@dataclass
class CacheFolderOptions:
    """The options of the prefix cache on disk."""

    cache_dir: str | None = option(
        "Folder for cached prefixes, which later runs read instead of computing them.", type=click.Path(), metavar="DIR"
    )
    cache_disk: int | None = option("Maximum size of --cache-dir. Default: 20G.", type=Size())

    def check(self) -> None:
        """Raise UsageError for a size without a folder."""
        if self.cache_disk is not None and self.cache_dir is None:
            raise click.UsageError("--cache-disk needs --cache-dir; give both, or leave it out")

    def use(self, model: TextModel) -> None:
        """Give a loaded model its folder; what is not written when the command ends is written then."""
        if self.cache_dir is not None:
            model.use_cache_folder(self.cache_dir, self.cache_disk)
            click.get_current_context().call_on_close(model.close)


def command_needs_torch() -> None:
    """Raise MissingPackageError if torch or transformers is not installed, before anything is read or fetched."""
    context = click.get_current_context(silent=True)
    need_torch("this" if context is None else f"`{context.command_path}`")


def template_note(model: TextModel) -> str:
    """Return a line about prompts of a model without a chat template; "" for one with a chat template."""
    from ipex_lookahead.tokenization.prompts import uses_llama2_format

    if model.tokenizer.chat_template:
        return ""
    if uses_llama2_format(model.config):
        return "note: the model has no chat template; prompts use Llama 2's format"
    return "note: the model has no chat template; it continues prompts as plain text instead of answering them"


def load_text(
    name: str,
    *,
    draft_model: str | None = None,
    drafter: str | None = None,
    draft_vocab: int | Path | None = None,
    special_tokens_in_content: bool = False,
    progress: bool | Progress,
    **settings: Any,
) -> TextModel:
    """Load a model for a command that answers text. The native engine imports neither torch nor transformers.

    Args:
        name: Name of the model.
        draft_model: A second model, which drafts for the first.
        drafter: A head for the first model.
        draft_vocab: Draft vocabulary of the head.
        special_tokens_in_content: The attribute of the tokenizer.
        progress: Show progress, or report it to a function.
        **settings: See :func:`ipex_lookahead.runtime.loading.load_text_model`.

    Raises InputError if the checkpoint has no tokenizer, or the draft model has another vocabulary.
    """
    from ipex_lookahead.runtime.loading import load_text_model

    note = print_status if progress is True else None
    drafting: dict[str, Any] = {"drafter": drafter, "draft_vocab": draft_vocab, "draft_model": draft_model}
    model = load_text_model(name, progress=progress, note=note, **drafting, **settings)
    model.tokenizer.special_tokens_in_content = special_tokens_in_content
    # Garbage collection of the vocabulary's objects would take the time of many decoding steps.
    gc.freeze()
    return model


def fetch_vision_part(model: TextModel, name: str) -> None:
    """Download the vision part of a GGUF model of the hub, before its first image, if it is not on this machine.

    Raises InputError if the repository has none, DownloadError if it cannot be downloaded.
    """
    from ipex_lookahead.engines.api import TakesImages
    from ipex_lookahead.hub import vision_part_of
    from ipex_lookahead.vision.mmproj import mmproj_of

    takes = model.engine.images if isinstance(model.engine, TakesImages) else None
    if takes is None or model.mmproj is not None or model.source is None or Path(model.source).is_dir():
        return
    if mmproj_of(model.source, takes.hidden) is None:
        model.mmproj = vision_part_of(name)


def load(
    name: str,
    *,
    draft_model: str | None = None,
    drafter: str | None = None,
    draft_vocab: int | Path | None = None,
    **settings: Any,
) -> tuple[Any, Any]:
    """Load a model with transformers' ``generate``, for the commands that measure it, and its tokenizer.

    The arguments are those of :func:`load_text`; ``settings`` are those of
    :func:`ipex_lookahead.hf.auto.load_model_and_tokenizer`.

    Raises InputError if the checkpoint has no tokenizer, or the draft model has another vocabulary, and
    MissingPackageError without torch and transformers.
    """
    command_needs_torch()
    from ipex_lookahead.hf.auto import load_model_and_tokenizer

    model, tokenizer = load_model_and_tokenizer(name, drafter=drafter, draft_vocab=draft_vocab, **settings)
    if tokenizer is None:
        why = model.engine.describe().get("no_tokenizer") or f"{name} has none"
        raise InputError(
            f"there is no tokenizer, so text cannot be turned into tokens: {why}",
            hint="put its tokenizer.json or tokenizer.model into the folder",
        )
    if draft_model is not None:
        draft, _ = load_model_and_tokenizer(draft_model, **settings)
        model.use_draft_model(draft)
    # Garbage collection of the libraries' 350,000 objects would take 0.17 s, the time of 60 decoding steps.
    gc.freeze()
    return model, tokenizer


def config_of(model: Any) -> dict[str, Any]:
    """Return the model's config as a dictionary."""
    return dict(model.config.to_dict())
