"""Tiny embedding models and rerankers made of causal language models, in folders and GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tests.support.gguf_families import write_gguf

Floats = npt.NDArray[np.float32]
TEXTS = [
    "The capital of China is Beijing.",
    "Gravity is a force.",
    "",
    "naïve café — 日本語 🙂",
    "  spaces   and\nlines ",
    "one two three four five six seven eight nine ten eleven twelve " * 6,
    "yes",
]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
END = "<|endoftext|>"
QUERY = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


def tokenizer(*, end: bool = True) -> Tokenizer:
    """Return a byte-level tokenizer with Qwen's control tokens, "yes" and "no"; ``end``: a text ends with ``END``."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator([*TEXTS, "yes no " * 20, "yes\nno\n" * 20, "yes", "no"] * 4, trainer)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    if end:
        core.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single=f"$A {END}", pair=f"$A $B:1 {END}:1", special_tokens=[(END, core.token_to_id(END))]
                ),
            ]
        )
    return core


def qwen3(vocab: int, **changes: Any) -> Any:
    """Return a random Qwen3 model of transformers."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "vocab_size": vocab, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "tie_word_embeddings": True, "initializer_range": 0.3,
    }  # fmt: skip
    return Qwen3ForCausalLM(Qwen3Config(**sizes | changes)).eval()


def write_modules(folder: Path, *modules: tuple[str, str, dict[str, Any] | None], package: str = "models") -> None:
    """Write ``modules.json`` and the config of each module: (class, path, config)."""
    entries = []
    for number, (name, path, config) in enumerate(modules):
        entries.append(
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{package}.{name}"}
        )
        if config is not None:
            (folder / path).mkdir(exist_ok=True)
            (folder / path / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(json.dumps(entries))


LAST = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}


def write_qwen3_embedding(folder: Path, model: Any, *, prefix: bool = False) -> Path:
    """Write a folder as Qwen3-Embedding's: names without ``model.``, last pooling, prompts."""
    core = tokenizer()
    (model if prefix else model.model).save_pretrained(folder)
    core.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    write_modules(folder, ("Transformer", "", None), ("Pooling", "1_Pooling", LAST), ("Normalize", "2_Normalize", None))
    prompts = {"prompts": {"query": QUERY, "document": ""}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def write_qwen3_gguf(path: Path, model: Any, *, classifier: Floats | None = None, **keys: Any) -> Path:
    """Write a GGUF file with a tokenizer; ``keys``: further metadata with "__" for "."."""
    core = tokenizer(end=False)
    vocabulary = core.get_vocab()
    merges = json.loads(core.to_str())["model"]["merges"]
    ours = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": sorted(vocabulary, key=vocabulary.__getitem__),
        "tokenizer.ggml.token_type": [3 if i >= len(vocabulary) - len(CONTROL) else 1 for i in range(len(vocabulary))],
        "tokenizer.ggml.merges": [" ".join(pair) if isinstance(pair, list) else pair for pair in merges],
        "tokenizer.ggml.eos_token_id": vocabulary[END],
        **{name.replace("__", "."): value for name, value in keys.items()},
    }

    def change(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        if classifier is not None:
            tensors["cls.output.weight"] = classifier

    return write_gguf(path, model, metadata=ours, change=change)


def last_rows(model: Any, inputs: list[list[int]]) -> Floats:
    """Return transformers' hidden states after the final norm at the last position of each text, float32."""
    import torch

    with torch.no_grad():
        rows = [model.model(torch.tensor([ids])).last_hidden_state[0, -1].numpy() for ids in inputs]
    return np.stack(rows).astype(np.float32)


def unit(vectors: Floats) -> Floats:
    """Return vectors of length 1."""
    return vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)


def cosines(one: Floats, other: Floats) -> Floats:
    """Return the cosine of each pair of rows, float64."""
    return np.sum(unit(one.astype(np.float64)) * unit(other.astype(np.float64)), axis=1)
