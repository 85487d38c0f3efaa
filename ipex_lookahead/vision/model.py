"""What a model sees with: an image file becomes pixels of a known size, then features, which are kept by content."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.hparams import Source
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.engines.native.encoder import NativeEncoder, Pause, no_pause
from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.vision.images import ImageLimits, ImageReader, Pixels
from ipex_lookahead.vision.mmproj import MmprojFile, mmproj_of
from ipex_lookahead.vision.preparation import Floats, Patches, Preparation, settings
from ipex_lookahead.vision.processed import patches_of
from ipex_lookahead.vision.tiling import Plan
from ipex_lookahead.vision.towers import gemma3, gemma4, gemma4_unified, idefics3, lfm2_vl, qwen3_vl
from ipex_lookahead.vision.towers.base import Features, Piece, checked
from ipex_lookahead.vision.weights import TowerFolder

TOWERS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "gemma4": (gemma4, {}),
    "gemma4_unified": (gemma4_unified, {}),
    "qwen3_vl": (qwen3_vl, {"deepstack_visual_indexes": [8, 16, 24]}),
    "qwen3_vl_moe": (qwen3_vl, {"deepstack_visual_indexes": [8, 16, 24]}),
    "qwen3_5": (qwen3_vl, {}),
    "qwen3_5_moe": (qwen3_vl, {}),
    "gemma3": (gemma3, {}),
    "idefics3": (idefics3, {}),
    "smolvlm": (idefics3, {}),
    "lfm2_vl": (lfm2_vl, {}),
}
"""``model_type`` of the whole model -> its tower, and defaults in the family's transformers config class."""
KEPT_BYTES = 256 << 20
"""Bytes of features that are kept for images that come again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """An image's tokens in a prompt: tiles, and what is around them.

    Attributes:
        plan: the tiles.
        grids: rows and columns of tokens of each tile.
        pieces: texts and token ids before the first tile, between tiles, and after the last one.
    """

    plan: Plan
    grids: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[Piece, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of rows of each tile."""
        return tuple(rows * columns for rows, columns in self.grids)

    @property
    def tokens(self) -> int:
        """Number of rows of the image, without the tokens around its tiles."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A tile at the size that the tower reads.

    Attributes:
        pixels: uint8 [height, width, 3].
        grid: rows and columns of tokens.
        digest: hash of all that the features depend on.
    """

    pixels: Pixels
    grid: tuple[int, int]
    digest: bytes

    @property
    def tokens(self) -> int:
        """Number of tokens of the tile in a prompt."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image as the tower reads it.

    Attributes:
        tiles: its tiles, in the order of the prompt; for most families there is one, the whole image.
        layout: its tokens in a prompt.
    """

    tiles: tuple[Prepared, ...]
    layout: Layout


class VisionModel:
    """The vision part of a model. Methods may be called from several threads.

    Args:
        tower: a module of ``towers``.
        config: the checked ``vision_config``.
        preparation: of images.
        encoder: the tower's weights.
        identity: hash of the weights and their use.
        limits: limits on images.
    """

    def __init__(
        self,
        tower: Any,
        config: Mapping[str, Any],
        preparation: Preparation,
        encoder: NativeEncoder,
        identity: bytes,
        limits: ImageLimits | None = None,
    ) -> None:
        self._tower, self._config, self._encoder, self._identity = tower, config, encoder, identity
        self.preparation = preparation
        self.reader = ImageReader(limits)
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Features] = OrderedDict()
        self._kept_bytes = 0

    @classmethod
    def open(
        cls, folder: str | PathLike[str], *, threads: int | None = None, limits: ImageLimits | None = None
    ) -> VisionModel:
        """Load the vision part of a folder.

        Raises:
            UnsupportedModelError: the model has no vision part that is supported here.
            ModelFormatError: a contradiction in the files.
            EngineError: no compiled core, or Pillow is not installed.
        """
        path = Path(folder) / "config.json"
        raw = read_json(path)
        tower, config = described(raw, path)
        text = raw.get("text_config")
        text = text if isinstance(text, JsonObject) else JsonObject()
        hidden = text.get("hidden_size")
        if not isinstance(hidden, int) or not 0 < hidden <= 1 << 20:
            raise Source.of(text, path, "text_config").error("hidden_size", "is missing or not a positive number")
        preparation = tower.preparation(*settings(Path(folder)), config)
        files = TowerFolder(folder)
        try:
            encoder = NativeEncoder(tower.spec(config, hidden), files.read_tensor, threads=threads)
        finally:
            files.close()
        files.digest.update(repr(sorted(config.items())).encode())
        return cls(tower, config, preparation, encoder, files.digest.digest(), limits)

    @classmethod
    def open_mmproj(
        cls, path: str | PathLike[str], hidden: int, *, threads: int | None = None, limits: ImageLimits | None = None
    ) -> VisionModel:
        """Load the vision part of a GGUF model from its ``mmproj`` file.

        Args:
            path: the file.
            hidden: hidden size of the text model.
            threads: number of threads; None: see ``default_threads``.
            limits: limits on images.

        Raises:
            InputError: the file belongs to a model of another size.
            UnsupportedModelError: a kind of tower that is not supported here.
            ModelFormatError: a contradiction in the file.
            EngineError: no compiled core, or Pillow is not installed.
        """
        file = MmprojFile(path)
        try:
            if file.hidden != hidden:
                raise InputError(
                    f"{path} is for models of hidden size {file.hidden}; this model has {hidden}",
                    hint="use the mmproj file from the model's own repository",
                )
            preparation = file.tower.preparation(str(path), file.settings, file.config)
            encoder = NativeEncoder(file.tower.spec(file.config, hidden), file.read_tensor, threads=threads)
        finally:
            file.close()
        file.digest.update(repr(sorted(file.config.items())).encode())
        return cls(file.tower, file.config, preparation, encoder, file.digest.digest(), limits)

    @property
    def marker(self) -> int | None:
        """Id of the token that the chat template writes for an image; None: that of an image's rows."""
        found: int | None = self._tower.marker(self._config)
        return found

    def layout(self, file: bytes, detail: str = "auto") -> Layout:
        """Return an image's tokens, from the header of the file.

        Args:
            file: the image file.
            detail: "low", "high", or another word for the model's own number of tokens.

        Raises InputError for an image that cannot be used.
        """
        return self._layout(self.reader.size(file), self.preparation.detailed(detail))

    def _layout(self, size: tuple[int, int], preparation: Preparation) -> Layout:
        plan = preparation.plan(*size)
        return Layout(plan, tuple(map(preparation.grid, plan.tiles)), self._tower.pieces(self._config, plan))

    def prepare(self, file: bytes, detail: str = "auto") -> PreparedImage:
        """Return an image at the tower's size; arguments and errors are those of :meth:`layout`."""
        preparation = self.preparation.detailed(detail)
        layout = self._layout(self.reader.size(file), preparation)
        found = []
        pixels = self.reader.tiles(file, layout.plan, preparation.resample)
        for tile, grid in zip(pixels, layout.grids, strict=True):
            digest = hashlib.sha256(self._identity)
            digest.update(repr((tile.shape, preparation)).encode())
            digest.update(tile.data)
            found.append(Prepared(tile, grid, digest.digest()))
        return PreparedImage(tuple(found), layout)

    def features(self, image: Prepared, pause: Pause = no_pause) -> Features:
        """Return a tile's features; ``pause`` is called between slices of at most about 0.2 s of work."""
        return self._remembered(image.digest, lambda: self.preparation.patches(image.pixels, pause), pause)

    def _remembered(self, digest: bytes, patches: Callable[[], Patches], pause: Pause) -> Features:
        """Return the features of a digest, encoded from patches unless they are kept."""
        with self._lock:
            if (found := self._kept.get(digest)) is not None:
                self._kept.move_to_end(digest)
                return found
        prepared = patches()
        pause()
        made: Features = self._tower.encode(self._encoder, self._config, prepared, pause)
        with self._lock:
            if digest not in self._kept:
                self._kept[digest] = made
                self._kept_bytes += _bytes(made)
            while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= _bytes(self._kept.popitem(last=False)[1])
        return made

    @classmethod
    def of_model(
        cls,
        source: str | PathLike[str] | None,
        hidden: int,
        *,
        mmproj: str | PathLike[str] | None = None,
        threads: int | None = None,
    ) -> VisionModel:
        """Load the vision part of a model from its folder, or from the ``mmproj`` file next to its GGUF file.

        Args:
            source: the folder or GGUF file of the model.
            hidden: hidden size of the text model.
            mmproj: the file with the vision part; None: in the model's folder.
            threads: number of threads; None: see ``default_threads``.

        Raises InputError if there is no such file, and as :meth:`open` and :meth:`open_mmproj`.
        """
        path = Path() if source is None else Path(source)
        found = mmproj or (None if path.is_dir() else mmproj_of(path, hidden))
        if found is not None:
            return cls.open_mmproj(found, hidden, threads=threads)
        if source is not None and path.is_dir():
            return cls.open(path, threads=threads)
        raise InputError(
            f"there is no mmproj file with the vision part for {path.name} in its folder",
            hint="download it from the model's repository into the same folder, or give its path as mmproj",
        )

    def processed(
        self, values: Floats, grids: npt.NDArray[np.int64] | None, places: npt.NDArray[np.int64] | None
    ) -> list[Patches]:
        """Return the patches in outputs of transformers' processors; see :mod:`ipex_lookahead.vision.processed`."""
        return patches_of(self._tower, self.preparation, values, grids, places)

    def tokens(self, patches: Patches) -> tuple[int, int]:
        """Return rows and columns of the tokens of an image's patches."""
        merge = self.preparation.merge
        return patches.grid[1] // merge, patches.grid[0] // merge

    def digest(self, patches: Patches) -> bytes:
        """Return the hash of all that the features of patches depend on."""
        found = hashlib.sha256(self._identity)
        found.update(repr(("patches", patches.grid, patches.values.shape)).encode())
        found.update(np.ascontiguousarray(patches.values).data)
        return found.digest()

    def features_of(self, patches: Patches, digest: bytes, pause: Pause = no_pause) -> Features:
        """Return the features of an image's patches; see :meth:`features`."""
        return self._remembered(digest, lambda: patches, pause)


def described(raw: JsonObject, path: Path) -> tuple[Any, dict[str, Any]]:
    """Return the tower of a ``config.json`` and its checked ``vision_config``.

    Raises UnsupportedModelError for a model without a supported vision part, ModelFormatError for invalid values.
    """
    model_type = raw.get("model_type")
    given = raw.get("vision_config")
    if not isinstance(model_type, str) or model_type not in TOWERS or not isinstance(given, JsonObject):
        kinds = ", ".join(TOWERS)
        raise UnsupportedModelError(
            f"{path}: a {model_type} model with{'out' if given is None else ''} vision_config takes no images here",
            hint=f"models that take images have model_type {kinds}",
        )
    tower, defaults = TOWERS[model_type]
    values = JsonObject({**defaults, **given})
    inner = checked(tower.KEYS, values, Source.of(given, path, "vision_config"))
    return tower, inner | checked(tower.OUTER, raw, Source.of(raw, path))


def _bytes(features: Features) -> int:
    return features.values.nbytes + sum(one.nbytes for one in features.deepstack)
