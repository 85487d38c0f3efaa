"""Images as transformers' processors give them: ``pixel_values`` and what belongs to them -> images of each prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ipex_lookahead.engines.api import Engine, TakesImages
from ipex_lookahead.engines.images import Floats, PromptImage
from ipex_lookahead.errors import InputError
from ipex_lookahead.vision.model import VisionModel
from ipex_lookahead.vision.preparation import Patches

IMAGE_ARGUMENTS = ("pixel_values", "image_grid_thw", "image_position_ids", "mm_token_type_ids")
"""Arguments of ``generate`` and ``forward`` that describe images."""

See = Callable[[], VisionModel]
"""Returns the model's vision part. Raises InputError for a model without one."""


def taken(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the image arguments from keyword arguments and return them."""
    found = {name: given.pop(name, None) for name in IMAGE_ARGUMENTS}
    given.pop("num_soft_tokens_per_image", None)  # follows from the positions
    return found


def images_of(
    see: See | None,
    engine: Engine,
    ids: torch.Tensor,
    prompts: Sequence[npt.NDArray[Any]],
    given: dict[str, Any],
) -> list[list[PromptImage]]:
    """Return the images of each prompt, which are encoded when a step reads their rows.

    Args:
        see: returns the model's vision part; None: there is none.
        engine: the engine of the model.
        ids: int64 [rows, columns], as the caller gave them, with padding.
        prompts: the tokens of each row without padding.
        given: image arguments, by ``IMAGE_ARGUMENTS``; the images of all rows are in one line.

    Raises:
        InputError: the model takes no images, arguments do not fit each other, or the placeholders in the prompts do
            not fit the images.
    """
    pixels, types = given["pixel_values"], given["mm_token_type_ids"]
    if pixels is None:
        for name in ("image_grid_thw", "image_position_ids"):
            if given[name] is not None:
                raise InputError(f"{name} is given without pixel_values; pass all outputs of the processor")
    takes = engine.images if isinstance(engine, TakesImages) else None
    if takes is None or see is None:
        if pixels is not None:
            what = "this model takes" if isinstance(engine, TakesImages) else f"the {engine.name} engine takes"
            raise InputError(f"{what} no images, and pixel_values is given; leave it out")
        return [[] for _ in prompts]
    if types is not None:
        _check_types(types, ids, takes.token)
    if pixels is None:
        return [[] for _ in prompts]
    vision = see()
    grids, places = (_integers(name, given[name]) for name in ("image_grid_thw", "image_position_ids"))
    patches = vision.processed(_floats(pixels), grids, places)
    counts = [int(np.prod(vision.tokens(one))) for one in patches]
    held = [int((prompt == takes.token).sum()) for prompt in prompts]
    if sum(counts) != sum(held):
        raise InputError(
            f"input_ids has {sum(held)} image tokens ({takes.token}), and the {len(counts)} images of pixel_values have"
            f" {sum(counts)}; pass input_ids and pixel_values of one call of the processor"
        )
    found: list[list[PromptImage]] = []
    left = list(zip(patches, counts, strict=True))
    for number, prompt in enumerate(prompts):
        own: list[PromptImage] = []
        at = np.flatnonzero(prompt == takes.token)
        while len(at):
            image, count = left.pop(0)
            if len(at) < count or at[count - 1] - at[0] != count - 1:
                raise InputError(
                    f"row {number} of input_ids has a run of image tokens at {at[0]} that does not fit its image of"
                    f" {count} tokens; images of all rows follow each other in pixel_values, in the order of input_ids"
                )
            own.append(_image(vision, image, int(at[0])))
            at = at[count:]
        found.append(own)
    return found


def _image(vision: VisionModel, patches: Patches, start: int) -> PromptImage:
    digest = vision.digest(patches)

    def encode(pause: Callable[[], None], digest: bytes) -> tuple[Floats, Sequence[Floats]]:
        features = vision.features_of(patches, digest, pause)
        return features.values, features.deepstack

    return PromptImage(start, None, vision.tokens(patches), digest, encode=partial(encode, digest=digest))


def _check_types(types: Any, ids: torch.Tensor, token: int) -> None:
    """Raise InputError unless the types are 1 at image tokens and 0 elsewhere."""
    found = torch.as_tensor(types).detach().cpu()
    if found.shape != ids.shape:
        raise InputError(f"mm_token_type_ids has shape {list(found.shape)}, input_ids {list(ids.shape)}")
    if (found > 1).any():
        raise InputError("mm_token_type_ids has values above 1; models here take images, but no videos and no sound")
    if not torch.equal(found == 1, ids.cpu() == token):
        raise InputError(f"mm_token_type_ids must be 1 at image tokens ({token}) and 0 at the others")


def _floats(values: Any) -> Floats:
    try:
        found = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"pixel_values cannot be read as numbers ({error}); pass a tensor") from None
    if not found.is_floating_point():
        raise InputError(f"pixel_values has dtype {found.dtype}; it must be floats, as the processor returns them")
    return found.to(torch.float32).numpy()


def _integers(name: str, values: Any) -> npt.NDArray[np.int64] | None:
    if values is None:
        return None
    try:
        found = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as integers ({error}); pass a tensor") from None
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InputError(f"{name} has dtype {found.dtype}; it must be integers")
    return found.to(torch.int64).numpy()
