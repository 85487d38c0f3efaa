"""Load a model for a command that needs its tokenizer, and ask for its config."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.errors import InputError
from ipex_lookahead.system.extras import need_torch
from ipex_lookahead.system.terminal import tell_people

if TYPE_CHECKING:
    from ipex_lookahead.generation.text_model import TextModel


def command_needs_torch() -> None:
    """Raise MissingPackageError, before anything is read or fetched, where torch or transformers is not installed."""
    context = click.get_current_context(silent=True)
    need_torch("this" if context is None else f"`{context.command_path}`")


def load_text(
    name: str,
    *,
    draft_model: str | None = None,
    special_tokens_in_content: bool = False,
    progress: bool,
    **settings: Any,
) -> TextModel:
    """The model for a command that answers text: on the native engine neither torch nor transformers is imported.

    ``settings`` are those of :func:`ipex_lookahead.auto.load_text_model`; ``draft_model`` loads a second model, which
    drafts for the first wherever it generates; ``special_tokens_in_content`` is the tokenizer's attribute.

    Raises InputError where the checkpoint carries no tokenizer, or the draft model has another vocabulary.
    """
    from ipex_lookahead.auto import load_text_model

    model = load_text_model(name, progress=progress, note=tell_people if progress else None, **settings)
    model.tokenizer.special_tokens_in_content = special_tokens_in_content
    if draft_model is not None:
        model.use_draft_model(load_text_model(draft_model, progress=progress, **settings))
    # The vocabulary's objects stay: looking through them for garbage takes as long as many decoding steps.
    gc.freeze()
    return model


def load(
    name: str,
    *,
    low_bit: str | None,
    threads: int | None,
    progress: bool,
    kv_cache: str = "fp16",
    draft_model: str | None = None,
    **placing: Any,
) -> tuple[Any, Any]:
    """The model as transformers' users have it, for the commands that measure it, and its tokenizer.

    ``placing`` is ``engine``, ``device`` and ``deterministic``, as ``from_pretrained`` takes them. With ``draft_model``
    that model drafts for it wherever it generates.

    Raises InputError where the checkpoint carries no tokenizer, or the draft model has another vocabulary, and
    MissingPackageError without torch and transformers.
    """
    command_needs_torch()
    from ipex_lookahead.auto import load_model_and_tokenizer

    settings: dict[str, Any] = {"low_bit": low_bit, "threads": threads, "kv_cache": kv_cache, "progress": progress}
    settings |= placing
    model, tokenizer = load_model_and_tokenizer(name, **settings)
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
