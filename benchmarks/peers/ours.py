"""ipex-lookahead with the protocol of its peers; it also tokenizes the prompts for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipex_lookahead.config import NO_STORE

DISTRIBUTION = "ipex-lookahead"
DRAFT = "draft model"


class Ours:
    """A model on its engine, whatever ``engine="auto"`` chooses."""

    def __init__(self, request: dict[str, Any]) -> None:
        from ipex_lookahead.hf.auto import load_model_and_tokenizer
        from ipex_lookahead.runtime.lookahead import resolve_lookahead

        placing = {"low_bit": request["low_bit"], "threads": request["threads"]}
        self._model, self._tokenizer = load_model_and_tokenizer(request["model"], progress=False, **placing)
        if self._tokenizer is None:
            raise ValueError(f"{request['model']} carries no tokenizer")
        self._draft: Any = None
        self._load: Callable[[], Any] = lambda: load_model_and_tokenizer(request["model"], progress=False, **placing)[0]
        facts = self._model.engine.describe()
        self.weights = f"{facts.get('low_bit')} of {Path(request['model']).name}, {facts.get('engine')} engine"
        auto = resolve_lookahead("auto")
        assert auto is not None
        self._modes: dict[str, Any] = {
            "plain": 0,
            "lookahead": request["lookahead"],
            "auto": replace(auto, store=NO_STORE),
            DRAFT: request["lookahead"],
        }
        self.modes = {
            "lookahead": "prompt_lookup",
            "auto": "all sources, every prompt with an empty memory",
            DRAFT: f"the same file, {request['lookahead']} tokens",
        }
        if getattr(self._model.engine, "head", None) is not None:
            self.modes["MTP"] = f"the model's own block, {request['lookahead']} tokens in each step"
            head = resolve_lookahead("head")
            assert head is not None
            self._modes["MTP"] = replace(head, adaptive=False)

    def encode(self, texts: list[str]) -> dict[str, Any]:
        """Chat prompts as token ids, and the ids that end an answer."""
        from ipex_lookahead.tokenization.prompts import build_prompt

        config = dict(self._model.config.to_dict())
        end = self._model.generation_config.eos_token_id
        prompts = [build_prompt(self._tokenizer, config, text) for text in texts]
        return {"prompts": prompts, "end": end if isinstance(end, list) else [] if end is None else [end]}

    def answer(
        self, prompt: list[int], max_new_tokens: int, end: list[int], mode: str, sampling: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """As ``child.Loaded``."""
        import torch

        ids = torch.tensor([prompt], dtype=torch.long)
        settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False, "eos_token_id": end or None}
        if sampling is not None:
            settings |= {"do_sample": True, "top_k": 0, "top_p": 1.0, **sampling}
        if mode == DRAFT:
            self._draft = settings["draft_model"] = self._draft or self._load()
        out = self._model.generate(ids, lookahead=self._modes[mode], **settings)
        stats = self._model.stats
        assert stats is not None
        return {
            "tokens": out[0, len(prompt) :].tolist(),
            "first_tokens": 1,
            "first_seconds": stats.first_token_seconds,
            "seconds": stats.first_token_seconds + stats.decode_seconds,
        }


load = Ours
