"""A GGUF file of a bench shape with random Q4_0 weights (Q8_0 lm_head): what llama-bench measures.

python scripts/random_gguf.py llama2-7b out.gguf
python scripts/random_gguf.py gemma4-26b-a4b out.gguf --layers 12   # its first 12 layers, where memory is short
python scripts/random_gguf.py qwen3.5-4b out.gguf --layers 8 --drafting --vocabulary model.gguf   # for the scoreboard
python scripts/random_gguf.py qwen3.5-0.8b out.gguf --context 65536 --vocabulary model.gguf   # for benchmarks.agent

Every row is random of its own: were they alike, all tokens of a prompt would choose the same experts.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import click
import gguf
import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec, spec_for
from ipex_lookahead.bench.shapes import config_of
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.temporary import temporary_file

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "qwen3_5_text": "qwen35",
    "gemma4_text": "gemma4",
}
"""Our model types to llama.cpp's, of families that this knows the keys of."""
TYPICAL = {"Q4_0": 4.6, "Q8_0": 74.0}
"""Root mean square of a random code: the scale makes weights of 0.02 of it."""


def write_random_gguf(
    shape: str,
    path: str | Path,
    layers: int | None = None,
    *,
    drafting: bool = False,
    vocabulary: str | Path | None = None,
    context: int = 4096,
    template: str | None = None,
) -> None:
    """Write a file with one tensor at a time in memory.

    Args:
        shape: Name of a shape.
        path: The file.
        layers: Number of layers; the shape's if None.
        drafting: Add the block for drafting (MTP) that the shape's family has.
        vocabulary: A GGUF file; its tokenizer and the size of its vocabulary replace the shape's.
        context: Context length in tokens; at most the shape's.
        template: Chat template that replaces that of ``vocabulary``.

    Raises:
        InputError: The shape is unknown, its family is not supported here, or it has no block for drafting.
    """
    config = config_of(shape)
    source = None if vocabulary is None else gguf.GGUFReader(vocabulary)
    if source is not None:
        config |= {"vocab_size": len(source.fields["tokenizer.ggml.tokens"].data)}
    if drafting:
        config |= {"mtp_num_hidden_layers": 1}
    if layers is not None:
        config |= {"num_hidden_layers": layers}
        config |= {"layer_types": config["layer_types"][:layers]} if "layer_types" in config else {}
    spec = spec_for(config)
    if spec.model_type not in ARCHITECTURES:
        raise InputError(f"{shape} is of the family {spec.model_type}; this writes {', '.join(ARCHITECTURES)}")
    if drafting and spec.mtp is None:
        raise InputError(f"{shape} is of the family {spec.model_type}, which has no block for drafting here")
    with temporary_file(Path(path)) as temporary:
        writer = gguf.GGUFWriter(temporary, ARCHITECTURES[spec.model_type])
        describe(writer, config, context)
        if source is None:
            writer.add_tokenizer_model("no_vocab")
        else:
            copy_tokenizer(writer, source, template)
        tensors = [*spec.tensors(), *(() if spec.mtp is None else spec.mtp.tensors())]
        places = {tensor.gguf.name: tensor.gguf.shape for tensor in tensors}
        if writer.arch == "gemma4":
            places["rope_freqs.weight"] = (config["global_head_dim"] // 2,)
        kinds = {name: kind_of(spec, name, sizes) for name, sizes in places.items()}
        for name, sizes in places.items():
            elements, size = gguf.GGML_QUANT_SIZES[kinds[name]]
            writer.add_tensor_info(name, sizes, np.dtype(np.float32), prod(sizes) // elements * size, kinds[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        random = np.random.default_rng(0)
        for name, sizes in places.items():
            writer.write_tensor_data(numbers(random, name, sizes, kinds[name]))
        writer.close()
        temporary.replace(path)


def describe(writer: Any, config: dict[str, Any], context: int) -> None:
    """Add the keys that llama.cpp needs."""
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(min(config["max_position_embeddings"], context))
    writer.add_embedding_length(config["hidden_size"])
    drafting = config.get("mtp_num_hidden_layers") or 0
    writer.add_block_count(config["num_hidden_layers"] + drafting)
    if drafting:
        writer.add_nextn_predict_layers(drafting)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if writer.arch == "gemma3":
        writer.add_sliding_window(512)
    elif writer.arch == "phi3":
        writer.add_rope_dimension_count(int(config["head_dim"] * config["partial_rotary_factor"]))
        writer.add_sliding_window(0)
    elif writer.arch == "qwen35":
        rotated = int(config["head_dim"] * config["partial_rotary_factor"])
        writer.add_rope_dimension_count(rotated)
        writer.add_rope_dimension_sections([rotated // 2, 0, 0, 0])
        writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    elif writer.arch == "gemma4":
        describe_gemma4(writer, config)
    else:
        writer.add_rope_dimension_count(config["head_dim"])


def copy_tokenizer(writer: Any, source: Any, template: str | None) -> None:
    """Copy the tokenizer of a file, and its chat template if no other is given."""
    if template is not None:
        writer.add_chat_template(template)
    for name, field in source.fields.items():
        if name.startswith("tokenizer.") and (template is None or name != "tokenizer.chat_template"):
            kind, *_, inner = [*field.types, None] if len(field.types) == 1 else field.types
            writer.add_key_value(name, field.contents(), kind, inner)


def describe_gemma4(writer: Any, config: dict[str, Any]) -> None:
    """Sizes by kind of layer, and experts, where there are any."""
    slides, size = [kind != "full_attention" for kind in config["layer_types"]], config["global_head_dim"]
    keys = writer.kv_data[0]
    for key in ("key_length", "value_length"):
        keys[f"gemma4.attention.{key}"].value = size
    if config["num_global_key_value_heads"]:
        heads = (config["num_key_value_heads"], config["num_global_key_value_heads"])
        del keys["gemma4.attention.head_count_kv"]
        writer.add_head_count_kv([heads[0] if one else heads[1] for one in slides])
    writer.add_rope_dimension_count(size)
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["enable_moe_block"]:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def kind_of(spec: ModelSpec, name: str, shape: tuple[int, ...]) -> gguf.GGMLQuantizationType:
    """The type of a tensor: F32 of vectors, convolutions and routers, Q8_0 of the lm_head, else Q4_0."""
    if len(shape) == 1 or "ssm_conv1d" in name or "ffn_gate_inp" in name:
        return gguf.GGMLQuantizationType.F32
    head = "token_embd.weight" if spec.tied else "output.weight"
    return gguf.GGMLQuantizationType.Q8_0 if name == head else gguf.GGMLQuantizationType.Q4_0


def numbers(
    random: np.random.Generator, name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType
) -> npt.NDArray[Any]:
    """Float32 or bytes: vectors are ones, rates of recurrences and convolutions -1, matrices random."""
    if name == "rope_freqs.weight":  # of a full head a quarter turns
        return np.where(np.arange(shape[0]) < shape[0] // 4, 1, 1e30).astype(np.float32)
    if "ffn_gate_inp" in name and len(shape) == 2:  # a router likes some experts better than others
        return random.standard_normal(shape, np.float32)
    if kind == gguf.GGMLQuantizationType.F32:
        return np.full(shape, -1 if "ssm_a" in name or "ssm_conv1d" in name else 1, np.float32)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (*shape[:-1], shape[-1] // elements, size), dtype=np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(0.02 / TYPICAL[kind.name]).tobytes(), np.uint8)
    return blocks


@click.command()
@click.argument("shape")
@click.argument("path")
@click.option("--layers", type=click.IntRange(min=1), help="Only the first N layers.")
@click.option("--drafting", is_flag=True, help="With the block for drafting (MTP) that the family has.")
@click.option("--vocabulary", metavar="FILE.gguf", help="With the tokenizer of this file.")
@click.option("--context", type=click.IntRange(min=1), default=4096, help="Context length in tokens.")
def main(shape: str, path: str, layers: int | None, drafting: bool, vocabulary: str | None, context: int) -> None:
    """See the top of the file."""
    write_random_gguf(shape, path, layers, drafting=drafting, vocabulary=vocabulary, context=context)


if __name__ == "__main__":
    main()
