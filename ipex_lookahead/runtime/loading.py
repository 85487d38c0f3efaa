"""From a name to a loaded model: picks the checkpoint's reader, its architecture and an engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures import model_types, refuse_encoder
from ipex_lookahead.checkpoints import family_of
from ipex_lookahead.engines import ENGINES
from ipex_lookahead.engines.load_weights import Progress
from ipex_lookahead.engines.loading import LoadedModel, LoadRequest, cycles_left_alone, refuse_head
from ipex_lookahead.engines.native.core import core_missing
from ipex_lookahead.engines.weights import check_format, check_low_bit
from ipex_lookahead.errors import InputError, UnsupportedModelError, arg
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.hub import resolve_model
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.system.extras import need_torch
from ipex_lookahead.system.terminal import bar, may_draw
from ipex_lookahead.vision.given_file import VisionFile

log = logging.getLogger("ipex_lookahead")

WITH_HEADS = ("native", "opencl")
"""The engines that run drafting heads."""
_ON_CPU = "is supported by the native engine on the CPU"
"""Why the native engine is chosen, behind the family's name."""


def load_text_model(
    name_or_path: str,
    *,
    low_bit: str | None = None,
    engine: str = "auto",
    progress: bool | Progress = True,
    note: Callable[[str], None] | None = None,
    drafter: str | None = None,
    draft_vocab: int | str | PathLike[str] | None = None,
    drafter_low_bit: str | None = None,
    draft_model: str | None = None,
    mmproj: str | PathLike[str] | None = None,
    **options: Any,
) -> TextModel:
    """Load a model with its tokenizer: on the native engine neither torch nor transformers is imported.

    The arguments are those of ``AutoModelForCausalLM.from_pretrained``, ``options`` those of ``LoadRequest`` among
    them; a function as ``progress`` is called like ``LoadRequest.progress``; ``note`` gets what else is waited for.
    ``draft_model`` is the name of a second model, which drafts for the first and is loaded with the same ``options``.
    ``mmproj`` is the GGUF file with the vision part, which is checked here and loaded for the first image.

    Raises:
        InputError: the checkpoint carries no tokenizer, the draft model has another vocabulary, or ``mmproj`` is for
            another model.
        LookaheadError: its tokenizer cannot be used; and as ``from_pretrained``.
    """
    check_engine(engine)
    shown = progress is True
    path = resolve_model(name_or_path, progress=shown)
    vision = None if mmproj is None else VisionFile.of(mmproj, progress=shown)
    with progress_bar(progress) as report:
        request = LoadRequest(
            path,
            low_bit=checked_format(low_bit, engine),
            **drafting_fields(drafter, draft_vocab, drafter_low_bit, progress=shown),
            progress=report,
            text=True,
            **options,
        )
        loaded = load_model(request, engine, *choose_engine(engine, request))
    assert loaded.tokenizer is not None  # the request has ``text``
    model = TextModel(loaded, loaded.tokenizer, note)
    if vision is not None:
        vision.check(model.engine)
        model.mmproj = vision.path
    if draft_model is not None:
        model.use_draft_model(
            load_text_model(draft_model, low_bit=low_bit, engine=engine, progress=progress, **options)
        )
    return model


def load_model(request: LoadRequest, requested: str, name: str, reason: str) -> LoadedModel:
    """Load onto the engine of that name. ``requested``: the engine as the caller gave it."""
    if requested == "auto":  # what is slower than people may expect is said in any case
        said = f"{family_of(request.path) or 'GGUF'} {reason}" if reason == _ON_CPU else reason
        log.log(logging.INFO if name == "native" else logging.WARNING, "engine: %s, since %s", name, said)
    for option in ("drafter", "draft_vocab", "drafter_low_bit") if name not in WITH_HEADS else ():
        if (value := getattr(request, option)) is not None:
            raise InputError(
                f"{arg(option, str(value))} needs the engine {' or '.join(WITH_HEADS)}, but this is the {name} engine"
                f" ({reason}); leave it out"
            )
    if name in ("torch", "ipex-llm"):
        need_torch(f"{arg('engine', name)} ({reason})")
    with cycles_left_alone():
        loaded: LoadedModel = import_module(ENGINES[name]).load(request)
    said = f"{loaded.checkpoint_config['model_type']} {reason}" if reason == _ON_CPU else reason
    loaded.source = request.path
    loaded.engine.facts["chosen"] = f"{name}: {said}"
    if loaded.no_tokenizer:
        loaded.engine.facts["no_tokenizer"] = loaded.no_tokenizer
    return loaded


def check_engine(engine: str) -> None:
    """Raise InputError for a name that is not "auto" or an engine's."""
    if engine != "auto" and engine not in ENGINES:
        raise InputError(argument="engine", got=engine, allowed=f"'auto' or one of {', '.join(ENGINES)}")


def checked_format(low_bit: str | None, engine: str) -> str | None:
    """Return the checked format; ipex-llm checks its own formats itself."""
    return low_bit if low_bit is None or engine == "ipex-llm" else check_low_bit(low_bit)


def checked_imatrix(imatrix: str | PathLike[str] | None, low_bit: str | None) -> Path | None:
    """Return the path of the file. Raises InputError if no weights are to be quantized."""
    if imatrix is None:
        return None
    if low_bit is None:
        raise InputError(f"{arg('imatrix')} needs quantization: pass {arg('load_in_low_bit')} too, or leave it out")
    return given_path(imatrix).absolute()


def drafting_fields(
    drafter: str | PathLike[str] | None, draft_vocab: Any, low_bit: str | None, *, progress: bool
) -> dict[str, Any]:
    """The fields of a ``LoadRequest`` about a head that drafts, checked; it is fetched where it is not here yet."""
    if isinstance(draft_vocab, str | PathLike) and given_path(draft_vocab).is_file():
        draft_vocab = given_path(draft_vocab).absolute()
    elif draft_vocab is not None and (type(draft_vocab) is not int or draft_vocab < 0):
        allowed = "a whole number of at least 0, where 0 means all, or a file of ipex-lookahead drafter cut"
        raise InputError(argument="draft_vocab", got=draft_vocab, allowed=allowed)
    return {
        "drafter": None if drafter is None else resolve_model(str(drafter), progress=progress).absolute(),
        "draft_vocab": draft_vocab,
        "drafter_low_bit": None if low_bit is None else check_format(low_bit),
    }


def choose_engine(engine: str, request: LoadRequest) -> tuple[str, str]:
    """The engine's name, and why that one. ``auto``: the native engine wherever it can run the model."""
    family = family_of(request.path)
    refuse_head(request.path, family)
    refuse_encoder(request.path, family)
    reason = "requested"
    if engine == "auto" and str(request.device).startswith(("opencl", "xpu")):
        engine, reason = "opencl", f"the device is {request.device}"
    if engine in ("native", "opencl") and family is not None and family not in model_types():
        raise UnsupportedModelError(
            f"{request.path}: the {engine} engine does not support model type {family!r}: choose one of "
            + ", ".join(model_types()),
            hint=f"{arg('engine', 'torch')} supports every model type of transformers",
        )
    if engine != "auto":
        return engine, reason
    if family is not None and family not in model_types():
        return "torch", f"the native engine has no {family} (it has {', '.join(model_types())})"
    for name, value in request.placement().items():
        if value:
            return "opencl", f"{name} is {value}"
    if request.device is not None and str(request.device) != "cpu":
        return "torch", f"the native engine runs on the CPU, and the device is {request.device}"
    if request.ipex:
        return "torch", "ipex=True is for torch models"
    if missing := core_missing():
        return "torch", f"the native core is not built ({missing})"
    return "native", _ON_CPU


@contextmanager
def progress_bar(show: bool | Progress) -> Iterator[Any]:
    """A bar over the tensors on stderr, only where a person is looking; or the given function."""
    if callable(show):
        yield show
        return
    if not show or not may_draw():
        yield None
        return
    with bar("opening the model") as draw:
        yield lambda done, total, name: draw(done, total or None, "packing weights" if total else name)
