"""Folders of tiny assistants of Gemma 4, and what they draft, as transformers has it.

transformers 5.23 builds no assistant as they are published: of layers that all share keys, and of targets without any
that do, it cannot say who keeps them. Said for it, the rest is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4TextConfig,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedAssistantForCausalLM,
    Gemma4UnifiedTextConfig,
)

from tests.support.family_table import FULL, SLIDING, Variant, variants
from tests.support.gguf_gemma4 import full_sizes
from tests.support.tiny_families import config_of, weight, with_weights, write_folder

WORDS = 128
"""Tokens of the vocabulary: eight centroids of 16."""
CONTEXT = 1600
KINDS = [SLIDING, SLIDING, SLIDING, FULL]
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


def _modes(config: Any) -> list[str | None]:
    """Who keeps keys and values for others: the last of each kind that has its own."""
    own = config.num_hidden_layers - config.num_kv_shared_layers
    modes: list[str | None] = [None] * own + ["reuse"] * config.num_kv_shared_layers
    for kind in {*config.layer_types[:own]}:
        modes[max(i for i in range(own) if config.layer_types[i] == kind)] = "store"
    return modes


@contextmanager
def _said() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gemma4TextConfig, "kv_sharing_modes", property(_modes))
        yield


class Pair:
    """A target and its assistant in float32.

    Args:
        name: of the target's variant in ``family_table``.
        ordered: the assistant computes the logits of a few centroids alone.
        words: tokens of their vocabulary.
        family: of the target.
        values: of the assistant's text config, in place of those that go with the target.
    """

    def __init__(
        self, name: str, ordered: bool, words: int = WORDS, family: str = "gemma4_text", **values: Any
    ) -> None:
        variant = next(one for one in variants(family) if one.name == name)
        more = {"vocab_size": words, "max_position_embeddings": CONTEXT}
        if family == "gemma4_text":
            more["vocab_size_per_layer_input"] = words + 6
        with _said():
            self.target = with_weights(config_of(family, Variant(name, {**variant.values, **more})))
            self.assistant = _assistant(self.target.config, ordered, values)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """The target's folder and the assistant's."""
        write_folder(folder / "target", self.target)
        self.assistant.save_pretrained(folder / "assistant")
        return folder / "target", folder / "assistant"

    @torch.no_grad()
    def states(self, text: Ids) -> tuple[Floats, Any]:
        """The target's features [n, width], and keys and values by kind of layer."""
        with _said():
            out = self.target.model(torch.from_numpy(text).long()[None], use_cache=False, return_shared_kv_states=True)
        return out.last_hidden_state[0].numpy(), {**out.shared_kv_states}

    @torch.no_grad()
    def draft(self, text: Ids, last: int, count: int) -> Iterator[tuple[int, Floats, Floats]]:
        """What follows ``text``, which is committed, and the token ``last``, greedily: (token, logits, state).

        The token is what a row is made of, logits [vocab] and state [hidden], after the final norm, what it comes to;
        logits of tokens that are no candidates are -inf.
        """
        found, kept = self.states(text)
        states, own = torch.from_numpy(found[None, -1:]), []
        hook = self.assistant.model.register_forward_hook(lambda _, given, out: own.append(out.last_hidden_state[0, 0]))
        for _ in range(count):
            embedded = self.target.get_input_embeddings()(torch.tensor([[last]]))
            with _said():
                out = self.assistant(
                    inputs_embeds=torch.cat([embedded, states], dim=-1),
                    position_ids=torch.tensor([[len(text)]]),
                    shared_kv_states=kept,
                )
            logits = out.logits[0, 0]
            if self.assistant.masked_embedding is not None:
                logits = logits.masked_fill(logits == logits.min(), -torch.inf)
            yield last, logits.numpy(), own[-1].numpy()
            last, states = int(logits.argmax()), out.last_hidden_state
        hook.remove()


def _assistant(target: Any, ordered: bool, values: dict[str, Any]) -> Any:
    """An assistant whose rows are narrower than the target's, and whose heads are as many as the target's or more."""
    sizes = target.to_dict()
    alike = ("head_dim", "num_key_value_heads", "attention_k_eq_v", "sliding_window", "rope_parameters")
    full = sizes["per_layer_config"]
    own = full.get(target.layer_types.index(FULL), full.get(str(target.layer_types.index(FULL)), {}))
    text = {
        **{key: sizes[key] for key in (*alike, "vocab_size")}, "hidden_size": 40, "intermediate_size": 80,
        "num_hidden_layers": 4, "num_kv_shared_layers": 4, "layer_types": KINDS, "num_attention_heads": 6,
        "global_head_dim": own.get("head_dim", sizes["head_dim"]),
        "num_global_key_value_heads": own.get("num_key_value_heads"), "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, **values,
    }  # fmt: skip
    kinds: Any = (Gemma4TextConfig, Gemma4AssistantConfig, Gemma4AssistantForCausalLM)
    if target.model_type == "gemma4_unified_text":
        kinds = (Gemma4UnifiedTextConfig, Gemma4UnifiedAssistantConfig, Gemma4UnifiedAssistantForCausalLM)
        text = {key: value for key, value in text.items() if "per_layer_input" not in key}
    text_kind, kind, model_kind = kinds
    config = kind(
        text_config=text_kind(**text),
        backbone_hidden_size=target.hidden_size,
        use_ordered_embeddings=ordered,
        num_centroids=8,
        centroid_intermediate_top_k=3,
    )
    config._attn_implementation = "eager"
    model = model_kind(config).float().eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name == "masked_embedding.token_ordering":
                tensor.copy_(torch.from_numpy(np.random.default_rng(7).permutation(len(tensor))))
            elif name != "lm_head.weight":
                tensor.copy_(torch.from_numpy(weight(name, tuple(tensor.shape), config)))
    return model


def write_assistant_gguf(path: Path, assistant: Any) -> Path:
    """The assistant as llama.cpp's converter writes it, which leaves the centroids out; ``path`` again."""
    config = SimpleNamespace(**assistant.config.text_config.to_dict())
    size, kv_heads = full_sizes(config)
    slides = [one == SLIDING for one in config.layer_types]
    writer = gguf.GGUFWriter(path, "gemma4-assistant")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    near: int = config.num_key_value_heads
    writer.add_head_count_kv(near if near == kv_heads else [near if one else kv_heads for one in slides])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters[FULL]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters[SLIDING]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(0)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count(size)
    writer.add_rope_dimension_count_swa(config.head_dim)
    writer.add_embedding_length_out(assistant.config.backbone_hidden_size)
    writer.add_nextn_predict_layers(config.num_hidden_layers)
    turning = int(size * config.rope_parameters[FULL]["partial_rotary_factor"] / 2)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (size // 2 - turning), np.float32))
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "pre_projection": "nextn.pre_projection",
             "post_projection": "nextn.post_projection"}  # fmt: skip
    for name, values in assistant.state_dict().items():
        stem, _, kind = name.rpartition(".")
        if stem in ("lm_head", "masked_embedding", "masked_embedding.centroids"):
            continue
        if stem in names:
            writer.add_tensor(f"{names[stem]}.{kind}", values.numpy())
            continue
        _, _, layer, rest = name.split(".", 3)
        rest = "layer_scalar.weight" if rest == "layer_scalar" else rest
        writer.add_tensor(f"blk.{layer}.{_IN_LAYER[rest.rpartition('.')[0]]}.weight", values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_IN_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.q_norm": "attn_q_norm",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "layer_scalar": "layer_output_scale",
}  # fmt: skip
