"""A tiny model of each kind of head that drafts, with random weights of both: the head is hardly ever right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.architectures import eagle3
from ipex_lookahead.architectures.spec import Attention
from ipex_lookahead.checkpoints.eagle3 import head_config
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.engines.native.load import load
from ipex_lookahead.files.safe_json import JsonObject
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


def random_eagle3(target: NativeEngine, low_bit: str = "sym_int8") -> NativeHead:
    """An EAGLE-3 head of the usual sizes for a model that is loaded, with its embedding and lm_head, else random."""
    spec, mixer = target.spec, target.spec.layers[0].mixer
    assert isinstance(mixer, Attention)
    raw = {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": spec.hidden, "vocab_size": spec.vocab,
        "intermediate_size": 3 * spec.hidden // 64 * 64, "num_hidden_layers": 1, "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.kv_heads, "head_dim": mixer.head_dim, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    config = head_config(JsonObject(raw), "config.json", len(spec.layers))
    return NativeHead.random(eagle3.spec(config, spec, lambda tensor: False), low_bit, target)
