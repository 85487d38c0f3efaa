"""A head from texts: answers, then training, then its folder; each goes on where an earlier run was interrupted.

What is not finished lies beside the folder that is asked for, under its name with ``.training`` behind it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.torch.device import torch_threads
from ipex_lookahead.errors import InputError, SaveError
from ipex_lookahead.generation.sampling_params import SamplingParams
from ipex_lookahead.generation.text_model import TextModel
from ipex_lookahead.system.terminal import Draw
from ipex_lookahead.training.acceptance import Acceptance, walked
from ipex_lookahead.training.data import HELD_OUT, Answer, Store, collect
from ipex_lookahead.training.eagle3 import FEATURES, Eagle3, Eagle3Shape, chains
from ipex_lookahead.training.prompts import pieces_of, prompts_of
from ipex_lookahead.training.save import save_head
from ipex_lookahead.training.target import most_frequent, new_head, shape_of, words_of
from ipex_lookahead.training.train import Recipe, Training

DEPTH = 4
"""Tokens of the chains that a head is measured by."""
SETTINGS, STATE = "settings.json", "state.safetensors"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a head is made of.

    Attributes:
        tokens: of answers.
        prompt_tokens: of a text's piece, at most.
        answer_tokens: of an answer, at most.
        greedy: answers of the most likely tokens; else as the model's makers recommend.
        draft_vocab: tokens that the head can say; None: a quarter of the model's, 8,192 to 32,768.
        recipe: how it is taught.
        threads: of torch; None: its own number.
    """

    tokens: int
    prompt_tokens: int
    answer_tokens: int
    greedy: bool
    draft_vocab: int | None
    recipe: Recipe
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """What came of it.

    Attributes:
        answers, tokens: made, and their tokens without the prompts.
        steps: of the optimiser.
        loss: the mean of the last ones.
        acceptance: of chains of ``DEPTH`` on answers that were held out.
    """

    answers: int
    tokens: int
    steps: int
    loss: float
    acceptance: Acceptance


def work_folder(output: Path) -> Path:
    """Where what is not finished lies."""
    return output.with_name(f"{output.name}.training")


def check_output(output: Path) -> None:
    """Raise InputError for a folder that is there already, or whose own folder is not; before a model is loaded."""
    if output.exists():
        raise InputError(f"{output}: is there already", hint="choose another name, or remove it")
    if not output.parent.is_dir():
        raise InputError(f"{output.parent}: there is no such folder", hint="make it first")


def make_head(
    model: TextModel,
    texts: Sequence[str],
    output: Path,
    asked: Asked,
    *,
    stopped: Callable[[], bool],
    shown: Draw,
) -> Made | None:
    """Make a head for ``model`` and write it as the folder ``output``; None where it was stopped, and can go on.

    Raises:
        InputError: no word in the texts, too few answers, another engine than the native one, or a run that was begun
            with other settings.
        UnsupportedModelError: a model of fewer than four layers.
        SaveError: a folder cannot be written.
    """
    engine = model.engine
    if not isinstance(engine, NativeEngine):
        raise InputError(
            f"heads are made on the native engine, not on {engine.name}", hint="leave out what asks for another"
        )
    check_output(output)
    work = work_folder(output)
    pieces = pieces_of(texts, asked.recipe.seed)
    shape = shape_of(engine.spec, model.config, words_of(engine.spec.vocab, asked.draft_vocab))
    try:
        work.mkdir(exist_ok=True)
        with _alone(work):
            _same_settings(work / SETTINGS, {**_settings(asked), "texts": _digest(texts), "target": _target(engine)})
            store = Store(work, shape.layers, engine.spec.hidden)
            _check_room(work, store, asked)
            rules = SamplingParams(asked.answer_tokens, 0.0 if asked.greedy else None, seed=asked.recipe.seed)
            prompts = prompts_of(model, pieces[len(store.answers) :], asked.prompt_tokens)
            collect(model, prompts, store, rules, tokens=asked.tokens, stopped=stopped,
                    progress=lambda done: shown(done, asked.tokens, "answering"))  # fmt: skip
            made = None if stopped() else _taught(engine, shape, store, asked, work, output, stopped, shown)
            if made is not None:
                shutil.rmtree(work)
            return made
    except OSError as error:
        raise SaveError(f"{work} cannot be written: {error}", hint="free some space, or name another folder") from error


def _taught(
    engine: NativeEngine,
    shape: Eagle3Shape,
    store: Store,
    asked: Asked,
    work: Path,
    output: Path,
    stopped: Callable[[], bool],
    shown: Draw,
) -> Made | None:
    """The second half of :func:`make_head`, behind the answers."""
    kept, held = store.split()
    if not held:
        raise InputError(
            f"the texts brought {len(store.answers)} answers; {HELD_OUT} are needed, of which one is measured on",
            hint="give longer texts, or ask for more tokens",
        )
    counts = np.bincount(np.concatenate([one.tokens[one.prompt :] for one in kept]), minlength=shape.vocab)
    head = new_head(engine, shape, most_frequent(counts, shape.draft_vocab), asked.recipe.seed)
    soft = (engine.spec.logit_multiplier, engine.spec.logit_softcap)
    training = Training(head, store, asked.recipe, soft, work / STATE)

    def show(now: Training) -> None:
        shown(int(1000 * now.progress), 1000, f"training, loss {now.loss:.3f}")

    with torch_threads(asked.threads):
        if not training.run(stopped, show):
            return None
        found = measured(head, store, held)
    made = Made(len(store.answers), store.answered, training.step, training.loss, found)
    save_head(head, output, _report(made, asked, engine))
    return made


@torch.no_grad()
def measured(head: Eagle3, store: Store, answers: Sequence[Answer]) -> Acceptance:
    """Chains of the head along answers, with the features that are kept of them."""
    width = FEATURES * head.shape.target_hidden

    def drafted(answer: Answer) -> tuple[torch.Tensor, torch.Tensor, int]:
        rows = torch.from_numpy(store.rows(answer)[:, :width].astype(np.float32))
        tokens = torch.from_numpy(answer.tokens)
        return tokens, chains(head, tokens, rows, DEPTH), answer.prompt

    return walked(map(drafted, answers), DEPTH)


def _report(made: Made, asked: Asked, engine: NativeEngine) -> dict[str, Any]:
    """``training.json``."""
    found = made.acceptance
    return {
        "target": _target(engine),
        "settings": _settings(asked),
        "answers": made.answers,
        "answer_tokens": made.tokens,
        "steps": made.steps,
        "loss": round(made.loss, 4),
        "held_out": {
            "drafted": found.drafted[0] * DEPTH,
            "accepted": sum(found.accepted),
            "by_depth": [round(rate, 4) for rate in found.by_depth],
            "tokens_a_step": round(found.tokens_a_step, 3),
        },
    }


def _settings(asked: Asked) -> dict[str, Any]:
    """What the head follows from."""
    return {name: value for name, value in asdict(asked).items() if name != "threads"}


def _target(engine: NativeEngine) -> dict[str, Any]:
    spec = engine.spec
    return {
        "model_type": spec.model_type,
        "hidden_size": spec.hidden,
        "layers": len(spec.layers),
        "vocab_size": spec.vocab,
        "low_bit": engine.low_bit,
        "final_norm": hashlib.sha256(engine.decoder.export_vector("final_norm.weight").tobytes()).hexdigest(),
    }


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """No other run is at this folder meanwhile. Raises InputError where one is."""
    folder = os.open(work, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InputError(f"another run is at {work}", hint="wait for it, or name another folder") from None
    finally:
        os.close(folder)


def _digest(texts: Sequence[str]) -> str:
    total = hashlib.sha256()
    for text in texts:
        total.update(text.encode("utf-8", errors="surrogatepass") + b"\0")
    return total.hexdigest()


def _same_settings(file: Path, settings: dict[str, Any]) -> None:
    """Write them, or compare them with those that the run was begun with. Raises InputError where they differ."""
    if not file.exists():
        file.write_text(json.dumps(settings), encoding="ascii")
        return
    before = read_json(file)
    now = json.loads(json.dumps(settings))
    if differ := [name for name in now if before.get(name) != now[name]]:
        raise InputError(
            f"{file.parent} was begun with other settings: {', '.join(differ)} differ",
            hint=f"give those of the first run to go on with it, or remove {file.parent} to begin again",
        )


def _check_room(work: Path, store: Store, asked: Asked) -> None:
    """Raise SaveError where the disk cannot hold what will be kept of all tokens, prompts included."""
    share = (asked.prompt_tokens + asked.answer_tokens) / asked.answer_tokens
    needed = int(max(0, asked.tokens - store.answered) * share * store.row_bytes)
    free = shutil.disk_usage(work).free
    if free < needed:
        raise SaveError(
            f"{work} has {free / 1e6:,.0f} MB free; what the model makes of {asked.tokens:,} tokens takes"
            f" {needed / 1e6:,.0f} MB meanwhile",
            hint="ask for fewer tokens, or name a folder on another disk",
        )
