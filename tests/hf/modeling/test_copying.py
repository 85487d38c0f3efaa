"""Copies of a model: shared in this process, loaded again in another."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, InputError, wrap
from tests.hf.test_model import build
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.numpy_engine import NumpyEngine
from tests.support.tiny import TinyLlama, write_tiny_gguf, write_tiny_llama

IDS = torch.tensor([[5, 9, 33, 2, 17, 60]])
SETTINGS = {"max_new_tokens": 8, "eos_token_id": None, "lookahead": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "m", seed=5)


def load(path: Path, **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, progress=False, **kwargs)


def test_a_deep_copy_shares_the_engine_and_nothing_else(folder: Path) -> None:
    model = load(folder, load_in_low_bit="sym_int8", threads=1)
    model.use_draft_model(load(folder, threads=1))
    model.generate(IDS, **SETTINGS)
    for twin in (copy.deepcopy(model), copy.copy(model)):
        assert twin.engine is model.engine
        assert twin.costs is model.costs
        assert (twin.low_bit, twin.source, twin.name_or_path) == ("sym_int8", model.source, model.name_or_path)
        assert twin.stats.tokens == 0
        twin.generation_config.max_new_tokens = 3
        twin.config.pad_token_id = 7
        assert torch.equal(twin.generate(IDS, **SETTINGS), model.generate(IDS, **SETTINGS))
        assert twin.stats.strategy == model.stats.strategy == "draft_model"
        assert model.generation_config.max_new_tokens is None
        assert model.config.pad_token_id is None


@pytest.mark.parametrize(
    "kwargs",
    [
        {"load_in_low_bit": "sym_int4", "group_size": 64, "threads": 2, "mixed_precision": True},
        {"load_in_low_bit": "sym_int8", "kv_cache": "int8", "threads": 1, "speculative": True},
        {"modules_to_not_convert": ["lm_head"], "load_in_4bit": True, "threads": 1},
        {"engine": "torch", "dtype": torch.bfloat16, "device": "cpu", "deterministic": True},
    ],
)
def test_a_pickled_model_is_loaded_again_as_it_was(folder: Path, kwargs: dict[str, Any]) -> None:
    model = load(folder, **kwargs)
    model.generation_config.max_new_tokens = 5
    written = pickle.dumps(model)
    assert len(written) < 10_000  # no weights
    again = pickle.loads(written)
    assert again.engine is not model.engine
    assert again.engine.describe() == model.engine.describe()
    assert again.generation_config.max_new_tokens == 5
    assert (again.speculative, again.low_bit, again.source) == (model.speculative, model.low_bit, model.source)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_torch_saves_a_model_from_a_file_found_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    monkeypatch.chdir(tmp_path)
    model = load(Path("tiny.gguf"), threads=1)
    model.use_draft_model(load(Path("tiny.gguf"), threads=1, load_in_low_bit="sym_int4"))
    written = io.BytesIO()
    torch.save(model, written)
    monkeypatch.chdir("/")
    again = torch.load(io.BytesIO(written.getvalue()), weights_only=False)
    assert torch.equal(again.generate(IDS, **SETTINGS), model.generate(IDS, **SETTINGS))
    assert again.stats.strategy == "draft_model"


def test_a_wrapped_model_takes_its_model_along(folder: Path) -> None:
    model = wrap(LlamaForCausalLM.from_pretrained(folder), byte_tokenizer(), deterministic=True, max_context=99)
    again = pickle.loads(pickle.dumps(model))
    assert (again.engine.deterministic, again.engine.max_context) == (True, 99)
    assert again.tokenizer.get_vocab() == model.tokenizer.get_vocab()
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert copy.deepcopy(model).engine.model is model.engine.model


def test_a_model_of_the_memory_cannot_be_pickled() -> None:
    model = build(NumpyEngine(TinyLlama().config("float32"), TinyLlama().weights()))
    with pytest.raises(InputError, match="created in memory.*from_pretrained has loaded or that wrap"):
        pickle.dumps(model)
    assert copy.deepcopy(model).engine is model.engine


def _in_a_worker(model: Any) -> list[int]:
    found: list[int] = model.generate(IDS, **SETTINGS)[0].tolist()
    return found


def test_a_spawned_worker_loads_the_model(folder: Path) -> None:
    model = load(folder, load_in_low_bit="sym_int4", threads=1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_in_a_worker, (model,)) == model.generate(IDS, **SETTINGS)[0].tolist()
