"""A scripted program for ``benchmarks.compare``; the name of its model says how it answers."""

from __future__ import annotations

import os
import time
from typing import Any

DISTRIBUTION = "no-such-distribution"


class Fake:
    version = "1.2.3"
    weights = "none"
    lookup = "made up"

    def __init__(self, request: dict[str, Any]) -> None:
        print("what libraries print does not reach the protocol")
        self.request = request
        self.told = request["model"].split(":")[1:]
        if "unreadable" in self.told:
            raise ValueError("it reads something else")
        if "uninstalled" in self.told:
            import no_such_package  # noqa: F401

    def encode(self, texts: list[str]) -> dict[str, Any]:
        return {"prompts": [[ord(letter) for letter in text] for text in texts], "end": [0]}

    def answer(self, prompt: list[int], max_new_tokens: int, end: list[int], mode: str) -> dict[str, Any]:
        if "dies" in self.told and mode == "lookahead":
            os.write(2, b"Illegal thing\n")
            os.abort()
        if "hangs" in self.told:
            time.sleep(600)
        tokens = [*prompt, *range(100, 100 + max_new_tokens)][:max_new_tokens]
        if "differs" in self.told and mode == "lookahead" and len(prompt) % 2:
            tokens[-1] += 1
        seconds = {"plain": 2.0, "lookahead": 1.0, "auto": 0.5}[mode]
        return {"tokens": tokens, "first_tokens": 1, "first_seconds": 0.5, "seconds": 0.5 + seconds}


load = Fake
