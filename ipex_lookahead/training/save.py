"""A head as SpecForge writes it: a flat Llama config, and tensors under ``midlayer.``, which SGLang and vLLM read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.errors import SaveError
from ipex_lookahead.files.temporary import put_in_place, temporary_folder
from ipex_lookahead.training.eagle3 import Eagle3, Eagle3Shape

CONFIG, WEIGHTS, REPORT = "config.json", "model.safetensors", "training.json"


def config_of(shape: Eagle3Shape) -> dict[str, Any]:
    """The config of a head's folder.

    Layer ids are SpecForge's, which count from 0 the layers whose outputs are read: one less than ``shape.layers``.
    """
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": shape.hidden,
        "target_hidden_size": shape.target_hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": shape.max_context,
        "vocab_size": shape.vocab,
        "draft_vocab_size": shape.draft_vocab,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float16",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in shape.layers],
            "use_aux_hidden_state": True,
        },
    }


def save_head(head: Eagle3, folder: Path, report: Mapping[str, Any]) -> None:
    """Write a head in float16, without the embedding, which is the target's; the folder is there when it is whole.

    ``report`` is what is said of its training, in ``training.json``. Raises SaveError.
    """
    tensors = {
        name: (one.half() if one.is_floating_point() else one).detach().contiguous()
        for name, one in head.state_dict().items()
    }
    try:
        with temporary_folder(folder) as made:
            for name, said in ((CONFIG, config_of(head.shape)), (REPORT, report)):
                (made / name).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
            save_file(tensors, made / WEIGHTS, {"format": "pt"})
            (made / WEIGHTS).chmod((made / CONFIG).stat().st_mode)  # safetensors leaves it to its owner alone
            for file in made.iterdir():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            put_in_place(made, folder)
    except (OSError, SafetensorError) as error:
        raise SaveError(
            f"{folder} cannot be written: {error}", hint="free some space, or name another folder"
        ) from error


def load_head(folder: Path, embedding: torch.Tensor) -> Eagle3:
    """The head of a folder that :func:`save_head` wrote, in float32, with the target's embedding [vocab, hidden]."""
    config = read_json(folder / CONFIG)
    ids = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    shape = Eagle3Shape(
        hidden=config["hidden_size"],
        target_hidden=config["target_hidden_size"],
        layers=(ids[0] + 1, ids[1] + 1, ids[2] + 1),
        intermediate=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
        max_context=config["max_position_embeddings"],
        vocab=config["vocab_size"],
        draft_vocab=config["draft_vocab_size"],
    )
    tensors = load_file(folder / WEIGHTS)
    said = tensors["d2t"] + torch.arange(shape.draft_vocab)
    head = Eagle3(shape, embedding, said)
    head.load_state_dict({name: one.float() if one.is_floating_point() else one for name, one in tensors.items()})
    return head.eval()
