"""Muse-Glimmer's text part with a head, for which transformers has no class of its own."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig
from transformers.models.muse_glimmer.modeling_muse_glimmer import MuseGlimmerPreTrainedModel, MuseGlimmerTextModel


class MuseGlimmerTextForCausalLM(MuseGlimmerPreTrainedModel, GenerationMixin):
    """Its logits are those of the whole model's class: times a multiplier, then capped."""

    config_class = MuseGlimmerTextConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = MuseGlimmerTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> MuseGlimmerTextForCausalLM:
        return cls._from_config(config, **options)

    def forward(self, input_ids: torch.Tensor, **options: Any) -> CausalLMOutputWithPast:
        found = self.model(input_ids=input_ids, **options)
        logits = self.lm_head(found.last_hidden_state) * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return CausalLMOutputWithPast(logits=cap * torch.tanh(logits / cap), hidden_states=found.hidden_states)
