"""Every ``llama.*`` key of a GGUF file: honoured, without effect (and why), refused, or unknown and named in a warning.

What llama.cpp's loader reads for the architecture ``llama`` stands in one of the first three tables (llama.cpp at the
vendored sources of llama-cpp-python 0.3.36: ``llama-model.cpp``, ``models/llama.cpp``). A key of none of them may be a
newer switch: the model may not be what its maker meant, so the user is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_lookahead.checkpoints.gguf_reader import GgufFile
from ipex_lookahead.checkpoints.hparams import shown
from ipex_lookahead.errors import UnsupportedModelError

PREFIX = "llama."

HONOURED = frozenset({
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
})  # fmt: skip
"""Read by ``gguf_llama.py``, checked, and obeyed; the prefix ``llama.`` is left out here and below."""

NEUTRAL: Mapping[str, str] = {
    "attention.key_length_swa": "the head size of layers with a window, and llama has none",
    "attention.layer_norm_epsilon": "for norms with a mean, and llama's have none",
    "attention.value_length_swa": "the head size of layers with a window, and llama has none",
    "classifier.output_labels": "for classifiers; their tensors are refused",
    "classifier.pooling_type": "for classifiers; their tensors are refused",
    "pooling_type": "how embeddings are pooled where they are returned instead of logits",
    "rope.dimension_count_swa": "the head size of layers with a window, and llama has none",
    "rope.scaling.finetuned": "whether the model was trained at its longer context; for information",
    "tensor_data_layout": "names the layout of the first converters, which is llama's own",
}
"""Keys without effect on the logits of this architecture, and why."""

REFUSED: Mapping[str, tuple[float, ...]] = {
    "attention.causal": (1,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attention.temperature_scale": (0,),
    "attention.value_scale": (0, 1),
    "attn_logit_softcapping": (0,),
    "embedding_length_out": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_group_count": (0,),
    "expert_group_used_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0,),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
    "use_parallel_residual": (0,),
}
"""Keys that change what a model computes in a way that is not there here, and the values that change nothing."""


def refuse_switches(file: GgufFile) -> None:
    """Raise UnsupportedModelError for the first key that asks for what is not there here."""
    for name, harmless in REFUSED.items():
        key = PREFIX + name
        if (value := file.scalar(key, harmless[0])) not in harmless:
            raise UnsupportedModelError(
                f"{file.path}: {key} is {shown(value)}, which this package cannot run; it must be "
                f"{' or '.join(f'{one:g}' for one in harmless)}, or not there"
            )


def unknown_keys(metadata: Mapping[str, Any]) -> list[str]:
    """The ``llama.*`` keys that nothing here knows, in the file's order."""
    return [
        key
        for key in metadata
        if key.startswith(PREFIX)
        and not any(key.removeprefix(PREFIX) in known for known in (HONOURED, NEUTRAL, REFUSED))
    ]
