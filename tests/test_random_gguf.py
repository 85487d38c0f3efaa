"""``scripts/random_gguf.py``: blocks for drafting, and the tokenizer of another file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import pytest

from ipex_lookahead.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
SMALL = {"hidden_size": 64} | {
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
SMALL |= {
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
}


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("random_gguf", ROOT / "scripts" / "random_gguf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_block_for_drafting_and_a_tokenizer(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(32)]
    writer = gguf.GGUFWriter(tmp_path / "words.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_chat_template("{{ messages }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    of_shape = script.config_of
    monkeypatch.setattr(script, "config_of", lambda shape: {**of_shape(shape), **SMALL})
    made = tmp_path / "random.gguf"
    script.write_random_gguf("qwen3.5-4b", made, 4, drafting=True, vocabulary=tmp_path / "words.gguf")
    found = gguf.GGUFReader(made)
    read = {name: field.contents() for name, field in found.fields.items()}
    assert (read["tokenizer.ggml.model"], read["tokenizer.ggml.tokens"]) == ("gpt2", words)
    assert read["tokenizer.chat_template"] == "{{ messages }}"
    assert (read["qwen35.block_count"], read["qwen35.nextn_predict_layers"], read["qwen35.vocab_size"]) == (5, 1, 32)
    names = {tensor.name for tensor in found.tensors}
    assert {"blk.3.attn_q.weight", "blk.4.attn_q.weight", "blk.4.nextn.eh_proj.weight"} <= names
    assert "blk.3.nextn.eh_proj.weight" not in names
    script.write_random_gguf("qwen3.5-4b", made, 4, vocabulary=tmp_path / "words.gguf", context=64, template="{{ 7 }}")
    read = {name: field.contents() for name, field in gguf.GGUFReader(made).fields.items()}
    assert (read["tokenizer.chat_template"], read["qwen35.context_length"]) == ("{{ 7 }}", 64)
    assert read["tokenizer.ggml.tokens"] == words


def test_a_family_without_such_a_block_is_refused(script: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no block for drafting"):
        script.write_random_gguf("smollm2-135m", tmp_path / "x.gguf", 1, drafting=True)
