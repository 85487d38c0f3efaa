"""Which engine loads a model, and which models none does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipex_lookahead import LLM
from ipex_lookahead.architectures import ENCODERS, model_types
from ipex_lookahead.errors import UnsupportedModelError


@pytest.mark.parametrize("engine", ["auto", "native", "torch"])
def test_an_encoder_writes_no_text(engine: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    with pytest.raises(UnsupportedModelError, match="bert is an encoder: .* generates no text") as caught:
        LLM(tmp_path, engine=engine, progress=False)
    assert "Embeddings are not supported" in str(caught.value)


def test_no_family_is_an_encoder() -> None:
    assert ENCODERS.isdisjoint(model_types())
