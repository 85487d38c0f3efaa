"""``LLM`` with embedding models and rerankers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead import LLM
from ipex_lookahead.embedding.model import EmbeddingModel
from ipex_lookahead.errors import InputError, LowBitFormatError, ServiceError
from tests.embedding.test_reranking import DOCUMENTS, write_folder
from tests.embedding.test_reranking import QUERY as QUESTION
from tests.support.embedding_folders import TEXTS, qwen3, tokenizer, write_qwen3_embedding

pytest.importorskip("transformers", minversion="5.23")


@pytest.fixture(scope="module")
def reference() -> Any:
    return qwen3(tokenizer().get_vocab_size())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, reference: Any) -> Path:
    return write_qwen3_embedding(tmp_path_factory.mktemp("qwen3"), reference)


def test_embed(folder: Path) -> None:
    with LLM(folder, threads=1, progress=False) as llm, EmbeddingModel.open(folder, threads=2) as model:
        assert repr(llm) == f"LLM({str(folder)!r}, purpose='embedding', max_context=512)"
        assert np.array_equal(llm.embed(TEXTS), model.embed(TEXTS).vectors)
        one = llm.embed(TEXTS[0], task="query", dimensions=16)
        assert one.shape == (16,)
        assert np.array_equal(one, model.embed([TEXTS[0]], task="query", dimensions=16).vectors[0])
        assert np.array_equal(llm.embed([TEXTS[0]], prompt="x: ", normalize=False),
                              model.embed([TEXTS[0]], prompt="x: ", normalize=False).vectors)  # fmt: skip
        for wrong in (None, 5, b"x", {"a": 1}):
            with pytest.raises(InputError, match=f"texts is of type {type(wrong).__name__}; it must be a list"):
                llm.embed(wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="a text is of type bytes"):
            llm.embed([b"x"])
        assert llm.tokenizer.encode("yes") == tokenizer().encode("yes").ids
        with pytest.raises(InputError, match="embedding model and generates no text") as error:
            llm.chat("hello")
        assert error.value.hint == "use embed, or another model"
        with pytest.raises(InputError, match="embedding model, which makes vectors"):
            llm.rank("query", ["a"])
        for call in (lambda: llm.generate("x"), lambda: llm.adapters, lambda: llm.load_adapter("x", "y")):
            with pytest.raises(InputError, match="generates no text"):
                call()
    assert repr(llm) == f"LLM({str(folder)!r}, closed)"
    with pytest.raises(ServiceError, match="closed"):
        llm.embed("a")


def test_rank(tmp_path: Path, reference: Any) -> None:
    write_folder(tmp_path, reference)
    with LLM(tmp_path, threads=1, progress=False) as llm, EmbeddingModel.open(tmp_path, threads=2) as model:
        assert llm.rank(QUESTION, DOCUMENTS, top_n=3) == model.rank(QUESTION, DOCUMENTS, top_n=3)
        for wrong in (None, 5, b"x", {"a": 1}):
            with pytest.raises(InputError, match=f"documents is of type {type(wrong).__name__}; it must be a list"):
                llm.rank(QUESTION, wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="is a reranker, which scores"):
            llm.embed("a")
        with pytest.raises(InputError, match="is a reranker and generates no text"):
            llm.stream("a")


def test_arguments_of_text_models(folder: Path) -> None:
    for name, value in (("drafter", "x"), ("engine", "torch"), ("device", "xpu"), ("adapters", {"a": "b"})):
        with pytest.raises(InputError, match=f"{name} is for models that generate text"):
            LLM(folder, progress=False, **{name: value})
    with pytest.raises(InputError, match="max_context is 1000; it must be 1 to 512"):
        LLM(folder, progress=False, max_context=1000)
    with pytest.raises(LowBitFormatError, match="unknown low-bit format 'sym_int4x'"):
        LLM(folder, progress=False, low_bit="sym_int4x")


def test_text_models_name_what_embeds() -> None:
    with LLM(progress=False, threads=1) as llm:
        with pytest.raises(InputError, match="default generates text; embed needs an embedding model") as error:
            llm.embed("a")
        assert "pull" in error.value.hint
        with pytest.raises(InputError, match="rank needs a reranker"):
            llm.rank("a", ["b"])
