"""A head that is taught for half a minute on the smallest trained Llama, for all tests of this folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.auto import load_text_model
from ipex_lookahead.generation.sampling_params import SamplingParams
from ipex_lookahead.generation.text_model import TextModel
from ipex_lookahead.training.job import Asked, Made, make_head
from ipex_lookahead.training.train import Recipe
from tests.support.eagle3_chain import Reference

ASKED = Asked(
    tokens=24_000,
    prompt_tokens=24,
    answer_tokens=64,
    greedy=True,
    draft_vocab=448,
    recipe=Recipe(steps=450, minutes=None, learning_rate=3e-3, batch=4, unroll=4, seed=0),
    threads=1,
)


@dataclass(frozen=True)
class Trained:
    """A head's folder, what was said of it, and texts that it has not seen."""

    target: Path
    folder: Path
    made: Made
    reference: Reference
    unseen: list[list[int]]

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.folder / "config.json").read_text())


@pytest.fixture(scope="session")
def stories(shared: Path) -> Path:
    return shared / "models" / "stories260K"


@pytest.fixture(scope="session")
def model(stories: Path) -> TextModel:
    return load_text_model(str(stories), progress=False, threads=1)


@pytest.fixture(scope="session")
def openings(model: TextModel) -> list[str]:
    """Beginnings of stories, which the model draws itself."""
    rng = np.random.default_rng(0)
    found = []
    for seed in range(480):
        ids = model.generate([1], SamplingParams(int(rng.integers(8, 24)), 1.0, top_k=0, seed=seed))
        found.append(" ".join(model.tokenizer.decode(ids, skip_special_tokens=True).split()))
    return [opening for opening in found if opening]


@pytest.fixture(scope="session")
def text(openings: list[str]) -> str:
    return "\n\n".join(openings[40:])


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory, stories: Path, model: TextModel, openings: list[str], text: str
) -> Trained:
    folder = tmp_path_factory.mktemp("heads") / "head"
    made = make_head(model, [text], folder, ASKED, stopped=lambda: False, shown=lambda *_: None)
    assert made is not None
    unseen = [model.tokenizer.encode(opening) for opening in openings[:40]]
    return Trained(stories, folder, made, Reference.load(stories, folder), unseen)


@pytest.fixture
def short() -> Asked:
    """A training of seconds."""
    return replace(ASKED, tokens=2_000, recipe=replace(ASKED.recipe, steps=12))
