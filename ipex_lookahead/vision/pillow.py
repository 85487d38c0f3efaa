"""Image files to pixels, with Pillow; ``tokenization/worker.py`` runs this file in a process with limits."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

from PIL import (
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
LOADED = (BmpImagePlugin, GifImagePlugin, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, WebPImagePlugin)
"""Plugins, which are imported before the limits are set."""

_T = Image.Transpose
_TURNS = {
    2: _T.FLIP_LEFT_RIGHT, 3: _T.ROTATE_180, 4: _T.FLIP_TOP_BOTTOM,
    5: _T.TRANSPOSE, 6: _T.ROTATE_270, 7: _T.TRANSVERSE, 8: _T.ROTATE_90,
}  # fmt: skip
"""EXIF orientation -> the transposition that shows the image upright."""
_SIDEWAYS = (_T.TRANSPOSE, _T.ROTATE_270, _T.TRANSVERSE, _T.ROTATE_90)
"""Those that swap width and height."""


def answer(question: dict[str, Any], file: bytes, limit_resources: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return the size of an image, or its pixels.

    Args:
        question: ``pixels``, the maximum number of pixels; ``seconds`` of processor time and bytes of ``memory``, each
            in total and ``_per_pixel``; and, if pixels are requested, ``steps``, a list of [width, height, index of the
            earlier step that is resized, or null for the image], ``results``, the indices of steps to return, and
            ``resample``, a filter's number in Pillow.
        file: The image file.
        limit_resources: Sets limits of the kernel.

    Returns:
        ``{"size": [width, height]}`` as the image is shown, or ``{"pixels": [base64, ...]}`` of uint8 [height, width,
        3], or ``{"error": kind, "message": ...}``.
    """
    Image.MAX_IMAGE_PIXELS = None  # the limit below is stricter
    most = question["pixels"]
    try:
        limit_resources(_limits(question, most))
        if (canvas := _webp_canvas(file)) is not None and canvas[0] * canvas[1] > most:
            return _too_large(*canvas)  # opening it would allocate the canvas
        image: Image.Image
        with Image.open(io.BytesIO(file), formats=FORMATS) as image:
            width, height = image.size
            if width * height > most:
                return _too_large(width, height)
            limit_resources(_limits(question, width * height))
            turn = _TURNS.get(_orientation(image))
            if "steps" not in question:
                return {"size": [height, width] if turn in _SIDEWAYS else [width, height]}
            image.load()
            image = _rgb(image)
        if turn is not None:
            image = image.transpose(turn)
        made: list[Image.Image] = []
        for wide, high, source in question["steps"]:
            read = image if source is None else made[source]
            made.append(read.resize((wide, high), Image.Resampling(question["resample"])))
        return {"pixels": [base64.b64encode(made[i].tobytes()).decode("ascii") for i in question["results"]]}
    except MemoryError:
        return {"error": "memory", "message": "it takes too much memory"}
    except UnidentifiedImageError:
        return {"error": "format", "message": "the file is not a JPEG, PNG, WebP, GIF or BMP image"}
    except Exception as error:  # Pillow does not document which ones a damaged file can raise
        return {"error": "broken", "message": f"{type(error).__name__}: {error}"[:200]}


def _limits(question: dict[str, Any], pixels: int) -> dict[str, Any]:
    return {name: question[name] + question[f"{name}_per_pixel"] * pixels for name in ("memory", "seconds")}


def _too_large(width: int, height: int) -> dict[str, Any]:
    return {"error": "pixels", "message": f"{width:,} x {height:,} pixels"}


def _webp_canvas(file: bytes) -> tuple[int, int] | None:
    """Return the canvas of an extended WebP file."""
    if file[:4] != b"RIFF" or file[8:16] != b"WEBPVP8X" or len(file) < 30:
        return None
    return 1 + int.from_bytes(file[24:27], "little"), 1 + int.from_bytes(file[27:30], "little")


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation that precedes the pixels in the file; 1 for none or a damaged one."""
    try:
        # PngImageFile.getexif would decode the pixels first, to find one that follows them.
        return int(Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF data can raise anything
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB: transparency over white, 16 bits per value rounded to 8."""
    if image.mode.startswith("I"):  # 16-bit gray, in 32 bits in some versions of Pillow
        image = image.convert("I").point(lambda value: value * (1 / 257) + 0.5).convert("L")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
