"""Every key that transformers' Llama reads from config.json is honoured, known to have no effect, or refused."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import json
import logging
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.architectures.families.dense import FAMILIES
from ipex_lookahead.architectures.keys import GIVEN
from ipex_lookahead.errors import UnsupportedModelError
from tests.support.family_configs import read_config
from tests.support.tiny import TinyLlama, write_tiny_llama

BASE = TinyLlama().config("float32")
DEPENDENT = {"sliding_window", "layer_types"}
KEYS = FAMILIES["llama"].KEYS
HONOURED = (GIVEN | set(KEYS.used)) - DEPENDENT
NEUTRAL, REFUSED = KEYS.all_neutral(), KEYS.all_refused()
LISTED = HONOURED | set(NEUTRAL) | set(REFUSED) | DEPENDENT

METHODS = {"is_heterogeneous", "json", "standardize_rope_params", "use_return_dict", "validate_rope"}
"""What transformers' code calls or asks of a config object that is no key; ``config.json`` is a file."""


def keys_of_config() -> set[str]:
    """The names that LlamaConfig takes, and what it writes."""
    taken = set(inspect.signature(transformers.LlamaConfig).parameters) - {"self", "kwargs"}
    written = set(transformers.LlamaConfig().to_dict()) - set(transformers.GenerationConfig().to_dict())
    return {name for name in taken | written if not name.startswith("_")}


def keys_of_source() -> set[str]:
    """The attributes of a config that the Llama model, its rope, masks and caches look at."""
    found: set[str] = set()
    modules = ("models.llama.modeling_llama", "modeling_rope_utils", "masking_utils", "cache_utils", "modeling_utils")
    for name in modules:
        if importlib.util.find_spec(f"transformers.{name}") is None:  # some came after transformers 4.37
            continue
        source = inspect.getsource(importlib.import_module(f"transformers.{name}"))
        found |= set(re.findall(r'getattr\(\s*(?:\w+\.)*\w*config\w*,\s*"(\w+)"', source))
        if name.endswith(("modeling_llama", "modeling_rope_utils")):
            found |= set(re.findall(r"\bconfig\.(\w+)", source))
    return {name for name in found if not name.startswith("_")}


def test_no_key_is_in_two_lists() -> None:
    for one, two in itertools.combinations([HONOURED, set(NEUTRAL), set(REFUSED), DEPENDENT], 2):
        assert not one & two


def test_every_key_of_transformers_is_listed() -> None:
    assert {"hidden_act", "num_key_value_heads", "attention_bias"} <= keys_of_source()
    assert keys_of_config() - LISTED == set()
    assert keys_of_source() - LISTED - METHODS == set()


# ---- refused -------------------------------------------------------------------------------------------------------

ASKED: list[tuple[str, list[Any]]] = [
    ("add_cross_attention", [True]),
    ("attention_chunk_size", [64]),
    ("cross_attention_hidden_size", [64]),
    ("draft_vocab_size", [64]),
    ("is_causal", [False, None, 1]),
    ("is_encoder_decoder", [True, 1]),
    ("kv_sharing_modes", [["a"]]),
    ("layer_types", [["full_attention", "sliding_attention"], "full_attention"]),
    ("partial_rotary_factor", [0.5, 0, True]),
    ("per_layer_config", [{"0": {"head_dim": 8}}]),
    ("pruned_heads", [{"0": [1]}]),
    ("quantization_config", [{"quant_method": "gptq"}]),
    ("sliding_window", [8, 0, 255, "x"]),
    ("transformers_weights", ["other.safetensors"]),
]


def config_of(folder: Path, raw: dict[str, Any]) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return read_config(path)


def test_every_refused_key_is_asked_below() -> None:
    assert {key for key, _ in ASKED} == set(REFUSED) | DEPENDENT


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in ASKED for value in values])
def test_what_cannot_be_run_is_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=f"config.json: {key} is "):
        config_of(tmp_path, BASE | {key: value})


def test_a_part_of_a_head_is_refused_inside_rope_too(tmp_path: Path) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor is 0\.5"):
            config_of(tmp_path, BASE | {key: {"rope_type": "default", "partial_rotary_factor": 0.5}})


def test_values_that_change_nothing_are_taken(tmp_path: Path) -> None:
    plain = config_of(tmp_path, BASE)
    for key, refusal in REFUSED.items():
        for value in refusal.unless:
            assert config_of(tmp_path, BASE | {key: value}) == plain, key
    assert config_of(tmp_path, BASE | {"sliding_window": 256, "layer_types": ["full_attention"] * 2}) == plain
    assert config_of(tmp_path, BASE | {"partial_rotary_factor": 1.0}) == plain
    assert config_of(tmp_path, BASE | dict.fromkeys(NEUTRAL, "anything")) == plain


def test_two_rope_objects_that_differ_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    linear, yarn = {"type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0}
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        same = config_of(tmp_path, BASE | {"rope_scaling": linear, "rope_parameters": linear | {"rope_type": "linear"}})
        assert not caplog.records
        assert config_of(tmp_path, BASE | {"rope_scaling": linear, "rope_parameters": yarn}) == same
    assert "differ in rope_type; using rope_scaling" in caplog.text


# ---- honoured: through the loader, against transformers ------------------------------------------------------------

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
OUTSIDE = {"original_max_position_embeddings": 16}

SWITCHES: dict[str, list[dict[str, Any]]] = {
    "rope": [
        {},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": LLAMA3},
        {"rope_scaling": LLAMA3, **OUTSIDE},
        {"rope_scaling": YARN},
        {"rope_scaling": YARN, **OUTSIDE},
        {"rope_parameters": YARN | {"rope_theta": 1000.0, "attention_factor": 1.5, "beta_fast": 8, "truncate": False}},
        {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "beta_slow": 2}},
        {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_parameters": YARN | {"rope_theta": 500.0}},
        {"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 3.0}, **OUTSIDE},
    ],
    "theta": [{}, {"rope_theta": 500000.0}],
    "attention_bias": [{}, {"attention_bias": True}],
    "mlp_bias": [{}, {"mlp_bias": True}],
    "tie": [{}, {"tie_word_embeddings": False}],
    "head_dim": [{}, {"head_dim": None}, {"head_dim": 24}],
    "kv_heads": [{}, {"num_key_value_heads": None}, {"num_key_value_heads": 1}],
    "norm": [{}, {"rms_norm_eps": 0.05}],
    "vocabulary": [{}, {"vocab_size": 80}],
}
SIZES = {
    "attention_bias": "attention_bias", "mlp_bias": "mlp_bias", "tie_word_embeddings": "tie", "head_dim": "head_dim",
    "num_key_value_heads": "kv_heads", "vocab_size": "vocab",
}  # fmt: skip
"""Keys that change the tensors, and their names in ``TinyLlama``."""


def rows_of_all_pairs() -> list[dict[str, Any]]:
    """Configs in which every choice of every switch meets every choice of every other at least once."""
    names = list(SWITCHES)
    choices = [(name, i) for name in names for i in range(len(SWITCHES[name]))]
    left = {frozenset(pair) for pair in itertools.combinations(choices, 2) if pair[0][0] != pair[1][0]}
    rng = random.Random(0)
    rows = []
    while left:
        seed = dict(sorted(next(iter(sorted(left, key=sorted)))))
        candidates = [{n: rng.randrange(len(SWITCHES[n])) for n in names} | seed for _ in range(40)]
        best = max(candidates, key=lambda row: len(left & pairs_of(row)))
        left -= pairs_of(best)
        rows.append({key: value for name in names for key, value in SWITCHES[name][best[name]].items()})
    return rows


def pairs_of(row: dict[str, int]) -> set[frozenset[tuple[str, int]]]:
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


def folder_of(folder: Path, switches: dict[str, Any]) -> Path:
    """A folder whose config.json has the keys of ``switches`` as they are, and weights that fit them."""
    sizes = {SIZES[key]: value for key, value in switches.items() if key in SIZES}
    if "kv_heads" in sizes and sizes["kv_heads"] is None:
        sizes["kv_heads"] = TinyLlama().heads
    path = write_tiny_llama(folder, seed=5, **sizes)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | switches))
    return path


def logits_of_transformers(path: Path, tokens: torch.Tensor) -> npt.NDArray[np.float32]:
    model = transformers.LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        found: npt.NDArray[np.float32] = model(tokens).logits[0].numpy()
    return found


def assert_as_transformers(path: Path, engine: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(path, engine=engine, threads=1)
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, model.config.vocab_size, (1, 100)))
    got = model(tokens).logits[0].float().numpy()
    expected = logits_of_transformers(path, tokens)
    # The native engine keeps float16 keys and values: a part in about a thousand of the logits' spread.
    assert np.abs(got - expected).max() < 4e-3 * expected.std()


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_every_pair_of_switches_gives_the_logits_of_transformers(tmp_path: Path, engine: str) -> None:
    rows = rows_of_all_pairs()
    for number, switches in enumerate(rows if engine == "native" else rows[::4]):
        assert_as_transformers(folder_of(tmp_path / str(number), switches), engine)


def test_every_switch_makes_a_difference(tmp_path: Path) -> None:
    """Else the test above could not tell whether it is honoured."""
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, 80, (1, 100)))
    plain = logits_of_transformers(folder_of(tmp_path / "plain", {}), tokens)[:, :80]
    for name, choices in SWITCHES.items():
        for number, switches in enumerate(choices[1:]):
            if "dynamic" in json.dumps(switches) or switches == {"head_dim": None}:
                continue  # plain rope up to the context's end; the size that follows from the others
            changed = logits_of_transformers(folder_of(tmp_path / f"{name}{number}", switches), tokens)[:, :80]
            assert np.abs(changed - plain).max() > 0.05 * plain.std(), switches
