"""Embedding models made of causal language models: folders and GGUF files against transformers, bits over batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.embedding.model import EmbeddingModel, purpose_of
from ipex_lookahead.errors import ContextLengthError, InputError, ServiceError, UnsupportedModelError
from tests.support.embedding_folders import (
    END,
    QUERY,
    TEXTS,
    cosines,
    last_rows,
    qwen3,
    tokenizer,
    unit,
    write_qwen3_embedding,
    write_qwen3_gguf,
)

pytest.importorskip("transformers", minversion="5.23")


LONG = "zqxj 語日本 🙂 vwk é zz — kkk"


@pytest.fixture(scope="module")
def reference() -> Any:
    return qwen3(tokenizer().get_vocab_size())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, reference: Any) -> Path:
    return write_qwen3_embedding(tmp_path_factory.mktemp("qwen3"), reference)


@pytest.fixture(scope="module")
def model(folder: Path) -> EmbeddingModel:
    return EmbeddingModel.open(folder, threads=2)


def expected(reference: Any, texts: list[str], before: str = "") -> Any:
    core = tokenizer()
    return unit(last_rows(reference, [core.encode(before + text).ids for text in texts]))


def test_vectors_are_transformers(model: EmbeddingModel, reference: Any) -> None:
    found = model.embed(TEXTS)
    assert found.vectors.dtype == np.float32
    assert found.vectors.shape == (len(TEXTS), 64)
    assert found.tokens == sum(len(tokenizer().encode(text).ids) for text in TEXTS)
    assert cosines(found.vectors, expected(reference, TEXTS)).min() > 1 - 1e-5
    assert np.allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-6)


def test_prompts_of_tasks(model: EmbeddingModel, reference: Any) -> None:
    queries = model.embed(TEXTS, task="query").vectors
    assert cosines(queries, expected(reference, TEXTS, QUERY)).min() > 1 - 1e-5
    plain = model.embed(TEXTS).vectors
    assert np.array_equal(model.embed(TEXTS, task="document").vectors, plain)
    assert np.array_equal(model.embed(TEXTS, task="passage").vectors, plain)
    assert np.array_equal(model.embed(TEXTS, prompt=QUERY).vectors, queries)
    with pytest.raises(InputError, match="task is 'cook'; it must be one of query, document"):
        model.embed(["a"], task="cook")


def test_a_vector_has_the_same_bits_alone_and_in_any_batch(model: EmbeddingModel, folder: Path) -> None:
    texts = [*TEXTS, " ".join(TEXTS) * 3]
    whole = model.embed(texts).vectors
    backwards = model.embed(texts[::-1]).vectors[::-1]
    alone = np.concatenate([model.embed(text).vectors for text in texts])
    assert whole.tobytes() == np.ascontiguousarray(backwards).tobytes() == alone.tobytes()
    with EmbeddingModel.open(folder, threads=1) as one_thread:
        assert one_thread.embed(texts).vectors.tobytes() == whole.tobytes()


def test_more_rows_than_a_step_has(model: EmbeddingModel, reference: Any) -> None:
    many = [TEXTS[5][: 50 + 3 * number] for number in range(60)]
    found = model.embed(many).vectors
    assert cosines(found, expected(reference, many)).min() > 1 - 1e-5
    assert np.array_equal(found[17], model.embed(many[17]).vectors[0])


def test_shorter_vectors_are_cut_and_normalized_again(model: EmbeddingModel) -> None:
    long = model.embed(TEXTS).vectors
    short = model.embed(TEXTS, dimensions=8).vectors
    assert np.allclose(short, unit(long[:, :8]), atol=1e-6)
    raw = model.embed(TEXTS, dimensions=8, normalize=False).vectors
    assert np.array_equal(raw, model.embed(TEXTS, normalize=False).vectors[:, :8])
    for wrong in (0, 65, True, 8.0):
        with pytest.raises(InputError, match="dimensions is .* 1 to 64"):
            model.embed(TEXTS, dimensions=wrong)


def test_a_text_that_is_too_long_is_cut_before_its_end_token(folder: Path, reference: Any) -> None:
    with EmbeddingModel.open(folder, threads=2, max_length=9) as model:
        core = tokenizer()
        ids = core.encode(LONG, add_special_tokens=False).ids[:8] + [core.token_to_id(END)]
        assert model.inputs([LONG])[0].ids.tolist() == ids
        assert cosines(model.embed([LONG]).vectors, last_rows(reference, [ids])).min() > 1 - 1e-5
        with pytest.raises(
            ContextLengthError, match=r"text 1: a text has \d+ tokens; the model reads at most 9"
        ) as got:
            model.embed(["a", LONG], truncate=False)
        assert got.value.hint.endswith("truncate=True")
        assert got.value.spelled(lambda name, value: f"--{name}")[1].endswith("--truncate")
        assert (got.value.tokens, got.value.limit) == (len(core.encode(LONG).ids), 9)
    with pytest.raises(InputError, match="max_length is 513; it must be 1 to 512"):
        EmbeddingModel.open(folder, max_length=513)


def test_token_ids_are_used_as_they_are(model: EmbeddingModel) -> None:
    ids = tokenizer().encode(TEXTS[0]).ids
    assert np.array_equal(model.embed([ids]).vectors, model.embed([TEXTS[0]]).vectors)
    for wrong, said in (
        ([], "is empty"),
        ([-1], "vocabulary"),
        ([1000], "vocabulary"),
        ([True], "vocabulary"),
        (3, "int"),
    ):
        with pytest.raises(InputError, match=said):
            model.embed([wrong])  # type: ignore[list-item]


def test_no_texts_and_bad_texts(model: EmbeddingModel) -> None:
    assert model.embed([]).vectors.shape == (0, 64)
    with pytest.raises(InputError, match="text 1: .*half of a surrogate"):
        model.embed(["a", "\ud800"])
    with pytest.raises(InputError, match="single string"):
        model.inputs("text")


def test_it_ranks_nothing_and_a_closed_one_does_nothing(folder: Path) -> None:
    model = EmbeddingModel.open(folder, threads=1)
    with pytest.raises(InputError, match="embedding model, which makes vectors") as error:
        model.rank("query", ["document"])
    assert "embed" in error.value.hint
    model.close()
    with pytest.raises(ServiceError, match="closed"):
        model.embed(["a"])


def test_facts(model: EmbeddingModel, folder: Path) -> None:
    facts = model.describe()
    wanted = {"purpose": "embedding", "dimensions": 64, "max_length": 512, "pooling": "lasttoken", "low_bit": "fp32"}
    assert {name: facts[name] for name in wanted} == wanted
    assert purpose_of(folder) == "embedding"
    assert (model.dimensions, model.max_length, model.similarity) == (64, 512, "cosine")


def test_a_folder_that_names_no_tie_and_has_no_head(tmp_path: Path, reference: Any) -> None:
    """As the folders of Qwen3-Embedding-4B and -8B."""
    write_qwen3_embedding(tmp_path, reference)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with EmbeddingModel.open(tmp_path, threads=1) as model:
        assert cosines(model.embed(TEXTS).vectors, expected(reference, TEXTS)).min() > 1 - 1e-5


def test_names_with_the_prefix_of_text_models(tmp_path: Path, reference: Any, model: EmbeddingModel) -> None:
    write_qwen3_embedding(tmp_path, reference, prefix=True)
    with EmbeddingModel.open(tmp_path, threads=1) as other:
        assert np.array_equal(other.embed(TEXTS).vectors, model.embed(TEXTS).vectors)


@pytest.mark.parametrize("low_bit", ["sym_int8", "q4_k_m"])
def test_low_bits_are_near_and_the_same_in_batches(folder: Path, model: EmbeddingModel, low_bit: str) -> None:
    low_bit = "gguf_q4k_m" if low_bit == "q4_k_m" else low_bit
    with EmbeddingModel.open(folder, threads=2, load_in_low_bit=low_bit) as other:
        found = other.embed(TEXTS).vectors
        assert cosines(found, model.embed(TEXTS).vectors).min() > 0.9
        assert not np.array_equal(found, model.embed(TEXTS).vectors)
        assert found.tobytes() == np.concatenate([other.embed(text).vectors for text in TEXTS]).tobytes()


@pytest.mark.parametrize("stated", [None, True, False])
def test_gguf_files_get_the_end_token_unless_they_state_it(tmp_path: Path, reference: Any, stated: bool | None) -> None:
    """Early files of Qwen3-Embedding state nothing."""
    keys = {"qwen3__pooling_type": 3} | ({} if stated is None else {"tokenizer__ggml__add_eos_token": stated})
    path = write_qwen3_gguf(tmp_path / "x.gguf", reference, **keys)
    assert purpose_of(path) == "embedding"
    with EmbeddingModel.open(path, threads=2) as model:
        end = [tokenizer().token_to_id(END)]
        found = model.inputs(["yes", ""] if stated is not False else ["yes"])
        core = tokenizer(end=False)
        assert found[0].ids.tolist() == core.encode("yes").ids + (end if stated is not False else [])
        if stated is not False:
            assert cosines(model.embed(TEXTS).vectors, expected(reference, TEXTS)).min() > 1 - 1e-5
            queries = model.embed(TEXTS, task="query").vectors
            assert cosines(queries, expected(reference, TEXTS, QUERY)).min() > 1 - 1e-5


def test_models_that_generate_text_are_refused_by_name(tmp_path: Path, reference: Any) -> None:
    (tmp_path / "folder").mkdir()
    folder = write_qwen3_embedding(tmp_path / "folder", reference, prefix=True)
    (folder / "modules.json").unlink()
    plain = write_qwen3_gguf(tmp_path / "plain.gguf", reference)
    for path in (folder, plain):
        assert purpose_of(path) == "text"
        with pytest.raises(InputError, match="generates text: its files state no pooling") as error:
            EmbeddingModel.open(path)
        assert "pull" in error.value.hint
    with EmbeddingModel.open(
        folder, threads=1, purpose="embedding"
    ) as model:  # the default of decoders is not the mean
        assert model.describe()["pooling"] == "lasttoken"
        assert cosines(model.embed(TEXTS).vectors, expected(reference, TEXTS)).min() > 1 - 1e-5
    none = write_qwen3_gguf(tmp_path / "none.gguf", reference, qwen3__pooling_type=0)
    with pytest.raises(UnsupportedModelError, match="a vector for each token"):
        EmbeddingModel.open(none, purpose="embedding")
