"""The options that say which model is loaded and how, and its loading for a command."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ipex_lookahead.cli.names import WEIGHTS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.types import DraftVocab, LowBit, Model, Words
from ipex_lookahead.config import DRAFT_VOCAB
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.extras import need_torch
from ipex_lookahead.system.terminal import tell_people

if TYPE_CHECKING:
    from ipex_lookahead.runtime.text_model import TextModel

DEVICES = Words(cpu="processors", xpu="Intel GPUs", cuda="GPUs of PyTorch's CUDA and ROCm builds")
PLACES = Words(**{**DEVICES.words, "opencl": "the first GPU, opencl:1 the second device of all"})


model_option = option("A folder, a .gguf file, a short name, a hub id, 'default'.", "default", "-m", type=Model())
low_bit_option = option(f"{WEIGHTS}; as the file has it if not given.", type=LowBit())
threads_option = option("Worker threads; all physical cores if not given.", low=1)
kv_cache_option = option("How keys and values are held; int8 takes half the memory.", "fp16")
draft_model_option = option("A smaller model with the same vocabulary, which drafts for the other.", type=Model())
drafter_option = option(
    "A trained head that drafts: a folder, a .gguf file, a hub id; if not given, the one that the model brings.",
    type=Model(),
)
draft_vocab_option = option(
    f"How many tokens a head may draft; 0 is all, {DRAFT_VOCAB} if not given; or a file of drafter cut.",
    metavar="N|FILE",
    type=DraftVocab(),
)


@dataclass
class ModelOptions:
    """What every command that runs a model takes."""

    model: str = model_option
    low_bit: str | None = low_bit_option
    threads: int | None = threads_option
    kv_cache: Literal["fp16", "int8"] = kv_cache_option
    engine: Literal["auto", "native", "torch", "ipex-llm", "opencl"] = option(
        "What runs the model; auto: native where it can, opencl where --device says so, else torch.", "auto"
    )
    device: str | None = option("cpu, xpu (Intel GPUs), cuda or opencl; the engine's own if not given.", type=PLACES)
    gpu_layers: int | None = option(
        "On OpenCL: how many of the last layers are on the device, the others on the CPU; as many as fit if not given.",
        None, "-ngl", low=0,
    )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """All but the model, as the functions that load one take them."""
        return {name: value for name, value in vars(self).items() if name != "model"}

    def load(self, **more: Any) -> tuple[Any, Any]:
        """See :func:`load`."""
        return load(self.model, progress=True, **self.settings(), **more)


@dataclass
class TextModelOptions(ModelOptions):
    """What a command that answers text takes."""

    deterministic: bool | None = option("On torch: the very text of plain decoding with lookahead too, at some cost.")
    draft_model: str | None = draft_model_option
    drafter: str | None = drafter_option
    draft_vocab: int | Path | None = draft_vocab_option
    special_tokens_in_content: bool = option(
        "Control tokens that a message spells, such as <|im_end|>, are control tokens, not the text that they are.",
        False,
    )

    def load_text(self, *, progress: bool, **more: Any) -> TextModel:
        """See :func:`load_text`."""
        return load_text(self.model, progress=progress, **self.settings(), **more)


def command_needs_torch() -> None:
    """Raise MissingPackageError, before anything is read or fetched, where torch or transformers is not installed."""
    context = click.get_current_context(silent=True)
    need_torch("this" if context is None else f"`{context.command_path}`")


def load_text(
    name: str,
    *,
    draft_model: str | None = None,
    drafter: str | None = None,
    draft_vocab: int | Path | None = None,
    special_tokens_in_content: bool = False,
    progress: bool,
    **settings: Any,
) -> TextModel:
    """The model for a command that answers text: on the native engine neither torch nor transformers is imported.

    ``settings`` are those of :func:`ipex_lookahead.runtime.loading.load_text_model`; ``draft_model`` loads a second
    model, which drafts for the first wherever it generates; ``drafter`` and ``draft_vocab`` are the first's alone;
    ``special_tokens_in_content`` is the tokenizer's attribute.

    Raises InputError where the checkpoint carries no tokenizer, or the draft model has another vocabulary.
    """
    from ipex_lookahead.runtime.loading import load_text_model

    note = tell_people if progress else None
    head: dict[str, Any] = {"drafter": drafter, "draft_vocab": draft_vocab}
    model = load_text_model(name, progress=progress, note=note, **head, **settings)
    model.tokenizer.special_tokens_in_content = special_tokens_in_content
    if draft_model is not None:
        model.use_draft_model(load_text_model(draft_model, progress=progress, **settings))
    # The vocabulary's objects stay: looking through them for garbage takes as long as many decoding steps.
    gc.freeze()
    return model


def load(
    name: str,
    *,
    draft_model: str | None = None,
    drafter: str | None = None,
    draft_vocab: int | Path | None = None,
    **settings: Any,
) -> tuple[Any, Any]:
    """The model as transformers' users have it, for the commands that measure it, and its tokenizer.

    ``settings`` are those of :func:`ipex_lookahead.hf.auto.load_model_and_tokenizer`. With ``draft_model`` that model
    drafts for it wherever it generates; ``drafter`` and ``draft_vocab`` are the first's alone.

    Raises InputError where the checkpoint carries no tokenizer, or the draft model has another vocabulary, and
    MissingPackageError without torch and transformers.
    """
    command_needs_torch()
    from ipex_lookahead.hf.auto import load_model_and_tokenizer

    model, tokenizer = load_model_and_tokenizer(name, drafter=drafter, draft_vocab=draft_vocab, **settings)
    if tokenizer is None:
        why = model.engine.describe().get("no_tokenizer") or f"{name} carries none"
        raise InputError(
            f"there is no tokenizer, so text cannot be turned into tokens: {why}",
            hint="put its tokenizer.json or tokenizer.model into the folder",
        )
    if draft_model is not None:
        draft, _ = load_model_and_tokenizer(draft_model, **settings)
        model.use_draft_model(draft)
    # The libraries' 350,000 objects stay: looking through them for garbage takes 0.17 s, as long as 60 decoding steps.
    gc.freeze()
    return model, tokenizer


def config_of(model: Any) -> dict[str, Any]:
    """The model's config as a plain mapping, which ``build_prompt`` wants."""
    return dict(model.config.to_dict())
