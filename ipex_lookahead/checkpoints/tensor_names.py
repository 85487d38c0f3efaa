"""What a folder's tensors are called: a text model's, one's without its head, and a model's that sees."""

from __future__ import annotations

_TEXT = (
    "language_model.model.",
    "model.language_model.",
    "language_model.",
    "model.text_model.",
    "text_model.",
    "backbone.",
)
"""What a text part's names begin with, by family and release: the whole was saved, or it without its head."""
_OWN = (
    "embed_tokens.", "embeddings.", "layers.", "norm.", "norm_f.", "embedding_norm.", "embed_tokens_per_layer.",
    "per_layer_model_projection.", "per_layer_projection_norm.",
)  # fmt: skip
"""What stands behind that, and behind ``model.``: a model saved without its head (``AutoModel``) has these alone."""
_OTHER = (
    "vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "connector.", "image_newline",
    "view_separator", "embed_vision.", "audio_tower.", "embed_audio.",
)  # fmt: skip
"""Parts that see or hear, and what brings what they found to the text part."""


def renamed(name: str) -> str | None:
    """The name by which a spec knows a tensor of a folder; None for one of a part that is not the text model's."""
    if name.removeprefix("model.").startswith(_OTHER):
        return None
    for prefix in (*_TEXT, ""):
        rest = name.removeprefix(prefix)
        if name.startswith(prefix) and rest.startswith(_OWN):
            return f"model.{rest}"
    return name.removeprefix("language_model.") if name.startswith("language_model.lm_head.") else name
