"""``ipex=True``: refused with the reason, or (where the extension is installed) the same text as without."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from ipex_lookahead import AutoModelForCausalLM, wrap
from ipex_lookahead.engines.torch import ipex
from ipex_lookahead.errors import EngineError, InputError, UnsupportedModelError
from tests.support.tiny import write_tiny_llama

IDS = torch.tensor([[1, 5, 9, 5, 9]])
INSTALLED = importlib.util.find_spec("intel_extension_for_pytorch") is not None
needs_it = pytest.mark.skipif(not INSTALLED, reason="intel-extension-for-pytorch is not installed")


def load(folder: Path, **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, ipex=True, progress=False, **kwargs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama", hidden=128, intermediate=256, tie=False)


def test_without_the_package_the_error_names_the_pip_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        ipex.importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "intel_extension_for_pytorch" else found(name, *rest),
    )
    with pytest.raises(EngineError, match="not installed") as error:
        load(folder)
    assert "intel-extension-for-pytorch==2.8.0 torch==2.8.0" in str(error.value.hint)


def test_what_it_is_not_for(folder: Path) -> None:
    with pytest.raises(InputError, match="float weights.*sym_int4"):
        load(folder, load_in_low_bit="sym_int4")
    with pytest.raises(InputError, match="float16"):
        load(folder, torch_dtype=torch.float16)
    with pytest.raises(InputError, match="native"):
        load(folder, engine="native")


@needs_it
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_changes_speed_and_not_the_loop(folder: Path, dtype: str) -> None:
    model = load(folder, torch_dtype=dtype)
    facts = model.engine.describe()
    assert facts["engine"] == "torch"
    assert "ipex.optimize" in facts["ipex"]
    assert facts["supports_tree"]
    settings = {"max_new_tokens": 24, "eos_token_id": None}
    plain = model.generate(IDS, **settings).tolist()
    if dtype == "float32":
        assert model.generate(IDS, lookahead=4, adaptive=False, **settings).tolist() == plain
        bare = AutoModelForCausalLM.from_pretrained(folder, engine="torch", progress=False)
        assert torch.allclose(model(IDS).logits, bare(IDS).logits, atol=1e-4)
    assert model.generate(IDS, lookahead="auto", **settings).shape == (1, 29)


@needs_it
def test_a_model_with_its_indirect_cache_is_refused(folder: Path) -> None:
    import intel_extension_for_pytorch
    from transformers import AutoModelForCausalLM as Theirs

    model = Theirs.from_pretrained(str(folder), torch_dtype=torch.bfloat16).eval()
    changed = intel_extension_for_pytorch.llm.optimize(model, dtype=torch.bfloat16, inplace=True)
    with pytest.raises(UnsupportedModelError, match="cannot run here"):
        wrap(changed)
