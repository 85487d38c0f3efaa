"""transformers on the CPU in bfloat16: Hugging Face folders and GGUF files, which it decodes; its prompt lookup."""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

DISTRIBUTION = "transformers"


class Transformers:
    """One model, which drafts in the mode "lookahead"."""

    def __init__(self, request: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(request["threads"])
        folder, file = request["model"], None
        if folder.endswith(".gguf"):
            folder, file = os.path.split(folder)
        found = {} if file is None else {"gguf_file": file}
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **found)
        self._model: Any = model.to(torch.bfloat16).eval()
        self._lookahead = request["lookahead"]
        self.weights = f"{file or os.path.basename(folder)} as bfloat16"
        self.modes = {"lookahead": f"prompt_lookup_num_tokens={self._lookahead}"}

    def answer(
        self, prompt: list[int], max_new_tokens: int, end: list[int], mode: str, sampling: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """As ``child.Loaded``."""
        import torch

        clock = _Clock()
        settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False, "streamer": clock}
        settings |= {"eos_token_id": end or None, "pad_token_id": 0}
        if mode == "lookahead":
            settings["prompt_lookup_num_tokens"] = self._lookahead
        if sampling is not None:
            settings |= {"do_sample": True, "temperature": sampling["temperature"], "top_k": 0, "top_p": 1.0}
            torch.manual_seed(sampling["seed"])
        ids = torch.tensor([prompt], dtype=torch.long)
        start = perf_counter()
        out = self._model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        seconds = perf_counter() - start
        first_tokens, came = clock.pieces[1]
        return {
            "tokens": out[0, len(prompt) :].tolist(),
            "first_tokens": first_tokens,
            "first_seconds": came - start,
            "seconds": seconds,
        }


class _Clock:
    """A streamer that notes when pieces come: the prompt first, then tokens."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, float]] = []

    def put(self, value: Any) -> None:
        """A tensor of token ids."""
        self.pieces.append((int(value.numel()), perf_counter()))

    def end(self) -> None:
        """Nothing is left to do."""


load = Transformers
