"""Models that the real ipex-llm has loaded. Without ipex-llm the whole folder is skipped; see `make test-ipex-llm`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.hf_folder import write_hf_folder
from ipex_lookahead.errors import DownloadError
from ipex_lookahead.hub import resolve_model
from ipex_lookahead.tokenization.prompts import build_prompt
from tests.support.tiny import write_tiny_llama

SIZES: dict[str, Any] = {"hidden": 128, "intermediate": 256, "heads": 4, "kv_heads": 2, "layers": 2, "context": 512}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama", tie=False, **SIZES)


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        tiny_folder, engine="ipex-llm", load_in_low_bit="sym_int4", progress=False
    )


@pytest.fixture(scope="session")
def embedded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model as a Hugging Face folder in float32, written by our own reader."""
    try:
        file = resolve_model("default", progress=False)
    except DownloadError as error:
        pytest.skip(f"the embedded model is not there and cannot be fetched: {error}")
    checkpoint = open_checkpoint(file)
    try:
        return write_hf_folder(checkpoint, tmp_path_factory.mktemp("embedded") / "hf")
    finally:
        checkpoint.close()


@pytest.fixture(scope="session")
def embedded(embedded_folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        embedded_folder, engine="ipex-llm", load_in_low_bit="sym_int4", progress=False
    )


@pytest.fixture(scope="session")
def prompts(embedded: Any) -> list[list[int]]:
    lines = (files("ipex_lookahead.bench") / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [build_prompt(embedded.tokenizer, embedded.config.to_dict(), json.loads(line)["prompt"]) for line in lines]
