"""Tiny vision-language models with random weights, saved by transformers; norms, limits and factors are perturbed."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

VOCAB = 264
IMAGE, BEGIN, END = 260, 261, 262
"""Token ids of an image's rows, and before and after it."""
IDS = {"image_token_id": IMAGE, "boi_token_id": BEGIN, "eoi_token_id": END}
GEMMA_TEXT = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "num_kv_shared_layers": 0,
}  # fmt: skip
QWEN_TEXT = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True,
    },
}  # fmt: skip


def gemma4(**vision: Any) -> Any:
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration

    tower = {
        "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 3,
        "num_key_value_heads": 3, "head_dim": 24, "position_embedding_size": 64, "patch_size": 4, **vision,
    }  # fmt: skip
    config = Gemma4Config(text_config=GEMMA_TEXT, vision_config=tower, audio_config=None, **IDS)
    return Gemma4ForConditionalGeneration(config)


def gemma4_unified() -> Any:
    from transformers import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration

    vision = {"mm_embed_dim": 40, "output_proj_dims": 40, "mm_posemb_size": 32, "patch_size": 4}
    text = {key: value for key, value in GEMMA_TEXT.items() if "per_layer" not in key}
    config = Gemma4UnifiedConfig(text_config=text, vision_config=vision, audio_config=None, **IDS)
    return Gemma4UnifiedForConditionalGeneration(config)


QWEN_TOWER = {
    "depth": 4, "hidden_size": 48, "intermediate_size": 72, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32,
    "num_position_embeddings": 49,
}  # fmt: skip


def qwen3_vl() -> Any:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tower = {**QWEN_TOWER, "deepstack_visual_indexes": [0, 2]}
    # The configuration adds keys to the rope of its argument.
    return Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(text_config=deepcopy(QWEN_TEXT), vision_config=tower, image_token_id=IMAGE)
    )


def qwen3_5() -> Any:
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    text = {
        **deepcopy(QWEN_TEXT), "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
    }  # fmt: skip
    return Qwen3_5ForConditionalGeneration(
        Qwen3_5Config(text_config=text, vision_config=QWEN_TOWER, image_token_id=IMAGE)
    )


SIGLIP = {
    "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 4,
    "image_size": 32, "layer_norm_eps": 1e-5, "vision_use_head": False,
}  # fmt: skip
LLAMA_TEXT = {
    "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def gemma3(**more: Any) -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {key: value for key, value in GEMMA_TEXT.items() if "per_layer" not in key and "shared" not in key}
    text |= {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
    ids = {"image_token_index": IMAGE, "boi_token_index": BEGIN, "eoi_token_index": END}
    vision = {"model_type": "siglip_vision_model", **SIGLIP}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=16, **ids, **more)
    return Gemma3ForConditionalGeneration(config)


def idefics3() -> Any:
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    config = Idefics3Config(text_config=LLAMA_TEXT, vision_config=SIGLIP, image_token_id=IMAGE)
    return Idefics3ForConditionalGeneration(config)


def smolvlm() -> Any:
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    config = SmolVLMConfig(text_config=LLAMA_TEXT, vision_config=SIGLIP, image_token_id=IMAGE, scale_factor=4)
    return SmolVLMForConditionalGeneration(config)


def lfm2_vl(*, patch_size: int = 4, layers: int = 2, **more: Any) -> Any:
    from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration

    text = {
        "model_type": "lfm2", "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "layer_types": ["conv", "full_attention"],
        "block_multiple_of": 16, "pad_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    vision = {**SIGLIP, "model_type": "siglip2_vision_model", "num_patches": 36, "patch_size": patch_size}
    vision["num_hidden_layers"] = layers
    del vision["image_size"]
    config = Lfm2VlConfig(
        text_config=text, vision_config=vision, image_token_id=IMAGE, projector_hidden_size=40, **more
    )
    return Lfm2VlForConditionalGeneration(config)


FAMILIES = {
    "gemma4": gemma4,
    "gemma4_clipped": lambda: gemma4(use_clipped_linears=True),
    "gemma4_standardized": lambda: gemma4(standardize=True, num_key_value_heads=1),
    "gemma4_unified": gemma4_unified,
    "qwen3_vl": qwen3_vl,
    "qwen3_5": qwen3_5,
    "gemma3": gemma3,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "lfm2_vl": lfm2_vl,
    "lfm2_vl_plain": lambda: lfm2_vl(projector_use_layernorm=False, projector_bias=False),
}


def saved(kind: str, folder: Path, processor: dict[str, Any]) -> Any:
    """Save a model of a kind and the settings of its image processor; return transformers' model."""
    torch.manual_seed(0)
    model = FAMILIES[kind]().float().eval()
    with torch.no_grad():
        for name, values in model.state_dict().items():  # not what is not saved, such as factors on embeddings
            if name.endswith(("input_min", "output_min")):
                values.copy_(-0.4 - 0.3 * torch.rand(()))
            elif name.endswith(("input_max", "output_max")):
                values.copy_(0.4 + 0.3 * torch.rand(()))
            elif values.is_floating_point() and "inv_freq" not in name:
                base = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                values.copy_(base + 0.2 * torch.randn(values.shape))
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model
