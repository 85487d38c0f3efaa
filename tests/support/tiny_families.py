"""Tiny random checkpoints of every family here, as transformers builds and saves them, with every switch on and off.

A family is a row of ``FAMILIES``: its base and the variants that differ from it. Weights are random, norms, biases and
sinks too, of sizes at which every switch shows in the logits (``test_families_table.py`` asks each). A weight follows
from its name alone, so two variants of the same shapes differ by their switches only.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.family_table import FAMILIES, FULL, LINEAR_ATTENTION, SLIDING, TEXT, VOCAB, Variant, variants
from tests.support.reference_models import MODELS


def config_of(model_type: str, variant: Variant, *, base: dict[str, Any] | None = None) -> Any:
    """The transformers config of a variant over the family's base, or another."""
    family = FAMILIES[model_type]
    start = family.base if base is None else base
    values = json.loads(json.dumps({**start, **variant.values}))  # transformers changes what it is given
    return (MODELS[model_type].config_class if model_type in MODELS else getattr(transformers, family.config))(**values)


def keeps_states(model_type: str, variant: Variant) -> bool:
    """Whether some of the variant's layers are recurrent."""
    kinds = getattr(config_of(model_type, variant).get_text_config(), "layer_types", None) or []
    return any(one in ("conv", "hybrid", LINEAR_ATTENTION) for one in kinds)


NOT_ON_TORCH = "recurrent state|does not run on the torch engine|transformers (cannot load|has no class)"
"""What the torch engine says of a variant that it refuses."""


def refused_by_torch(model_type: str, variant: Variant) -> bool:
    """Whether the torch engine refuses the variant: recurrent layers, text parts without a class, no class for it."""
    apart = model_type in ("qwen3_vl_moe", "muse_glimmer", "muse_glimmer_text")
    return keeps_states(model_type, variant) or apart or model_type in MODELS


@functools.lru_cache(maxsize=8)
def _built(model_type: str, name: str) -> Any:
    variant = next(one for one in variants(model_type) if one.name == name)
    return with_weights(config_of(model_type, variant))


def build(model_type: str, variant: Variant) -> Any:
    """The variant's model in float32, for reading only."""
    return _built(model_type, variant.name)


def kind_of(config: Any) -> Any:
    """Transformers' class that makes a model of ``config``, or the reference of a family that it lacks."""
    if config.model_type == "muse_glimmer_text":
        from tests.support.muse_glimmer import MuseGlimmerTextForCausalLM  # older transformers lack the family

        return MuseGlimmerTextForCausalLM
    if config.model_type in MODELS:
        return MODELS[config.model_type]
    auto = "AutoModelForImageTextToText" if hasattr(config, "vision_config") else "AutoModelForCausalLM"
    return getattr(transformers, auto)


def with_weights(config: Any) -> Any:
    """A model of ``config`` in float32 with eager attention, and weights that follow from their names."""
    config._attn_implementation = "eager"
    model = kind_of(config).from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    state = model.state_dict()
    with torch.no_grad():
        for name, tensor in state.items():
            if not (name == "lm_head.weight" and getattr(config, "tie_word_embeddings", False)):
                tensor.copy_(torch.from_numpy(weight(name, tuple(tensor.shape), config)))
    return model


def weight(name: str, shape: tuple[int, ...], config: Any) -> npt.NDArray[np.float32]:
    """Random values for a parameter, of a size at which it matters: norms about 1, biases and sinks away from 0."""
    chance = np.random.default_rng(zlib.crc32(name.removeprefix("model.language_").encode()))
    values: Any = np.asarray(chance.standard_normal(shape))
    gemma = config.model_type.startswith("gemma")
    if name.endswith(("norm.weight", "norm_f.weight")):
        values = 0.3 * values + (0.0 if added_to_one(name, config) else 1.0)
        if name.endswith("q_norm.weight") and config.model_type.startswith("gemma4"):
            values = values / math.sqrt(shape[0])  # where nothing else makes scores less
    elif name.endswith(".router.scale"):  # the root of the size is divided by again
        values = 6 * math.sqrt(shape[0]) * (0.3 * values + 1)
    elif name.endswith(".per_expert_scale"):
        values = 0.3 * values + 1
    elif name.endswith(".layer_scalar"):
        values = 0.2 * values + 1
    elif name.endswith(".sinks"):
        values = 1.5 * values
    elif "act_fn." in name:  # xIELU's: of alphas a little, a slope, and a bound below 0 that shows
        values = {"eps": lambda v: -0.02 - 0.01 * v * v, "beta": lambda v: 0.5 + 0.1 * v}.get(
            name.rpartition(".")[2], lambda v: 0.3 * v
        )(values)
    elif name.endswith("bias"):
        values = 0.3 * values
    elif name.endswith(".A_log"):
        values = 0.5 * values - 1.5  # of states that last for some positions
    elif "embed_tokens_per_layer" in name:
        values = values / math.sqrt(config.get_text_config().hidden_size_per_layer_input)
    elif "embed_tokens" in name or "word_embeddings" in name:
        values = values / (math.sqrt(shape[-1]) if gemma else 2)
    elif name.endswith(("gate.weight", "router.weight")):
        values = 3 * values / math.sqrt(shape[-1])
    elif "experts" in name:
        n_in = shape[1] if config.model_type == "gpt_oss" else shape[-1]
        values = (2.5 if config.model_type == "gpt_oss" and "gate_up" in name else 1) * values / math.sqrt(n_in)
    else:
        values = (2 if name == "lm_head.weight" else 1) * values / math.sqrt(max(1, math.prod(shape[1:])))
    return np.asarray(values, np.float32)


def added_to_one(name: str, config: Any) -> bool:
    """Whether a file holds a norm's weights less 1: Gemma's, and Qwen's since its recurrent layers but for those."""
    since = config.get_text_config().model_type.startswith(("qwen3_5", "qwen3_next"))
    inside = name.endswith("linear_attn.norm.weight") or "visual." in name
    if config.get_text_config().model_type == "muse_glimmer_text":  # all but the last
        return name.endswith("layernorm.weight")
    return (config.model_type.startswith("gemma") and not config.model_type.startswith("gemma4")) or (
        since and not inside
    )


def text(model: Any, length: int = TEXT) -> npt.NDArray[np.int32]:
    """Token ids [length] on which no router is undecided: rounding elsewhere must not send a row to another expert."""
    for seed in range(200):
        ids = np.random.default_rng(seed).integers(3, VOCAB, length).astype(np.int32)
        if _margin(model, ids) > 0.03:
            return ids
    raise AssertionError(f"no text of {length} tokens is clear to the routers of {model.config.model_type}")


ROUTERS = (".mlp.gate", ".mlp.router", ".feed_forward.gate", ".mixer.gate", ".block_sparse_moe.router")
"""How names of modules end that give the logits, or scores, of experts."""


def _margin(model: Any, ids: npt.NDArray[np.int32]) -> float:
    """The least distance between the last expert, or group of experts, that a router chose and the next one."""
    seen: list[float] = [math.inf]
    hooks = []
    for name, module in model.named_modules():
        if hasattr(module, "per_expert_scale"):  # Gemma 4's

            def look_at_shares(module: Any, given: Any, output: Any) -> None:
                seen.append(_apart(output[0].log(), module.config.top_k_experts))

            hooks.append(module.register_forward_hook(look_at_shares))
        elif name.endswith(ROUTERS):

            def look(module: Any, given: Any, output: Any) -> None:
                scores, bias = output[0], getattr(module, "e_score_correction_bias", None)
                if bias is None and len(given) > 1:
                    bias = given[1]
                if (statics := getattr(module, "moe_statics", None)) is not None:
                    shares = scores.softmax(-1)  # whose slopes are p (1 - p)
                    scores = (shares + statics.e_score_correction_bias) / (shares - shares**2).amax(-1, True)
                if bias is not None:
                    scores = 4 * (scores.sigmoid() + bias)  # whose slope is a quarter at most
                if (groups := getattr(module, "num_group", None) or 1) > 1:
                    apart = scores.view(len(scores), groups, -1)
                    best = apart.topk(1 if bias is None else 2).values.sum(-1)
                    seen.append(_apart(best, module.topk_group))
                    last = best.sort(descending=True).values[:, module.topk_group - 1, None]
                    scores = apart.masked_fill((best < last)[..., None], -math.inf).view(len(scores), -1)
                seen.append(_apart(scores, module.top_k))

            hooks.append(module.register_forward_hook(look))
    if hooks:
        logits(model, ids)
    for hook in hooks:
        hook.remove()
    return min(seen)


def _apart(scores: torch.Tensor, chosen: int) -> float:
    ordered = scores.sort(descending=True).values
    return float((ordered[:, chosen - 1] - ordered[:, chosen]).min()) if chosen < ordered.shape[1] else math.inf


def logits(model: Any, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Float32 [n, vocab] of all positions, without a cache."""
    with torch.no_grad():
        found: npt.NDArray[np.float32] = model(torch.from_numpy(ids[None]).long(), use_cache=False).logits[0].numpy()
    return found


def distance(got: Any, expected: Any) -> float:
    """The largest difference of two sets of logits, in standard deviations of the second."""
    return float(np.abs(np.asarray(got, np.float64) - expected).max() / np.std(expected))


def write_folder(folder: Path, model: Any, *, dtype: str = "float32", old_words: bool = False) -> Path:
    """The model as a Hugging Face folder, tensors named as the hub's checkpoints have them; ``folder`` again.

    ``old_words``: config.json as transformers 4 wrote it, which is what most checkpoints still hold. A model with a
    text part has the names of the first release (``language_model.model.``); see :func:`rename_text_part`.
    """
    (model if dtype == "float32" else copy.deepcopy(model).to(getattr(torch, dtype))).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(as_of_old(config) if old_words else config), encoding="utf-8")
    return folder


def rounded(model: Any, dtype: str) -> Any:
    """The model with its weights rounded to a shorter type, in float32 again."""
    return copy.deepcopy(model).to(getattr(torch, dtype)).float()


def rename_text_part(folder: Path) -> None:
    """Give the text part's tensors the names that transformers has had since 4.52 (``model.language_model.``)."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    moved = (("language_model.model.", "model.language_model."), ("language_model.lm_head.", "lm_head."))
    for first, since in moved:
        tensors = {name.replace(first, since): values for name, values in tensors.items()}
    save_file(tensors, file, {"format": "pt"})


def as_of_old(config: dict[str, Any]) -> dict[str, Any]:
    """A config in the words of transformers 4: ``rope_theta`` and ``rope_scaling`` outside, ``torch_dtype``, ..."""
    config = dict(config)
    if "text_config" in config:
        config["text_config"] = as_of_old(config["text_config"])
        return config
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    if config["model_type"] == "laguna":  # which is younger
        return config
    if config["model_type"] in ("gemma4_text", "gemma4_unified_text"):
        return _gemma_4_of_hub(config)
    if config["model_type"] == "mellum":  # which was never written by transformers 4
        return config
    if config["model_type"] in ("granitemoehybrid", "nemotron_h"):
        _hybrids_of_old(config)
    if (rope := config.pop("rope_parameters", None)) is None:
        return config
    if FULL in rope:
        local, rope = rope[SLIDING], rope[FULL]
        if config["model_type"] == "gemma3_text":
            config["rope_local_base_freq"] = local["rope_theta"]
    rope = dict(rope)
    if "rope_theta" in rope:
        config["rope_theta"] = rope.pop("rope_theta")
    halved = config["model_type"] in ("glm4", "glm4_moe")  # which have half of it without
    if rope.get("partial_rotary_factor", 1.0) != 1.0 or halved:
        config["partial_rotary_factor"] = rope["partial_rotary_factor"]
    rope.pop("partial_rotary_factor", None)
    without = rope == {"rope_type": "default"} and config["model_type"] not in (
        "gpt_oss",
        "apertus",
    )  # not plain without
    config["rope_scaling"] = None if without else rope
    if rope["rope_type"] == "longrope":
        config["rope_scaling"].pop("original_max_position_embeddings")
    if (
        config["model_type"] in ("qwen3_moe", "lfm2_moe", "qwen3_5_moe_text", "qwen3_next")
        and "num_local_experts" in config
    ):
        config["num_experts"] = config.pop("num_local_experts")
    if "_sliding_window_pattern" in config:
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern")
        if config["layer_types"] == [
            SLIDING if (layer + 1) % config["sliding_window_pattern"] else FULL
            for layer in range(config["num_hidden_layers"])
        ]:
            del config["layer_types"]
    return config


def _gemma_4_of_hub(config: dict[str, Any]) -> dict[str, Any]:
    """The words of the hub's files: sizes of layers that see all by a name of their own. Ropes were never elsewhere."""
    kinds, own = config["layer_types"], config.pop("per_layer_config")
    sizes = own.get(str(kinds.index(FULL)), {})
    config["global_head_dim"] = sizes.get("head_dim", config["head_dim"])
    config["num_global_key_value_heads"] = sizes.get("num_key_value_heads")
    return config


def _hybrids_of_old(config: dict[str, Any]) -> None:
    """The words of kinds of layers before transformers had its own."""
    if config["model_type"] == "nemotron_h":
        letters = {LINEAR_ATTENTION: "M", FULL: "*", "mlp": "-", "moe": "E"}
        config["hybrid_override_pattern"] = "".join(letters[one] for one in config.pop("layers_block_type"))
    else:
        config["layer_types"] = ["attention" if one == FULL else "mamba" for one in config["layer_types"]]
