"""A tiny model of each kind of head that drafts, with random weights of both: the head is hardly ever right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.load import load
from tests.support.assistant_folders import WORDS, Pair
from tests.support.eagle3_folders import Head, Shape
from tests.support.family_table import VOCAB, Variant, variants
from tests.support.mtp_folders import with_mtp
from tests.support.tiny_families import config_of, with_weights, write_folder

KINDS = ("mtp", "eagle3", "eagle3 with a window", "gemma4_assistant", "gemma4_assistant ordered")


def write(kind: str, folder: Path, words: int = VOCAB, context: int = 1600) -> tuple[Path, Path | None]:
    """The model's folder, and the head's where that is in another.

    Args:
        kind: one of ``KINDS``.
        folder: to write below.
        words: tokens of the vocabulary; assistants have a multiple of ``assistant_folders.WORDS``.
        context: positions of the model's.
    """
    more = {"vocab_size": words, "max_position_embeddings": context}
    if kind == "mtp":
        with_mtp(folder / "model", "qwen3_5_text", variants("qwen3_5_text")[0], **more)
        return folder / "model", None
    if kind.startswith("gemma4_assistant"):
        return Pair("e2b", kind.endswith("ordered"), words=-(-words // WORDS) * WORDS).write(folder)
    target = with_weights(config_of("llama", Variant("six layers", {"num_hidden_layers": 6, **more})))
    write_folder(folder / "model", target)
    window = {"window": 7, "layers": 2} if kind.endswith("window") else {}
    head = Head(Shape(vocab=words, norm_before_residual=True, **window), target)
    return folder / "model", head.write_flat(folder / "head")


def opened(paths: tuple[Path, Path | None], **options: Any) -> NativeEngine:
    """The engine, which has the head; ``options`` of ``LoadRequest``."""
    engine: NativeEngine = load(LoadRequest(paths[0], drafter=paths[1], **options)).engine
    assert engine.head is not None
    return engine
