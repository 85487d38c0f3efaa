"""Writes ``mmproj`` files from a folder, with the gguf package's names, in the layouts of llama.cpp's converter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

SUFFIXES = (".weight", ".bias", ".input_max", ".input_min", ".output_max", ".output_min")
OTHER_NAMES = {  # not in the package's table: the converter writes them by hand
    "visual.merger.linear_fc1": "mm.0", "visual.merger.linear_fc2": "mm.2", "visual.merger.norm": "v.post_ln",
    "vision_embedder.patch_ln1": "v.patch_norm.1", "vision_embedder.patch_ln2": "v.patch_norm.2",
    "vision_embedder.pos_norm": "v.patch_norm.3", "vision_embedder.patch_dense": "v.patch_embd",
    "vision_embedder.pos_embedding": "v.position_embd", "vision_tower.std_bias": "v.std_bias",
    "vision_tower.std_scale": "v.std_scale",
}  # fmt: skip


VISION = (
    "vision_tower.", "visual.", "embed_vision.", "vision_embedder.", "vision_model.", "connector.",
    "multi_modal_projector.",
)  # fmt: skip
PROJECTORS = {"gemma3": "gemma3", "idefics3": "idefics3", "smolvlm": "idefics3", "lfm2_vl": "lfm2"}


def channels_first(values: np.ndarray) -> np.ndarray:
    """[..., (y, x, channel)] -> [..., channel, y, x]."""
    side = round((values.shape[-1] / 3) ** 0.5)
    return np.moveaxis(values.reshape(*values.shape[:-1], side, side, 3), -1, -3)


def tensors(folder: Path, vision: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, values) as the converter would write them."""
    names, siglip = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 128), "layer_norm_eps" in vision
    for full, values in load_file(folder / "model.safetensors").items():
        name = full.removeprefix("model.")
        if not name.startswith(VISION) or name.startswith("vision_tower.head."):
            continue
        if name.startswith(("vision_tower.embeddings.", "vision_tower.enc", "vision_tower.post")) and siglip:
            name = name.replace("vision_tower.", "vision_tower.vision_model.")
        name = name.replace("_projection_weight", "_projection.weight")
        if siglip and name.endswith("patch_embedding.weight") and values.ndim == 2:
            values = channels_first(values)
        if name.endswith("soft_emb_norm.weight"):
            values = values + np.float32(1)
        stem, _, kind = name.rpartition(".")
        if values.ndim == 0:
            values = values.reshape(1)
        if name.endswith(("position_embedding_table", "pos_embedding")):
            stem, kind = name, "weight"
            values = values.swapaxes(0, 1) if name.endswith("pos_embedding") else values
        if name.endswith("input_proj.weight"):
            values = channels_first(values)
        if stem.endswith("patch_ln1") or name.endswith("patch_dense.weight"):
            values = channels_first(values).reshape(values.shape)
        if name == "visual.patch_embed.proj.weight":
            yield "v.patch_embd.weight", values[:, :, 0]
            yield "v.patch_embd.weight.1", values[:, :, 1]
            continue
        if stem.startswith("visual.deepstack_merger_list."):
            number, part = stem.split(".")[2:]
            layer = vision["deepstack_visual_indexes"][int(number)]
            yield f"v.deepstack.{layer}.{part.replace('linear_', '')}.{kind}", values
            continue
        key = name if name in OTHER_NAMES else stem
        if key in OTHER_NAMES:
            yield OTHER_NAMES[key] + (f".{kind}" if key == stem else ""), values
            continue
        if siglip:
            found = names.get_name(name, SUFFIXES) or names.get_name(f"model.{name}", SUFFIXES)
            assert found is not None, name
            yield found, values
            continue
        known = f"{stem}.{kind}".replace("vision_tower.encoder.", "vision_model.model.").replace(".linear.", ".")
        found = names.get_name(known if known.startswith(("visual", "vision_model")) else f"model.{known}", SUFFIXES)
        assert found is not None, name
        yield found, values


def write(folder: Path, path: Path, *, quantized: bool = False, projection: int = 32, **changed: Any) -> Path:
    """Write the vision part of a folder.

    ``quantized``: Q8_0 where rows are whole blocks, else F16, for matrices. ``changed``: values of ``clip.vision``.
    """
    config = json.loads((folder / "config.json").read_text())
    vision, model_type = config["vision_config"], config["model_type"]
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_file_type(7 if quantized else 0)
    numbers = {"projection_dim": projection, "patch_size": vision["patch_size"], "image_size": 224}
    if model_type.startswith("qwen"):
        writer.add_string("clip.projector_type", "qwen3vl_merger")
        deep = vision.get("deepstack_visual_indexes", ())
        writer.add_array("clip.vision.is_deepstack_layers", [i in deep for i in range(vision["depth"])])
        for name in ("mean", "std"):
            writer.add_array(f"clip.vision.image_{name}", [0.5, 0.5, 0.5])
        numbers |= {
            "embedding_length": vision["hidden_size"], "feed_forward_length": vision["intermediate_size"],
            "block_count": vision["depth"], "attention.head_count": vision["num_heads"],
            "spatial_merge_size": vision["spatial_merge_size"],
        }  # fmt: skip
    elif model_type in PROJECTORS:
        writer.add_string("clip.projector_type", PROJECTORS[model_type])
        writer.add_float32("clip.vision.attention.layer_norm_epsilon", vision["layer_norm_eps"])
        for name in ("mean", "std"):
            writer.add_array(f"clip.vision.image_{name}", [0.5, 0.5, 0.5])
        side = vision.get("image_size", 256)
        merge = config.get("scale_factor") or config.get("downsample_factor") or 2
        numbers |= {
            "embedding_length": vision["hidden_size"], "feed_forward_length": vision["intermediate_size"],
            "block_count": vision["num_hidden_layers"], "attention.head_count": vision["num_attention_heads"],
            "image_size": side, "projector.scale_factor": merge,
        }  # fmt: skip
        if PROJECTORS[model_type] == "idefics3":
            numbers["preproc_image_size"] = 96
    elif model_type == "gemma4":
        writer.add_string("clip.vision.projector_type", "gemma4v")
        numbers |= {
            "embedding_length": vision["hidden_size"], "feed_forward_length": vision["intermediate_size"],
            "block_count": 128, "attention.head_count": vision["num_attention_heads"],
        }  # fmt: skip
    else:
        writer.add_string("clip.vision.projector_type", "gemma4uv")
        numbers |= {
            "embedding_length": vision["mm_embed_dim"], "feed_forward_length": 0, "block_count": 0,
            "attention.head_count": 0,
        }  # fmt: skip
    for key, value in {**numbers, **changed}.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    for name, values in tensors(folder, vision):
        values = np.ascontiguousarray(values)
        if quantized and values.ndim == 2 and "position" not in name:
            kind = gguf.GGMLQuantizationType.Q8_0 if values.shape[-1] % 32 == 0 else gguf.GGMLQuantizationType.F16
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
