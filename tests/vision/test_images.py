"""Image files to pixels: formats, colors and orientation as Pillow and numpy have them, and hostile files."""

from __future__ import annotations

import io
import os
import signal
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from ipex_lookahead.errors import InputError, MissingPackageError
from ipex_lookahead.vision import images
from ipex_lookahead.vision.images import ImageLimits, ImageReader
from ipex_lookahead.vision.tiling import Plan, Step, Tile, whole

BICUBIC = 3


@pytest.fixture(scope="module")
def reader():
    return ImageReader()


def noise(height: int = 31, width: int = 23, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def saved(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read(reader: ImageReader, file: bytes) -> np.ndarray:
    return resized(reader, file, reader.size(file), BICUBIC)


def resized(reader: ImageReader, file: bytes, size: tuple[int, int], resample: int) -> np.ndarray:
    (tile,) = reader.tiles(file, whole(*size), resample)
    return tile


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_formats_and_resizing_are_pillows(reader, kind):
    file = saved(Image.fromarray(noise()), kind)
    with Image.open(io.BytesIO(file)) as opened:
        image = opened.convert("RGB")
    assert reader.size(file) == (23, 31)
    assert np.array_equal(read(reader, file), np.asarray(image))
    for resample in (1, 2, 3):
        wanted = np.asarray(image.resize((96, 48), Image.Resampling(resample)))
        assert np.array_equal(resized(reader, file, (96, 48), resample), wanted)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_orientation_of_exif_applies(reader, kind, orientation):
    image = Image.fromarray(noise())
    exif = image.getexif()
    exif[0x0112] = orientation
    file = saved(image, kind, exif=exif)
    with Image.open(io.BytesIO(file)) as opened:
        upright = ImageOps.exif_transpose(opened).convert("RGB")
    assert reader.size(file) == upright.size == ((31, 23) if orientation > 4 else (23, 31))
    assert np.array_equal(read(reader, file), np.asarray(upright))


def test_transparent_pixels_are_over_white(reader):
    colors = noise(channels=4)
    found = read(reader, saved(Image.fromarray(colors), "PNG")).astype(int)
    alpha = colors[..., 3:].astype(int)
    exact = (colors[..., :3] * alpha + 255 * (255 - alpha)) / 255
    assert np.abs(found - exact).max() <= 1
    assert np.array_equal(found[alpha[..., 0] == 0], np.full_like(found[alpha[..., 0] == 0], 255))


def test_transparent_colors_of_palettes_and_gray_are_over_white(reader):
    palette = Image.fromarray(noise() // 64 * 64).quantize(16)
    shown = np.asarray(palette.convert("RGB")).copy()
    shown[np.asarray(palette) == 3] = 255
    for kind in ("PNG", "GIF"):
        assert np.array_equal(read(reader, saved(palette, kind, transparency=3)), shown)
    gray = noise(channels=1)
    shown = np.repeat(gray[..., None], 3, 2)
    shown[gray == 7] = 255
    assert np.array_equal(read(reader, saved(Image.fromarray(gray), "PNG", transparency=7)), shown)


def test_16_bits_are_rounded_to_8(reader):
    gray = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    found = read(reader, saved(Image.fromarray(gray), "PNG"))
    assert np.array_equal(found, np.repeat(np.floor(gray / 257 + 0.5).astype(np.uint8)[..., None], 3, 2))


@pytest.mark.parametrize("mode", ["1", "L", "CMYK"])
def test_other_modes_are_converted(reader, mode):
    image = Image.fromarray(noise()).convert(mode)
    file = saved(image, "JPEG" if mode == "CMYK" else "PNG", **({"quality": 100} if mode == "CMYK" else {}))
    with Image.open(io.BytesIO(file)) as opened:
        assert np.array_equal(read(reader, file), np.asarray(opened.convert("RGB")))


def test_tiles_are_parts_of_resized_images(reader):
    """A second step reads the first one's result; a result that no tile is of is not returned."""
    image = Image.fromarray(noise())
    steps = (Step(20, 10), Step(12, 8, 0), Step(6, 4, 1))
    plan = Plan(steps, (Tile(1, 6, 0, 6, 4), Tile(2, 0, 0, 6, 4), Tile(1, 0, 4, 6, 4)), 2, 2)
    found = reader.tiles(saved(image, "PNG"), plan, 1)
    second = image.resize((20, 10), Image.Resampling.LANCZOS).resize((12, 8), Image.Resampling.LANCZOS)
    third = second.resize((6, 4), Image.Resampling.LANCZOS)
    pixels = np.asarray(second)
    for tile, wanted in zip(found, (pixels[:4, 6:], np.asarray(third), pixels[4:, :6]), strict=True):
        assert np.array_equal(tile, wanted)


def test_the_first_frame_of_an_animation_is_read(reader):
    frames = [Image.fromarray(noise(seed=seed)).quantize(32) for seed in (1, 2)]
    file = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.array_equal(read(reader, file), np.asarray(frames[0].convert("RGB")))


def png(width: int, height: int, data: bytes) -> bytes:
    """A PNG file of gray pixels with any size in its header."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def webp_canvas(width: int, height: int) -> bytes:
    body = b"VP8X" + struct.pack("<I", 10) + bytes(4)
    body += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little") + bytes(64)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


@pytest.mark.parametrize("file", [png(60000, 60000, bytes(100)), webp_canvas(16000, 16000)], ids=["png", "webp"])
def test_the_number_of_pixels_is_checked_by_the_header(reader, file):
    for call in (lambda: reader.size(file), lambda: resized(reader, file, (48, 48), BICUBIC)):
        with pytest.raises(InputError, match=r"has [\d,]+ x [\d,]+ pixels; at most 64,000,000 are allowed"):
            call()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_truncated_files_are_refused(reader, kind):
    file = saved(Image.fromarray(noise(200, 200)), kind)
    with pytest.raises(InputError, match="damaged"):
        resized(reader, file[: len(file) // 2], (48, 48), BICUBIC)


@pytest.mark.parametrize("file", [b"", b"GIF89a", b"%PDF-1.7", saved(Image.fromarray(noise()), "TIFF")])
def test_other_files_are_refused(reader, file):
    with pytest.raises(InputError, match="not a JPEG, PNG, WebP, GIF or BMP image|damaged"):
        reader.size(file)


def test_narrow_images_are_read(reader):
    file = png(1, 30000, bytes(2) * 30000)
    assert reader.size(file) == (1, 30000)
    assert resized(reader, file, (48, 480), BICUBIC).shape == (480, 48, 3)


def test_size_and_count_are_limited(reader):
    with pytest.raises(InputError, match=r"has 33,554,433 bytes; at most 33,554,432 are allowed"):
        reader.size(bytes((32 << 20) + 1))
    reader.limits.check_count(64)
    with pytest.raises(InputError, match="1,000 images; at most 64"):
        reader.limits.check_count(1000)


def test_an_image_beyond_its_limits_ends_its_process_only():
    file = png(6000, 6000, bytes(6001 * 6000))
    slow = ImageReader(ImageLimits(seconds=0.001, seconds_per_pixel=0))
    with pytest.raises(InputError, match="was stopped: it takes more than 0.001 s of processor time"):
        resized(slow, file, (48, 48), BICUBIC)
    large = ImageReader(ImageLimits(memory=100 << 20, memory_per_pixel=0))
    with pytest.raises(InputError, match="too much memory"):
        resized(large, file, (48, 48), BICUBIC)


def test_the_process_starts_again_after_its_end(reader):
    file = png(2, 2, bytes(6))
    assert reader.size(file) == (2, 2)
    os.kill(reader._worker._process.pid, signal.SIGKILL)
    reader._worker._process.wait()
    assert reader.size(file) == (2, 2)


def test_without_pillow(monkeypatch):
    monkeypatch.setattr(images, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="needs Pillow"):
        ImageReader()
