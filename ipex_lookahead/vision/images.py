"""Images of users: their size from the header, and their pixels, from a process with limits (``pillow.py``)."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import InputError, MissingPackageError
from ipex_lookahead.system.extras import installing
from ipex_lookahead.tokenization.process import KeptWorker, Stopped, Worker, importable, spoken_memory, stopped_by
from ipex_lookahead.vision.tiling import Plan

Pixels = npt.NDArray[np.uint8]
"""RGB, [height, width, 3]."""


@dataclass(frozen=True)
class ImageLimits:
    """Limits on the images of a request.

    Attributes:
        count: number of images.
        bytes: bytes of a file.
        pixels: pixels of an image, by its header.
        seconds, seconds_per_pixel: processor time of an image.
        memory, memory_per_pixel: address space of the process for an image, in bytes.
    """

    count: int = 64
    bytes: int = 32 << 20
    pixels: int = 64_000_000
    seconds: float = 5.0
    seconds_per_pixel: float = 0.5e-6
    memory: int = 512 << 20
    memory_per_pixel: int = 24

    def check_count(self, count: int) -> None:
        """Raise InputError if a request has too many images."""
        if count > self.count:
            raise InputError(
                f"the request has {count:,} images; at most {self.count} are allowed", hint="send fewer images"
            )


class ImageReader(KeptWorker):
    """Reads image files, one at a time, each in a process of its own; see ``pillow.py`` for formats and colors.

    Args:
        limits: Limits on an image.
    """

    def __init__(self, limits: ImageLimits | None = None) -> None:
        """Start no process yet. Raises MissingPackageError if Pillow is not installed."""
        super().__init__()
        self.limits = limits or ImageLimits()
        if find_spec("PIL") is None:
            raise MissingPackageError("reading images needs Pillow, which is not installed", hint=installing("vision"))

    def size(self, file: bytes) -> tuple[int, int]:
        """Return an image's (width, height) as it is shown, from the header of the file.

        Raises:
            InputError: the file is not a supported image, is damaged, or exceeds a limit.
        """
        width, height = self._ask(file, {})["size"]
        return width, height

    def tiles(self, file: bytes, plan: Plan, resample: int) -> list[Pixels]:
        """Return the pixels of an image's tiles, resized as Pillow does it.

        Args:
            file: The image file.
            plan: The steps and the tiles.
            resample: Number of Pillow's filter: 2 bilinear, 3 bicubic, 1 Lanczos.

        Raises:
            InputError: as :meth:`size`.
        """
        results = sorted({tile.step for tile in plan.tiles})
        steps = [(step.width, step.height, step.source) for step in plan.steps]
        answer = self._ask(file, {"steps": steps, "results": results, "resample": resample})["pixels"]
        made = {}
        for number, data in zip(results, answer, strict=True):
            step = plan.steps[number]
            made[number] = np.frombuffer(base64.b64decode(data), np.uint8).reshape(step.height, step.width, 3)
        return [
            np.ascontiguousarray(made[tile.step][tile.top : tile.top + tile.height, tile.left : tile.left + tile.width])
            for tile in plan.tiles
        ]

    def _ask(self, file: bytes, wanted: dict[str, Any]) -> dict[str, Any]:
        limits = self.limits
        if len(file) > limits.bytes:
            raise _refused(f"it has {len(file):,} bytes; at most {limits.bytes:,} are allowed", "send a smaller file")
        names = ("pixels", "seconds", "seconds_per_pixel", "memory", "memory_per_pixel")
        question = json.dumps({name: getattr(limits, name) for name in names} | wanted).encode("ascii")
        seconds = limits.seconds + limits.seconds_per_pixel * limits.pixels
        memory = limits.memory + limits.memory_per_pixel * limits.pixels
        spoken = f"{seconds:.3g} s of processor time or {spoken_memory(memory)} of memory"
        try:
            with self._lock:
                worker = self._running()
                worker.send(question)
                answer = self._request(worker, file, seconds, spoken)
        except Stopped as stopped:
            raise _refused(f"reading it {stopped}", "send a smaller image") from None
        if "error" not in answer:
            return answer
        message = answer.get("message", "")
        if answer["error"] == "pixels":
            raise _refused(f"it has {message}; at most {limits.pixels:,} are allowed", "send a smaller image")
        if answer["error"] == "format":
            raise InputError(message, hint="convert it to JPEG or PNG")
        if answer["error"] == "stopped":
            raise _refused(f"reading it {stopped_by(answer['signal'], spoken)}", "send a smaller image")
        if answer["error"] == "memory":
            raise _refused(message, "send a smaller image")
        raise _refused(f"it is damaged and cannot be read ({message})", "save the image again")

    def _running(self) -> Worker:
        if self._worker is None or not self._worker.runs:
            self._worker = Worker("images", instead="remove the images from the request")
            script = str(Path(__file__).with_name("pillow.py"))
            self._worker.send(json.dumps({"path": importable(), "script": script}).encode("utf-8"))
        return self._worker


def _refused(problem: str, hint: str) -> InputError:
    return InputError(f"the image cannot be used: {problem}", hint=hint)
