"""Nemotron-H in GGUF files of either architecture, and in folders by every name that its tensors have had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFValueType
from gguf.gguf_writer import GGUFValue
from safetensors.numpy import load_file, save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures.families.nemotron_h import FULL, MAMBA, MLP, MOE
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.cli.model_facts import describe
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_engines import load, step
from tests.support.family_table import Variant, variants
from tests.support.gguf_families import write_gguf
from tests.support.native import chain
from tests.support.tiny_families import build, write_folder

PLAIN, EXPERTS = variants("nemotron_h")[:2]
IDS = np.arange(3, 20, dtype=np.int32)
Change = Callable[[dict[str, Any], dict[str, Any]], None]


def logits_of(path: Path) -> npt.NDArray[np.float32]:
    engine = load(path)
    found: npt.NDArray[np.float32] = step(engine, [engine.new_cache()], [IDS], [chain(len(IDS))])[0]
    return found


def file_of(folder: Path, variant: Variant, change: Change = lambda keys, tensors: None) -> Path:
    return write_gguf(folder / "m.gguf", build("nemotron_h", variant), change=change)


@pytest.mark.parametrize(
    ("variant", "architecture", "kinds"),
    [(PLAIN, "nemotron_h", [MAMBA, MLP, FULL, MAMBA]), (EXPERTS, "nemotron_h_moe", [MAMBA, MOE, FULL, MOE])],
)
def test_two_arrays_say_what_a_layer_is(tmp_path: Path, variant: Variant, architecture: str, kinds: list[str]) -> None:
    file = open_checkpoint(file_of(tmp_path, variant))
    file.close()
    assert file.metadata["general.architecture"] == architecture
    assert (file.config["layers_block_type"], file.config["num_hidden_layers"]) == (kinds, 4)
    assert file.config["layer_norm_epsilon"] == 1e-5
    assert not file.unknown_keys


def test_the_epsilon_of_rms_norms_goes_first(tmp_path: Path) -> None:
    def change(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys["nemotron_h.attention.layer_norm_rms_epsilon"] = GGUFValue(0.25, GGUFValueType.FLOAT32, None)

    file = open_checkpoint(file_of(tmp_path, PLAIN, change))
    file.close()
    assert {block.mixer_norm.epsilon for block in file.spec.layers if block.mixer_norm} == {0.25}


def test_a_size_of_rope_that_nothing_uses_is_passed_over(tmp_path: Path) -> None:
    """Converters write the hidden size over the heads, whatever the heads' size."""
    plain = logits_of(file_of(tmp_path, PLAIN))

    def change(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys["nemotron_h.rope.dimension_count"].value = 10
        keys["nemotron_h.rope.freq_base"] = GGUFValue(3.0, GGUFValueType.FLOAT32, None)

    assert logits_of(file_of(tmp_path, PLAIN, change)).tobytes() == plain.tobytes()


def test_a_block_for_drafting_is_read_past(tmp_path: Path) -> None:
    """It is attention and experts in one, behind the decoder's."""
    plain = logits_of(file_of(tmp_path, EXPERTS))

    def change(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys["nemotron_h_moe.block_count"].value = 5
        keys["nemotron_h_moe.attention.head_count_kv"].value.append(2)
        keys["nemotron_h_moe.feed_forward_length"].value.append(40)
        keys["nemotron_h_moe.nextn_predict_layers"] = GGUFValue(1, GGUFValueType.UINT32, None)
        tensors["blk.4.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)

    file = file_of(tmp_path, EXPERTS, change)
    assert logits_of(file).tobytes() == plain.tobytes()
    assert describe(file)["drafting"].startswith("1 tensors")


@pytest.mark.parametrize(
    ("key", "value", "error", "words"),
    [
        ("attention.head_count_kv", [0, 2, 2, 0], ModelFormatError, "feed_forward_length.* gives layer 1 an MLP"),
        ("attention.head_count_kv", [0, 0, 2], ModelFormatError, "head_count_kv.* has 3 values for 4 layers"),
        ("attention.head_count_kv", None, ModelFormatError, "head_count_kv.* is missing"),
        ("feed_forward_length", [0, 40, 0, 48], UnsupportedModelError, "differs between layers"),
        ("feed_forward_length", [0, 40], ModelFormatError, "feed_forward_length.* has 2 values for 4 layers"),
        ("expert_feed_forward_length", [0, 40, 0, 48], UnsupportedModelError, "differs between layers"),
        ("expert_used_count", None, ModelFormatError, "expert_used_count.* is missing"),
        ("moe_latent_size", 32, ModelFormatError, "ffn_latent_down.weight"),
        ("nextn_predict_layers", 4, ModelFormatError, "is 4; there are 4 blocks in total"),
        ("attention.layer_norm_epsilon", None, ModelFormatError, "layer_norm_rms_epsilon"),
        ("ssm.inner_size", 49, ModelFormatError, "is 49; 6 heads"),
    ],
)
def test_what_cannot_be(tmp_path: Path, key: str, value: Any, error: type[Exception], words: str) -> None:
    def change(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys.pop(f"nemotron_h_moe.{key}", None)
        if value is not None:
            kind = GGUFValueType.ARRAY if isinstance(value, list) else GGUFValueType.UINT32
            keys[f"nemotron_h_moe.{key}"] = GGUFValue(value, kind, None)

    with pytest.raises(error, match=words):
        load(file_of(tmp_path, EXPERTS, change))


@pytest.mark.parametrize("variant", [PLAIN, EXPERTS], ids=lambda variant: variant.name)
@pytest.mark.parametrize("root", ["backbone.", "model."])
def test_a_folder_by_either_name(tmp_path: Path, variant: Variant, root: str) -> None:
    """The hub's begin with ``backbone.``; whether transformers writes that or ``model.`` goes by its version."""
    folder = write_folder(tmp_path, build("nemotron_h", variant))
    plain = logits_of(folder)
    tensors = load_file(folder / "model.safetensors")
    stems = {name: name.removeprefix("backbone.").removeprefix("model.") for name in tensors}
    named = {stem if stem.startswith("lm_head.") else root + stem: tensors[name] for name, stem in stems.items()}
    assert sum(name.startswith(root) for name in named) == len(named) - 1
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    assert logits_of(folder).tobytes() == plain.tobytes()
