"""ipex-llm 2.x on the CPU: Hugging Face folders in a low-bit format of its own making; its lookahead."""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

DISTRIBUTION = "ipex-llm"


class IpexLlm:
    """One model, which drafts in the mode "lookahead".

    It has no clock of its own without lookahead and streams nothing with it: one more call, for one token,
    measures the prompt's share of the time.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        import torch
        from ipex_llm.transformers import AutoModelForCausalLM

        torch.set_num_threads(request["threads"])
        model, low_bit = request["model"], request["low_bit"] or "sym_int4"
        if model.endswith(".gguf"):
            self._model, _ = AutoModelForCausalLM.from_gguf(model, low_bit=low_bit)
        else:
            self._model = AutoModelForCausalLM.from_pretrained(
                model, load_in_low_bit=low_bit, optimize_model=True, use_cache=True
            )
        self._lookahead = request["lookahead"]
        self.weights = f"{os.path.basename(model)} in its {low_bit}"
        self.modes = {"lookahead": f"lookahead={self._lookahead}"}

    def answer(
        self, prompt: list[int], max_new_tokens: int, end: list[int], mode: str, sampling: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """As ``child.Loaded``. Its lookahead runs on behind ``max_new_tokens``."""
        _, first = self._run(prompt, 1, end, mode, sampling)
        tokens, seconds = self._run(prompt, max_new_tokens, end, mode, sampling)
        return {"tokens": tokens[:max_new_tokens], "first_tokens": 1, "first_seconds": first, "seconds": seconds}

    def _run(
        self, prompt: list[int], new: int, end: list[int], mode: str, sampling: dict[str, Any] | None
    ) -> tuple[list[int], float]:
        import torch

        ids = torch.tensor([prompt], dtype=torch.long)
        settings: dict[str, Any] = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0, "eos_token_id": end}
        if mode == "lookahead":
            settings["lookahead"] = self._lookahead
        if sampling is not None:
            settings |= {"do_sample": True, "temperature": sampling["temperature"], "top_k": 0, "top_p": 1.0}
            torch.manual_seed(sampling["seed"])
        start = perf_counter()
        with torch.inference_mode():
            out = self._model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        return out[0, len(prompt) :].tolist(), perf_counter() - start


load = IpexLlm
