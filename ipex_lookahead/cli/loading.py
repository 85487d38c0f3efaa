"""Load a model for a command that needs its tokenizer, and ask for its config."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.errors import InputError


def load(name: str, *, low_bit: str | None, threads: int | None, progress: bool) -> tuple[Any, Any]:
    """The model and its tokenizer. Raises InputError where the checkpoint carries no tokenizer."""
    from ipex_lookahead.auto import load_model_and_tokenizer

    model, tokenizer = load_model_and_tokenizer(name, low_bit=low_bit, threads=threads, progress=progress)
    if tokenizer is None:
        raise InputError(
            f"{name} carries no tokenizer, so text cannot be turned into tokens",
            hint="put its tokenizer.json or tokenizer.model into the folder",
        )
    return model, tokenizer


def config_of(model: Any) -> dict[str, Any]:
    """The model's config as a plain mapping, which ``build_prompt`` wants."""
    return dict(model.config.to_dict())
