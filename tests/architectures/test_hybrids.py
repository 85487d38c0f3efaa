"""Families with recurrent layers: prompts beside transformers' chunked form, states that overflow, sizes that lie."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType
from gguf.gguf_writer import GGUFValue
from safetensors.numpy import load_file, save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import model_types, spec_for
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.cli.model_facts import describe
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.core import available_isas
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import ModelFormatError, NonFiniteError
from tests.support.family_engines import each, in_chunks, load, on, step
from tests.support.family_table import VOCAB, Variant, variants
from tests.support.gguf_families import write_gguf
from tests.support.native import chain
from tests.support.tiny_families import build, config_of, keeps_states, logits, with_weights, write_folder

EVERY = [(one, variant) for one in model_types() for variant in variants(one) if keeps_states(one, variant)]
TEXTS = [one for one in EVERY if one[0] not in ("qwen3_5", "qwen3_5_moe", "lfm2_vl")]
LONG = 600


@each(TEXTS)
@pytest.mark.rotating(4)
def test_a_long_prompt_agrees_with_the_chunked_form(tmp_path: Path, model_type: str, variant: Variant) -> None:
    """Rows go one by one here, by chunks there; whether they are certain to stay shows nowhere."""
    config = config_of(model_type, variant)
    config.max_position_embeddings = 1024
    model = with_weights(config)
    checkpoint = open_checkpoint(write_folder(tmp_path, model))
    spec = spec_for(checkpoint.config, 700)
    engine = NativeEngine.load(checkpoint, spec, WeightPlan(None, head=spec.head_weight.name), threads=2)
    checkpoint.close()
    ids = np.random.default_rng(1).integers(3, VOCAB, LONG).astype(np.int32)
    got, expected = in_chunks(engine, ids, [LONG]), logits(model, ids)
    apart = np.abs(got - expected).max(1) / expected.std()
    assert np.median(apart) < 2e-3
    if not spec.mixtures:  # a row may go to another expert for a rounding
        assert apart.max() < 1e-2
    assert got.tobytes() == in_chunks(engine, ids, [64, 1, 13]).tobytes()
    for sizes, settled in (([LONG], LONG), ([100, 7], 50), ([64, 3], 2)):
        cache, rows, at = engine.new_cache(), [], 0
        for size in cycle(sizes):
            part = ids[at : at + size]
            certain = min(settled, len(part))
            wants = OutputRequest(logits=True)
            batch = Batch([cache], [len(part)], part, chain(len(part)), wants, settled=[certain])
            engine.forward(batch)  # dropped, and done again
            rows.append(engine.forward(batch).logits)
            cache.keep(list(range(len(part))))
            at += len(part)
            if at >= len(ids):
                break
        assert np.concatenate(rows).tobytes() == got.tobytes(), (sizes, settled)


@pytest.mark.parametrize("isa", available_isas())
@each([(one, variants(one)[0]) for one in ("lfm2", "nemotron_h", "qwen3_5_text")])
@pytest.mark.rotating(5)
def test_a_state_that_overflows_ends_its_sequence_alone(
    tmp_path: Path, model_type: str, variant: Variant, isa: str
) -> None:
    """The row that spoils it is not asked for; those behind it have it from the state, or from the convolution."""
    file = write_folder(tmp_path, build(model_type, variant)) / "model.safetensors"
    tensors = load_file(file)
    [table] = [name for name in tensors if name.endswith(("embed_tokens.weight", "embeddings.weight"))]
    tensors[table][7].fill(3e38)
    save_file(tensors, file, {"format": "pt"})
    with on(isa):
        engine = load(tmp_path)
    good, bad = np.array([1, 2, 3, 4], np.int32), np.array([1, 7, 2, 3], np.int32)
    sound = step(engine, [engine.new_cache()], [good], [chain(4)])[0]
    cache, other = engine.new_cache(), engine.new_cache()
    step(engine, [cache], [good[:2]], [chain(2)])
    cache.keep([0, 1])
    last = OutputRequest(np.array([3], np.int32))
    for settled in (0, 4):
        with pytest.raises(NonFiniteError, match="logits are not finite"):
            engine.forward(Batch([cache], [4], bad, chain(4), last, settled=[settled]))
        assert cache.length == 2
        beside = OutputRequest(np.arange(4, 8, dtype=np.int32), logits=True)
        both = Batch([cache, other], [4, 4], np.concatenate([bad, good]), np.tile(chain(4), 2), beside)
        assert engine.forward(both).logits.tobytes() == sound.tobytes()
    rest = step(engine, [cache], [good[2:]], [chain(2)])[0]
    assert rest.tobytes() == sound[2:].tobytes()


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("value", [1, True, "yes", [True], [True] * 9])
def test_recurrent_layers_that_are_no_list_of_them(tmp_path: Path, value: Any) -> None:
    def change(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        kind = GGUFValueType.get_type(value)
        keys["qwen35.attention.recurrent_layers"] = GGUFValue(value, kind, None)

    model = build("qwen3_5_text", variants("qwen3_5_text")[0])
    with pytest.raises(ModelFormatError, match="recurrent_layers|layer_types"):
        load(write_gguf(tmp_path / "m.gguf", model, change=change))


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "qwen3_5_moe_text"])
def test_blocks_for_drafting_are_read_past(tmp_path: Path, model_type: str) -> None:
    """They stand in most files of Qwen3.5, and ``info`` says so."""
    model = build(model_type, variants(model_type)[0])
    ids = np.arange(3, 20, dtype=np.int32)
    plain = in_chunks(load(write_folder(tmp_path / "plain", model)), ids, [17])
    folder = write_folder(tmp_path / "folder", model)
    tensors = load_file(folder / "model.safetensors")
    tensors["mtp.fc.weight"] = np.zeros((64, 128), np.float32)
    tensors["mtp.layers.0.mlp.experts.gate_up_proj"] = np.zeros((5, 96, 64), np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "mtp_num_hidden_layers": 1}), encoding="utf-8")
    assert in_chunks(load(folder), ids, [17]).tobytes() == plain.tobytes()
    assert describe(folder)["drafting"].startswith("2 tensors")

    def change(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        prefix = next(name for name in keys if name.endswith(".block_count")).removesuffix("block_count")
        keys[f"{prefix}block_count"].value = 5
        keys[f"{prefix}attention.recurrent_layers"].value.append(False)
        keys[f"{prefix}nextn_predict_layers"] = GGUFValue(1, GGUFValueType.UINT32, None)
        tensors["blk.4.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)

    without = in_chunks(load(write_gguf(tmp_path / "plain.gguf", model)), ids, [17])
    file = write_gguf(tmp_path / "m.gguf", model, change=change)
    assert in_chunks(load(file), ids, [17]).tobytes() == without.tobytes()
    assert describe(file)["drafting"].startswith("1 tensors")
