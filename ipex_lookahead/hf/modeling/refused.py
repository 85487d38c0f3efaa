"""Inherited names that cannot work on an engine: each error names the alternative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from ipex_lookahead.errors import InputError

Class = TypeVar("Class", bound=type)

REFUSED: dict[str, str] = {
    name: instead
    for instead, names in {
        "generate decodes a batch together: pass it several prompts, padded on the left": (
            "continuous_batching_context_manager destroy_cached_continuous_batching_manager generate_batch "
            "init_continuous_batching "
        ),
        "load a model with ipex_lookahead.AutoModelForCausalLM.from_pretrained": (
            "from_pretrained init_weights initialize_weights load_state_dict post_init to_empty "
        ),
        "the packed weights are written by model.save_low_bit(folder)": (
            "save_pretrained dequantize get_extra_state set_extra_state "
        ),
        "write a folder with model.save_low_bit(folder), and upload that with huggingface_hub.upload_folder": (
            "push_to_hub register_for_auto_class "
        ),
        "adapters are read from files: model.load_adapter(path, name), then model.set_adapter(name) or "
        "generate(adapter=name); model.active_adapters() has the active one": (
            "active_adapter add_adapter enable_peft_hotswap get_adapter_state_dict "
        ),
        "the engine computes no gradients: train the original with transformers, and load the result": (
            "activation_checkpointing_enable disable_input_require_grads enable_input_require_grads "
            "gradient_checkpointing_enable register_backward_hook register_full_backward_hook "
            "register_full_backward_pre_hook "
        ),
        "its tables are packed in the engine: model.config.vocab_size is the number of tokens, "
        "model.get_parameter(name) gives values, and changes are made to the checkpoint": (
            "get_input_embeddings get_output_embeddings get_position_embeddings resize_position_embeddings "
            "resize_token_embeddings set_input_embeddings set_output_embeddings "
        ),
        "its layers run in the engine: model.named_parameters() gives their weights, model.engine.describe() "
        "the rest": (
            "get_decoder get_encoder get_parameter_or_buffer prune_heads register_load_state_dict_post_hook "
            "register_load_state_dict_pre_hook register_state_dict_post_hook register_state_dict_pre_hook "
            "set_decoder set_encoder set_submodule "
        ),
        "the engine has its own kernels: choose an engine and a device when the model is loaded": (
            "compile get_compiled_call reverse_bettertransformer set_attn_implementation "
            "set_experts_implementation set_use_kernels to_bettertransformer "
        ),
        "one process runs the model: pickle it, or load it again, for another process": (
            "barrier_after_gathered_checkpoint_save gather_sharded_state_dict_for_save maybe_distribute_model "
            "prepare_distribute_model save_distributed_checkpoint share_memory "
        ),
        "use model.generate, where options choose how tokens are picked": (
            "assisted_decoding beam_sample beam_search constrained_beam_search contrastive_search "
            "greedy_search group_beam_search heal_tokens load_custom_generate sample "
        ),
    }.items()
    for name in names.split()
}
"""Name -> what to use instead. Some of them are of one release of transformers only."""


def refuse(names: dict[str, str]) -> Callable[[Class], Class]:
    """A class decorator: those of the names that the class inherits raise InputError when they are called."""

    def decorate(cls: Class) -> Class:
        for name, instead in names.items():
            if hasattr(cls, name):
                setattr(cls, name, staticmethod(_refusal(name, instead)))
        return cls

    return decorate


def _refusal(name: str, instead: str) -> Callable[..., NoReturn]:
    def refusal(*args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(f"{name} is not for this model; {instead}")

    refusal.__name__ = refusal.__qualname__ = name
    refusal.__doc__ = f"Refused: {instead}."
    return refusal
