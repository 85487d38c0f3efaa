"""A scripted program for the comparisons; the name of its model determines how it answers."""

from __future__ import annotations

import os
import time
from typing import Any

DISTRIBUTION = "no-such-distribution"


class Fake:
    version = "1.2.3"
    weights = "none"
    modes = {"lookahead": "made up"}  # noqa: RUF012

    def __init__(self, request: dict[str, Any]) -> None:
        print("what libraries print does not reach the protocol")
        self.request = request
        self.answers = 0
        self.told = request["model"].split(":")[1:]
        if "unreadable" in self.told:
            raise ValueError("it reads something else")
        if "uninstalled" in self.told:
            import no_such_package  # noqa: F401

    def encode(self, texts: list[str]) -> dict[str, Any]:
        return {"prompts": [[ord(letter) for letter in text] for text in texts], "end": [0]}

    def answer(
        self, prompt: list[int], max_new_tokens: int, end: list[int], mode: str, sampling: dict[str, Any] | None
    ) -> dict[str, Any]:
        if "dies" in self.told and mode == "lookahead":
            os.write(2, b"Illegal thing\n")
            os.abort()
        if "hangs" in self.told:
            time.sleep(600)
        self.answers += 1
        seed = 0 if sampling is None else 1000 * (1 + sampling["seed"])
        tokens = [*prompt, *range(100 + seed, 100 + seed + max_new_tokens)][:max_new_tokens]
        if "unsteady" in self.told:
            tokens[0] = self.answers
        if "differs" in self.told and mode == "lookahead" and len(prompt) % 2:
            tokens[-1] += 1
        seconds = {"plain": 2.0, "lookahead": 1.0, "auto": 0.5}[mode]
        return {"tokens": tokens, "first_tokens": 1, "first_seconds": 0.5, "seconds": 0.5 + seconds}


load = Fake
