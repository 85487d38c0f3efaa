"""Models that see: their text part from folders of every release, and what those are told that are not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.errors import UnsupportedModelError
from tests.support.family_configs import read_config
from tests.support.family_engines import in_chunks, load
from tests.support.family_table import SIZES, variants
from tests.support.tiny_families import build, distance, logits, text, write_folder

QWEN2_VL_2B: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "vision_start_token_id": 151652, "hidden_act": "silu", "hidden_size": 1536,
    "initializer_range": 0.02, "intermediate_size": 8960, "max_position_embeddings": 32768, "max_window_layers": 28,
    "model_type": "qwen2_vl", "num_attention_heads": 12, "num_hidden_layers": 28, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.41.2", "use_cache": True, "use_sliding_window": False,
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "model_type": "qwen2_vl"},
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vocab_size": 151936,
}  # fmt: skip
"""As its checkpoint has it: all in one object, rope by a name that only these have."""


def write(folder: Path, raw: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
def test_a_flat_config_is_that_of_the_text_part(tmp_path: Path, model_type: str) -> None:
    config = read_config(write(tmp_path, {**QWEN2_VL_2B, "model_type": model_type}))
    assert (config["model_type"], config["num_hidden_layers"], config["vocab_size"]) == ("qwen2", 28, 151936)
    assert (config["rope_theta"], config["rope_scaling"]) == (1e6, None)
    assert (config["tie_word_embeddings"], config["sliding_window"], config["dtype"]) == (True, None, "bfloat16")
    inside = {key: value for key, value in QWEN2_VL_2B.items() if key not in ("vision_config", "model_type")}
    part = {**inside, "model_type": model_type}
    nested = {"model_type": model_type, "tie_word_embeddings": True, "text_config": part}
    assert read_config(write(tmp_path, nested)) == config


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen3_vl", "llava", "idefics3", "internvl"])
@pytest.mark.rotating(2)
def test_a_text_part_saved_by_itself_has_the_same_logits(tmp_path: Path, model_type: str) -> None:
    """Names as the whole without its head has them (``AutoModel``), the head as the whole has it."""
    model = build(model_type, variants(model_type)[0])
    folder = write_folder(tmp_path, model)
    file = folder / "model.safetensors"
    moved = {f"language_model.{name}": value for name, value in model.model.get_decoder().state_dict().items()}
    save_file({**{k: v.clone() for k, v in moved.items()}, "lm_head.weight": model.lm_head.weight.data.clone()}, file)
    ids = text(model)
    assert distance(in_chunks(load(folder), ids, [len(ids)]), logits(model, ids)) < 1e-2


def test_what_sees_is_passed_over_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for model_type in ("qwen2_vl", "qwen3_vl", "llava", "llava_onevision", "idefics3", "internvl"):
        folder = write_folder(tmp_path / model_type, build(model_type, variants(model_type)[0]))
        assert any("vis" in name for name in load_file(folder / "model.safetensors"))
        checkpoint = open_checkpoint(folder)
        assert list(checkpoint.names()) == [tensor.name for tensor in checkpoint.spec.tensors()]
        checkpoint.close()
    assert not [record for record in caplog.records if record.name.startswith("ipex_lookahead")]


def test_a_text_part_of_another_family_is_refused_by_name(tmp_path: Path) -> None:
    raw = {"model_type": "llava", "text_config": {**SIZES, "model_type": "granite"}, "vision_config": {}}
    with pytest.raises(UnsupportedModelError, match=r"text_config.model_type is 'granite'.*'llama'"):
        read_config(write(tmp_path, raw))


def glm4v() -> Any:
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 64, "intermediate_size": 16}
    return transformers.Glm4vConfig(text_config=dict(SIZES), vision_config={**vision, "patch_size": 4})


def mllama() -> Any:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "attention_heads": 2}
    return transformers.MllamaConfig(
        text_config={**SIZES, "cross_attention_layers": [1]},
        vision_config={**vision, "image_size": 28, "patch_size": 14, "num_global_layers": 1},
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (glm4v, "a glm4v cannot run here: its text part, a glm4v_text, is of no family here"),
        (mllama, "a mllama cannot run here: 1 of its layers look at an image, and a text has none"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_others_are_told_so_in_a_sentence(tmp_path: Path, config: Any, words: str, engine: str) -> None:
    transformers.AutoModelForImageTextToText.from_config(config()).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        AutoModelForCausalLM.from_pretrained(tmp_path, engine=engine, progress=False)
    assert "families.md" in caught.value.hint
