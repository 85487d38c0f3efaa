"""OpenVINO GenAI: GGUF files and its own folders; its prompt lookup needs a pipeline of its own."""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

DISTRIBUTION = "openvino-genai"
NGRAM = 3
"""Longest n-gram that its prompt lookup looks for: its documentation's."""


class OpenVino:
    """Two pipelines on the CPU."""

    def __init__(self, request: dict[str, Any]) -> None:
        import openvino_genai

        model = request["model"]
        if not model.endswith(".gguf") and not os.path.exists(os.path.join(model, "openvino_model.xml")):
            raise ValueError("it reads GGUF files and folders with an openvino_model.xml")
        self._genai = openvino_genai
        settings = {"INFERENCE_NUM_THREADS": request["threads"]}
        self._modes = {
            "plain": openvino_genai.LLMPipeline(model, "CPU", **settings),
            "lookahead": openvino_genai.LLMPipeline(model, "CPU", prompt_lookup=True, **settings),
        }
        self._lookahead = request["lookahead"]
        self.weights = f"{os.path.basename(model)} as it is"
        self.modes = {"lookahead": f"prompt_lookup, {request['lookahead']} tokens, n-grams of {NGRAM}"}

    def answer(
        self, prompt: list[int], max_new_tokens: int, end: list[int], mode: str, sampling: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """As ``child.Loaded``."""
        import numpy
        from openvino import Tensor

        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.stop_token_ids = max_new_tokens, False, set(end)
        if mode == "lookahead":
            config.num_assistant_tokens, config.max_ngram_size = self._lookahead, NGRAM
        if sampling is not None:
            config.do_sample, config.rng_seed = True, sampling["seed"]
            config.temperature = sampling["temperature"]
        clock = _clock(self._genai)
        ids = numpy.array([prompt], numpy.int64)
        inputs = self._genai.TokenizedInputs(Tensor(ids), Tensor(numpy.ones_like(ids)))
        start = perf_counter()
        result = self._modes[mode].generate(inputs, config, clock)
        seconds = perf_counter() - start
        first_tokens, came = clock.first
        return {
            "tokens": [int(token) for token in result.tokens[0]],
            "first_tokens": first_tokens,
            "first_seconds": came - start,
            "seconds": seconds,
        }


def _clock(genai: Any) -> Any:
    class Clock(genai.StreamerBase):  # type: ignore[misc]
        """Notes when the first tokens come, and how many."""

        first = (0, 0.0)

        def write(self, tokens: Any) -> Any:
            """One token, or several."""
            if not self.first[0]:
                self.first = (1 if isinstance(tokens, int) else len(tokens), perf_counter())
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """Nothing is left to do."""

    return Clock()


load = OpenVino
