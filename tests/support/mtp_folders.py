"""Folders of tiny Qwen3.5 models with a block for drafting (MTP), and what it computes, as transformers' layers do.

transformers drops such blocks, so the oracle is put together of its layers as the models' reports have it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.glm4_moe import modeling_glm4_moe as glm
from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite as glm_lite
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen_moe
from transformers.models.qwen3_next import modeling_qwen3_next as qwen_next

from tests.support.family_table import FULL, Variant
from tests.support.tiny_families import config_of, weight, with_weights, write_folder

LAYERS = {
    "qwen3_5_text": (qwen, "Qwen3_5"),
    "qwen3_5_moe_text": (qwen_moe, "Qwen3_5Moe"),
    "qwen3_next": (qwen_next, "Qwen3Next"),
    "glm4_moe": (glm, "Glm4Moe"),
    "glm4_moe_lite": (glm_lite, "Glm4MoeLite"),
    "deepseek_v3": (deepseek, "DeepseekV3"),
}
BEHIND = ("glm4_moe", "glm4_moe_lite", "deepseek_v3")
"""Families whose block is one more of the model's, in folders too."""
_THERE = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}


class Block(nn.Module):
    """u = fc(norm(e(x[p])) | norm(h[p-1])); norm(layer(u)) goes to the target's lm_head, and back in as h."""

    def __init__(self, config: Any, target: Any) -> None:
        super().__init__()
        module, prefix = LAYERS[config.model_type]
        of = lambda name: getattr(module, f"{prefix}{name}")  # noqa: E731
        layers = config.num_hidden_layers
        more = {"layer_types": [FULL] * layers} if hasattr(config, "layer_types") else {}
        if hasattr(config, "mlp_layer_types"):
            more["mlp_layer_types"] = ["dense"] + ["sparse"] * (layers - 1)
        own = type(config)(**{**config.to_dict(), **more})
        own._attn_implementation = own._experts_implementation = "eager"
        norm = of("RMSNorm")
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.pre_fc_norm_embedding = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList([of("DecoderLayer")(own, layers - 1)])
        self.norm = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.target = [target]  # in a list, so that its weights are not this one's

    @torch.no_grad()
    def forward(
        self, tokens: torch.Tensor, features: torch.Tensor, first: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [n] from position ``first`` on, features [n, hidden] -> logits [n, vocab], features [n, hidden]."""
        target = self.target[0]
        e = target.get_input_embeddings()(tokens)
        u = self.fc(torch.cat([self.pre_fc_norm_embedding(e), self.pre_fc_norm_hidden(features)], dim=-1))[None]
        positions = torch.arange(first, first + len(tokens))[None]
        three = target.config.model_type.startswith("qwen3_5")  # a place's numbers, which are the same in a text
        turns = target.model.rotary_emb(u, positions[None].expand(3, 1, -1) if three else positions)
        mask = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)[None, None]
        out = self.norm(self.layers[0](u, position_embeddings=turns, attention_mask=mask)[0])
        return target.lm_head(out), out


def with_mtp(folder: Path, model_type: str, variant: Variant, **values: Any) -> tuple[Any, Block]:
    """Write such a folder; the target in float32, and its block."""
    target = with_weights(config_of(model_type, Variant(variant.name, {**variant.values, **values})))
    block = Block(target.config, target).eval()
    state = block.state_dict()
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(torch.from_numpy(weight(f"mtp.{name}", tuple(tensor.shape), target.config)))
    write_folder(folder, target)
    config = json.loads((folder / "config.json").read_text())
    config.pop("num_mtp_layers", None)
    key = "num_nextn_predict_layers" if model_type in BEHIND else "mtp_num_hidden_layers"
    (folder / "config.json").write_text(json.dumps({**config, key: 1}))
    file, layers = folder / "model.safetensors", target.config.num_hidden_layers
    own = {name_in(model_type, layers, name): one.contiguous() for name, one in state.items()}
    save_file({**load_file(file), **own}, file, {"format": "pt"})
    return target, block


def name_in(model_type: str, layers: int, name: str) -> str:
    """What a folder calls a tensor of the block."""
    if model_type not in BEHIND:
        return f"mtp.{name}"
    part, _, kind = name.rpartition(".")
    return f"model.layers.{layers}." + (f"{_THERE[part]}.{kind}" if part in _THERE else name.removeprefix("layers.0."))


NAMES = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
    "layers.0.input_layernorm": "attn_norm",
    "layers.0.post_attention_layernorm": "post_attention_norm",
    **{f"layers.0.self_attn.{x}_proj": f"attn_{x}" for x in "qkv"},
    **{f"layers.0.self_attn.{x}_norm": f"attn_{x}_norm" for x in "qk"},
    "layers.0.self_attn.o_proj": "attn_output",
    **{f"layers.0.mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
}
"""What GGUF files call the parts of a dense model's block, behind its number."""


def add_to_gguf(block: Block, layers: int) -> Any:
    """A ``change`` for ``write_gguf``: the block behind the model's own."""

    def change(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys["qwen35.block_count"].value = layers + 1
        if (kinds := keys.get("qwen35.attention.recurrent_layers")) is not None:
            kinds.value = [*kinds.value, False]
        keys["qwen35.nextn_predict_layers"] = gguf.GGUFValue(1, gguf.GGUFValueType.UINT32)
        for name, values in block.state_dict().items():
            part, _, kind = name.rpartition(".")
            tensors[f"blk.{layers}.{NAMES[part]}.{kind}"] = values.numpy() + ("norm" in part)

    return change


def block_alone(block: Block, layers: int, *, embedding: bool = True) -> Any:
    """A ``change`` for ``write_gguf``: the block without the model's own, as in llama.cpp's ``mtp-*.gguf`` files."""
    with_block = add_to_gguf(block, layers)

    def change(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        with_block(keys, tensors)
        for name in [*tensors]:
            if name.startswith("blk.") and not name.startswith(f"blk.{layers}.") or not embedding and "embd" in name:
                del tensors[name]

    return change
