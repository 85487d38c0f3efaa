"""``ipex-lookahead bench image``: time of encoding an image and of reading its rows, by size of the image.

The images are random pixels, new in each round, so that no cache has them. With ``--llama-mtmd-cli`` llama.cpp's
program reads the same files alternately, with the same weights.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.bench.options import json_option
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import mmproj_option, threads_option
from ipex_lookahead.cli.names import FORMATS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import status
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import LowBit, Model
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from ipex_lookahead.architectures.spec import Tensor
    from ipex_lookahead.engines.native.engine import NativeEngine
    from ipex_lookahead.formats.base import PackedWeight
    from ipex_lookahead.vision.model import VisionModel

Size = tuple[int, int]
Other = Callable[[Path], tuple[float, float]]
"""Returns another program's seconds for encoding an image file and for reading its rows."""

_LARGE = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "head_dim": 72}
_GEMMA_LARGE = {**_LARGE, "num_key_value_heads": 16, "num_hidden_layers": 27, "standardize": True}
_QWEN_LARGE = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16}
TOWERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gemma4-e2b": ("gemma4", {"use_clipped_linears": True}),
    "gemma4-e4b": ("gemma4", {"use_clipped_linears": True}),
    "gemma4-26b-a4b": ("gemma4", _GEMMA_LARGE),
    "gemma4-31b": ("gemma4", _GEMMA_LARGE),
    "qwen3.5-0.8b": ("qwen3_5", {"depth": 12, "hidden_size": 768, "intermediate_size": 3072, "num_heads": 12}),
    "qwen3.5-4b": ("qwen3_5", {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16}),
    "qwen3.5-9b": ("qwen3_5", _QWEN_LARGE),
    "qwen3.5-35b-a3b": ("qwen3_5_moe", _QWEN_LARGE),
}
"""Shape -> ``model_type`` of the whole model, and the values of its ``vision_config`` other than the defaults."""
_TEXT: Mapping[str, dict[str, Any]] = {
    "gemma4": {"image_token_id": 258880},
    "qwen3_5": {"image_token_id": 248056, "mrope_section": [11, 11, 10]},
    "qwen3_5_moe": {"image_token_id": 248056, "mrope_section": [11, 11, 10]},
}
LIMIT = 100.0
"""Limit of a random tower's clipped layers, which its values do not reach."""
WORDS = 8
"""Text tokens before and after an image."""
SECONDS = 600
"""Time limit of one run of another program."""
_ENCODED, _READ = re.compile(r"slice encoded in (\d+) ms"), re.compile(r"decoded \(batch \d+/\d+\) in (\d+) ms")


def _sizes(ctx: click.Context, param: click.Parameter, value: str) -> list[Size]:
    """Click callback: parse ``640x480,1920x1080``."""
    found = [re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", part) for part in value.split(",")]
    if not all(found):
        raise click.BadParameter(f"must be widths and heights in pixels such as 640x480,1920x1080, got {value!r}")
    return [(int(one[1]), int(one[2])) for one in found if one]


@dataclass
class Images:
    """The images and the model to measure."""

    shape: str | None = option(
        f"Model shape with random weights: {', '.join(TOWERS)}.", None, type=click.Choice(list(TOWERS)), metavar="NAME"
    )
    model: str | None = option("Model that takes images, instead of a shape.", None, "-m", type=Model())
    mmproj: str | None = mmproj_option
    low_bit: str | None = option(
        f"Weight format: {FORMATS}. Default: sym_int4, or the file's.", type=LowBit(alike=True)
    )
    sizes: list[Size] = option(
        "Widths and heights of images.", "224x224,640x480,1920x1080", callback=_sizes, metavar="WxH,..."
    )
    repeat: int = option("Runs; the median counts.", 3, low=1)
    llama_mtmd_cli: Path | None = option(
        "llama.cpp's program, to measure alternately; needs a GGUF file as model.",
        None,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
    )
    as_json: bool = json_option


@command(
    "ipex-lookahead bench image --shape qwen3.5-0.8b --sizes 640x480",
    "ipex-lookahead bench image --shape gemma4-e4b --repeat 1 --json",
)
def image(what: Images, threads: int | None = threads_option) -> None:
    """Milliseconds of decoding, encoding and reading an image, by its size."""
    if (what.shape is None) == (what.model is None):
        raise click.UsageError("give either --shape or --model")
    if what.shape is not None and (what.mmproj is not None or what.llama_mtmd_cli is not None):
        raise click.UsageError("--mmproj and --llama-mtmd-cli need --model; a shape has no files")
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.engines.weights import check_format

    low_bit = None if what.low_bit is None else check_format(what.low_bit)
    with status() as say:
        if what.shape is not None:
            say("making random weights")
            engine, vision = random_model(what.shape, low_bit or "sym_int4", threads)
            other = None
        else:
            assert what.model is not None
            engine, vision, other = _loaded(what, low_bit, threads)
        found = measure(engine, vision, what.sizes, what.repeat, other, say)
    facts = engine.describe()
    report: dict[str, Any] = {"model": what.shape or what.model, "random_weights": what.shape is not None}
    report |= {name: facts[name] for name in ("low_bit", "isa", "threads")}
    report |= {"repeat": what.repeat, "images": found}
    print_rows(
        {
            "pixels": "{width} x {height}",
            "tiles": "{tiles}",
            "tokens": "{tokens}",
            "decode\nms": "{decode_ms:.0f}",
            "encode\nms": "{encode_ms:.0f}",
            "read\nms": "{read_ms:.0f}",
            "read\ntok/s": lambda row: f"{1e3 * row['tokens'] / row['read_ms']:.0f}",
            **(
                {}
                if other is None
                else {"llama.cpp\nencode ms": "{other_encode_ms:.0f}", "llama.cpp\nread ms": "{other_read_ms:.0f}"}
            ),
        },
        found,
        title=f"{report['model']} · {facts['low_bit']} · {facts['isa']} · {counted(facts['threads'], 'thread')}",
        caption="decode: file to resized pixels; encode: the vision part; read: the rows in the text part, with "
        f"{2 * WORDS} text tokens",
        to_stderr=what.as_json,
    )
    if what.as_json:
        click.echo(json.dumps({**report, **where_and_when()}))


def _loaded(what: Images, low_bit: str | None, threads: int | None) -> tuple[NativeEngine, VisionModel, Other | None]:
    """Load a model, and return a function that measures llama.cpp with its files. Raises InputError."""
    from ipex_lookahead.cli.loading import load_text
    from ipex_lookahead.conversation.model import ChatModel
    from ipex_lookahead.vision.mmproj import mmproj_of

    assert what.model is not None
    loaded = load_text(
        what.model, progress=True, low_bit=low_bit, threads=threads, engine="native", device=None, mmproj=what.mmproj
    )
    engine: Any = loaded.engine
    with closing(ChatModel(loaded)) as chat:
        vision = chat.vision
    if what.llama_mtmd_cli is None:
        return engine, vision, None
    file = Path(str(loaded.source))
    mmproj = what.mmproj or mmproj_of(file, engine.images.hidden)
    if not file.is_file() or mmproj is None:
        raise InputError(f"--llama-mtmd-cli needs a GGUF file and its mmproj file; the model is {file}")
    given = ["-m", str(file), "--mmproj", str(mmproj), "-t", str(engine.describe()["threads"])]
    return engine, vision, llama_cpp([str(what.llama_mtmd_cli), *given])


def llama_cpp(command: Sequence[str]) -> Other:
    """Return a function that runs llama.cpp's program on an image and returns its seconds. It raises InputError."""

    def run(file: Path) -> tuple[float, float]:
        whole = [*command, "--image", str(file), "-p", "Describe the image.", "-n", "1", "--temp", "0"]
        try:
            done = subprocess.run(whole, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(f"{command[0]} cannot be measured: {error}") from None
        printed = done.stdout + done.stderr
        encoded, read = (sum(map(int, pattern.findall(printed))) for pattern in (_ENCODED, _READ))
        if done.returncode or not _ENCODED.search(printed):
            raise InputError(
                f"{command[0]} printed no time of an image; it exited with {done.returncode}: {printed[-300:].strip()}"
            )
        return encoded / 1e3, read / 1e3

    return run


def random_model(shape: str, low_bit: str, threads: int | None) -> tuple[NativeEngine, VisionModel]:
    """Return a text model and a vision part with random weights in the sizes of a published model.

    Raises InputError for an unknown shape.
    """
    from ipex_lookahead.architectures.images import with_images
    from ipex_lookahead.bench.shapes import config_of, shape_of
    from ipex_lookahead.engines.native.encoder import NativeEncoder
    from ipex_lookahead.engines.native.engine import NativeEngine
    from ipex_lookahead.vision import model as models

    kind, given = TOWERS[shape]
    tower, defaults = models.TOWERS[kind]
    keys = {**tower.KEYS, **tower.OUTER}
    config = {**{name: key.default for name, key in keys.items()}, **defaults, **given}
    spec = with_images(shape_of(shape), {**config_of(shape), **_TEXT[kind]})
    engine = NativeEngine.random(spec, low_bit, threads=threads)
    encoder = NativeEncoder(tower.spec(config, spec.hidden), random_weight(), threads=threads)
    preparation = tower.preparation("", {}, config)
    return engine, models.VisionModel(tower, config, preparation, encoder, b"random weights")


def random_weight() -> Callable[[Tensor], PackedWeight]:
    """Return a function that makes a tensor's weight: binary16 matrices of small numbers, norms around 1."""
    import numpy as np

    from ipex_lookahead.formats.base import PackedWeight

    chance = np.random.default_rng(0)
    made: dict[tuple[int, ...], Any] = {}

    def read(tensor: Tensor) -> PackedWeight:
        if not tensor.shape:
            limit = LIMIT if tensor.name.endswith("max") else -LIMIT
            return PackedWeight("fp32", (), np.array(limit, np.float32))
        if len(tensor.shape) == 1:
            norm = 1.0 if "norm" in tensor.name and tensor.name.endswith("weight") else 0.0
            return PackedWeight("fp32", tensor.shape, np.full(tensor.shape, norm, np.float32))
        if tensor.shape not in made:
            values = chance.standard_normal(tensor.shape, np.float32) / np.float32(tensor.shape[1] ** 0.5)
            made[tensor.shape] = values.astype(np.float16).view(np.uint16)
        return PackedWeight("fp16", tensor.shape, made[tensor.shape])

    return read


def picture(width: int, height: int, seed: int) -> bytes:
    """Return a BMP file of random pixels."""
    import numpy as np

    row = -(-3 * width // 4) * 4
    pixels = np.random.default_rng(seed).integers(0, 256, (height, row), np.uint8).tobytes()
    header = struct.pack("<2sIHHI", b"BM", 54 + len(pixels), 0, 0, 54)
    return header + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(pixels), 0, 0, 0, 0) + pixels


def measure(
    engine: NativeEngine,
    vision: VisionModel,
    sizes: Sequence[Size],
    repeat: int,
    other: Other | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Return medians over ``repeat`` rounds, after one to warm up; each round measures every size once.

    Args:
        engine: the text model.
        vision: its vision part.
        sizes: widths and heights of images.
        repeat: number of rounds.
        other: measures another program with the same file, after each of our measurements.
        report: called with what is being measured.

    Raises InputError for a size that the model cannot use, or an image longer than the context.
    """
    times: dict[Size, list[list[float]]] = {size: [] for size in sizes}
    facts = {}
    with TemporaryDirectory() as folder:
        for done in range(repeat + 1):
            for number, size in enumerate(sizes):
                report(f"round {done} of {repeat}: {size[0]} x {size[1]}")
                file = picture(*size, seed=done * len(sizes) + number)
                layout = vision.layout(file)
                facts[size] = {"tiles": len(layout.grids), "tokens": layout.tokens}
                found = _times(engine, vision, file)
                if other is not None:
                    path = Path(folder) / "image.bmp"
                    path.write_bytes(file)
                    found += other(path)
                times[size].append(found)
    names = ("decode_ms", "encode_ms", "read_ms", *(() if other is None else ("other_encode_ms", "other_read_ms")))
    return [
        {
            "width": width,
            "height": height,
            **facts[width, height],
            **{name: 1e3 * median(row[i] for row in rounds[1:]) for i, name in enumerate(names)},
        }
        for (width, height), rounds in times.items()
    ]


def _times(engine: NativeEngine, vision: VisionModel, file: bytes) -> list[float]:
    """Return the seconds of decoding and encoding an image, and of reading its rows between text tokens."""
    import numpy as np

    from ipex_lookahead.engines.api import image_rows
    from ipex_lookahead.engines.images import PromptImage
    from ipex_lookahead.engines.prefill import prefill

    assert engine.images is not None
    start = perf_counter()
    prepared = vision.prepare(file)
    decoded = perf_counter()
    parts = [vision.features(tile) for tile in prepared.tiles]
    encoded = perf_counter()
    token, images = engine.images.token, []
    ids = [token // 2] * WORDS
    for tile, part in zip(prepared.tiles, parts, strict=True):
        images.append(PromptImage(len(ids), part.values, tile.grid, tile.digest, part.deepstack))
        ids += [token] * tile.tokens
    ids += [token // 2] * WORDS
    if len(ids) > engine.max_context:
        raise InputError(f"an image has {len(ids)} rows with the text around it; the context has {engine.max_context}")
    prompt = np.array(ids, np.int32)
    cache, rows = engine.new_cache(), image_rows(engine, prompt, images)
    begun = perf_counter()
    for _ in prefill(engine, [(cache, prompt)], images=[rows]):
        pass
    return [decoded - start, encoded - decoded, perf_counter() - begun]
