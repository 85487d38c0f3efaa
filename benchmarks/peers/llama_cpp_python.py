"""llama-cpp-python: GGUF files, its prompt lookup as the draft model."""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

DISTRIBUTION = "llama-cpp-python"


class LlamaCpp:
    """Two contexts, with and without a draft model: one keeps the logits of all rows, the other need not."""

    def __init__(self, request: dict[str, Any]) -> None:
        from llama_cpp import Llama, __version__
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        model, threads = request["model"], request["threads"]
        if not model.endswith(".gguf"):
            raise ValueError("llama-cpp-python reads GGUF files: make one with llama.cpp's convert_hf_to_gguf.py")
        settings = {"n_ctx": request["context"], "n_threads": threads, "n_threads_batch": threads, "verbose": False}
        draft = LlamaPromptLookupDecoding(num_pred_tokens=request["lookahead"])
        self._modes = {
            "plain": Llama(model, **settings),
            "lookahead": Llama(model, draft_model=draft, **settings),
        }
        self.version = __version__
        self.weights = f"{os.path.basename(model)} as it is"
        self.modes = {"lookahead": f"LlamaPromptLookupDecoding, {request['lookahead']} tokens"}

    def answer(
        self, prompt: list[int], max_new_tokens: int, end: list[int], mode: str, sampling: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """As ``child.Loaded``."""
        llama = self._modes[mode]
        llama.reset()  # else a prompt that it has seen need not be read again
        settings: dict[str, Any] = {"temp": 0.0}
        if sampling is not None:
            settings = {"temp": sampling["temperature"], "top_k": 0, "top_p": 1.0, "min_p": 0.0}
            llama.set_seed(sampling["seed"])
        tokens: list[int] = []
        first = 0.0
        start = perf_counter()
        for token in llama.generate(prompt, repeat_penalty=1.0, **settings):
            first = first or perf_counter() - start
            tokens.append(int(token))
            if len(tokens) == max_new_tokens or token in end:
                break
        return {"tokens": tokens, "first_tokens": 1, "first_seconds": first, "seconds": perf_counter() - start}


load = LlamaCpp
