"""Load a model for a command that needs its tokenizer, and ask for its config."""

from __future__ import annotations

import gc
from typing import Any

from ipex_lookahead.errors import InputError


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
    """The model and its tokenizer, and with ``draft_model`` the model that drafts for it wherever it generates.

    ``placing`` is ``engine``, ``device`` and ``deterministic``, as ``from_pretrained`` takes them.

    Raises InputError where the checkpoint carries no tokenizer, or the draft model has another vocabulary.
    """
    from ipex_lookahead.auto import load_model_and_tokenizer

    settings: dict[str, Any] = {"low_bit": low_bit, "threads": threads, "kv_cache": kv_cache, "progress": progress}
    settings |= placing
    model, tokenizer = load_model_and_tokenizer(name, **settings)
    if tokenizer is None:
        raise InputError(
            f"{name} carries no tokenizer, so text cannot be turned into tokens",
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
