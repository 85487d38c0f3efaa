"""Tensor names of folders: text models, models without head (``AutoModel``), and vision or audio models."""

from __future__ import annotations

_TEXT = (
    "language_model.model.",
    "model.language_model.",
    "language_model.",
    "model.text_model.",
    "text_model.",
    "backbone.",
)
"""Prefixes of the text part by family and release, for models saved with and without their head."""
_OWN = (
    "embed_tokens.", "embeddings.", "layers.", "norm.", "norm_f.", "embedding_norm.", "final_layernorm.",
    "embed_tokens_per_layer.", "word_embeddings.", "per_layer_model_projection.", "per_layer_projection_norm.",
)  # fmt: skip
"""First components of the text model's own names, after these prefixes or ``model.``."""
_OTHER = (
    "vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "connector.", "image_newline",
    "view_separator", "embed_vision.", "audio_tower.", "embed_audio.", "vision_embedder.", "vision_adapter.",
    "vision_projection.",
)  # fmt: skip
"""Vision and audio parts, and the projectors to the text model."""

_MODULES = {".mlp.gate.moe_statics.": ".mlp.moe_statics."}
"""Parts of names of transformers' modules, under which the torch engine saves -> those in checkpoints."""


def renamed(name: str) -> str | None:
    """Return the name of a folder's tensor in a spec; None if it does not belong to the text model."""
    if name.removeprefix("model.").startswith(_OTHER):
        return None
    for module, own in _MODULES.items():
        name = name.replace(module, own)
    for prefix in (*_TEXT, ""):
        rest = name.removeprefix(prefix)
        if name.startswith(prefix) and rest.startswith(_OWN):
            return f"model.{rest}"
    return name.removeprefix("language_model.") if name.startswith("language_model.lm_head.") else name
