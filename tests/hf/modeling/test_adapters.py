"""Adapters under transformers' names, and their logits against transformers' with peft's formula in float32."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5.23", reason="older transformers lack these families")

from ipex_lookahead import AutoModelForCausalLM, CacheFileError, InputError
from tests.support.adapter_files import Change, random_changes, write_peft
from tests.support.family_table import variants
from tests.support.tiny_families import build, distance, logits, text, write_folder

TEXT = torch.tensor([[5, 9, 33, 2, 17, 60, 41, 8, 8, 70, 3, 26], [7, 7, 90, 4, 4, 4, 12, 51, 29, 30, 31, 6]])
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
KINDS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "attention only": ("llama", ATTENTION, {}),
    "all linear": ("qwen3", (*ATTENTION, "gate_proj", "up_proj", "down_proj"), {"lora_alpha": 5}),
    "patterns and rsLoRA": (
        "llama",
        ("q_proj", "down_proj", "v_proj"),
        {"r": 4, "lora_alpha": 6, "use_rslora": True, "rank_pattern": {"q_proj": 7}, "alpha_pattern": {"down_proj": 3}},
    ),
    "fused": ("phi3", ("qkv_proj", "gate_up_proj", "o_proj"), {}),
}
"""The kinds of adapters: family, modules, and keys of the config that differ from ``write_peft``'s."""


def changes_of(model: Any, modules: tuple[str, ...], config: dict[str, Any], seed: int = 0) -> dict[str, Change]:
    """Changes of a transformers model's modules with these last names."""
    ranks = {module: config.get("rank_pattern", {}).get(module, config.get("r", 4)) for module in modules}
    made: dict[str, Change] = {}
    for name, weight in model.state_dict().items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in modules and ".layers." in name:
            shape = (weight.shape[0], weight.shape[1])
            made |= random_changes({module: shape}, ranks[module.rpartition(".")[2]], seed + len(made))
    return made


def adapted(model: Any, changes: dict[str, Change], config: dict[str, Any]) -> Any:
    """A copy of the model with peft's formula in its modules: y + scale * B (A x)."""
    twin = copy.deepcopy(model)
    modules = dict(twin.named_modules())
    for name, (a, b) in changes.items():
        alpha = config.get("alpha_pattern", {}).get(name.rpartition(".")[2], config.get("lora_alpha", 2 * len(a)))
        scale = alpha / (len(a) ** 0.5 if config.get("use_rslora") else len(a))
        a_t, b_t = torch.from_numpy(a).T, torch.from_numpy(b).T
        add = lambda _, given, y, a_t=a_t, b_t=b_t, scale=scale: y + given[0] @ a_t @ b_t * scale  # noqa: E731
        modules[name].register_forward_hook(add)
    return twin


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_transformers_with_the_adapter_in_float32(tmp_path: Path, kind: str, engine: str) -> None:
    """The native engine's keys and values are float16, which bounds its distance; torch's are float32."""
    close = {"native": 2e-2, "torch": 1e-5}[engine]
    family, modules, config = KINDS[kind]
    base = build(family, variants(family)[0])
    changes = changes_of(base, modules, config)
    write_peft(tmp_path / "adapter", changes, **config)
    model = load(write_folder(tmp_path / "model", base), dtype="float32", engine=engine)
    model.load_adapter(tmp_path / "adapter", "a")
    ids = text(base)
    expected = logits(adapted(base, changes, config), ids)
    assert distance(model(torch.from_numpy(ids)[None].long()).logits, expected) < close
    assert distance(logits(base, ids), expected) > 0.2
    plain = model(torch.from_numpy(ids)[None].long(), adapter=None).logits
    assert distance(plain, logits(base, ids)) < close


def load(folder: Path, **options: Any) -> Any:
    options = {"threads": 1, "progress": False, "engine": "native", **options}
    return AutoModelForCausalLM.from_pretrained(folder, **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    model = build("llama", variants("llama")[0])
    found = {"model": write_folder(root / "model", model)}
    for seed, name in enumerate(("one", "two")):
        changes = changes_of(model, (*ATTENTION, "down_proj"), {}, seed * 100)
        found[name] = write_peft(root / name, changes)
    return found


@pytest.fixture
def model(folders: dict[str, Path]) -> Any:
    made = load(folders["model"], load_in_low_bit="sym_int8")
    for name in ("one", "two"):
        made.load_adapter(folders[name], name)
    return made


SETTINGS = {"max_new_tokens": 12, "eos_token_id": None}


def answers(model: Any, ids: torch.Tensor = TEXT[:1], **options: Any) -> list[list[int]]:
    found: list[list[int]] = model.generate(ids, **{**SETTINGS, **options}).tolist()
    return found


def test_the_active_adapter_and_the_one_of_a_call(model: Any) -> None:
    base, one, two = (answers(model, adapter=name) for name in (None, "one", "two"))
    half = answers(model, adapter="one", adapter_scale=0.5)
    assert len({str(found) for found in (base, one, two, half)}) == 4
    assert answers(model, adapter="one", adapter_scale=0) == base
    assert model.active_adapters() == ["one"]  # the first that was loaded
    assert answers(model) == one
    model.set_adapter("two")
    assert (model.active_adapters(), answers(model)) == (["two"], two)
    model.disable_adapters()
    assert (model.active_adapters(), answers(model)) == ([], base)
    model.enable_adapters()
    assert answers(model) == two
    model.set_adapter(["one"])
    assert answers(model) == one
    model.set_adapter(None)
    assert answers(model) == base
    assert model.engine.describe()["adapters"] == 2


def test_drafts_and_streams_do_not_change_what_an_adapter_says(model: Any) -> None:
    settings: list[dict[str, Any]] = [{}, {"do_sample": True, "seed": 3, "temperature": 0.9}]
    for sampled in settings:
        for adapter in ("one", "two", None):
            plain = answers(model, adapter=adapter, **sampled)
            assert answers(model, adapter=adapter, lookahead=3, adaptive=False, **sampled) == plain
            new = plain[0][TEXT.shape[1] :]
            assert list(model.stream(TEXT[:1], adapter=adapter, lookahead="auto", **SETTINGS, **sampled)) == new


def test_each_row_of_a_batch_may_have_its_own_adapter(model: Any) -> None:
    ids = torch.cat([TEXT, TEXT])
    names = ["one", None, "two", "one"]
    together = answers(model, ids, adapter=names, lookahead=2)
    for row, name in enumerate(names):
        assert [together[row]] == answers(model, ids[row : row + 1], adapter=name)
    twice = answers(model, TEXT, adapter=["two", "one"], num_return_sequences=2, do_sample=True, seed=4)
    each = [answers(model, TEXT[row // 2 : row // 2 + 1], adapter=("two", "one")[row // 2], do_sample=True, seed=4,
                    sequence_ids=[row])[0] for row in range(4)]  # fmt: skip
    assert twice == each
    with pytest.raises(InputError, match="adapter has 2 names for 4 prompts"):
        answers(model, ids, adapter=["one", "two"])
    for wrong in (5, {"one": 1}, [["one"], None, None, None]):
        with pytest.raises(InputError, match="there is no adapter"):
            answers(model, ids, adapter=wrong)


def test_past_key_values_belong_to_the_adapter_that_computed_them(
    model: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    more = torch.tensor([[1, 2], [3, 4]])
    whole = torch.cat([TEXT, more], 1)
    out = model(TEXT, adapter="one", use_cache=True)
    past = copy.deepcopy(out.past_key_values)
    assert torch.equal(model(more, past_key_values=past).logits, model(whole, adapter="one").logits[:, -2:])
    others: list[dict[str, Any]] = [{"adapter": "two"}, {"adapter": None}, {"adapter_scale": 0.5}]
    for wrong in others:
        with pytest.raises(InputError, match="past_key_values were computed with another adapter"):
            model(more, past_key_values=copy.deepcopy(out.past_key_values), **wrong)
    for adapter in ("one", "two", None):  # generate computes anew what it cannot use
        past = copy.deepcopy(out.past_key_values)
        assert answers(model, whole, adapter=adapter, past_key_values=past) == answers(model, whole, adapter=adapter)
        assert model.stats.cached_tokens == 0
        again = answers(model, whole, adapter=adapter, past_key_values=past)
        assert model.stats.cached_tokens > 0
        assert again == answers(model, whole, adapter=adapter)
    out.past_key_values.save(tmp_path / "a.cache")
    loaded = model.load_cache(tmp_path / "a.cache")
    assert torch.equal(model(more, past_key_values=loaded).logits, model(whole, adapter="one").logits[:, -2:])
    model.delete_adapter("one")
    with pytest.raises(CacheFileError, match="was computed with an adapter that is not loaded"):
        model.load_cache(tmp_path / "a.cache")
    model.load_adapter(folders["one"], "again")
    assert model.load_cache(tmp_path / "a.cache").get_seq_length() == 12


def test_the_prefix_cache_of_a_folder_keeps_adapters_apart(model: Any, tmp_path: Path, folders: Any) -> None:
    cached = load(folders["model"], load_in_low_bit="sym_int8", kv_cache_dir=tmp_path)
    cached.load_adapter(folders["one"], "one")
    ids = torch.arange(90)[None] % 90 + 1
    for adapter in ("one", None):
        answer = answers(model, ids, adapter=adapter)
        assert answers(cached, ids, adapter=adapter) == answer
        assert cached.stats.cached_tokens == 0
        assert answers(cached, ids, adapter=adapter) == answer
        assert cached.stats.cached_tokens == 89


def test_names_that_are_not_loaded_and_what_is_refused(model: Any, folders: dict[str, Path], tmp_path: Path) -> None:
    for call in (
        lambda: model.set_adapter("three"),
        lambda: model.delete_adapter(["one", "three"]),
        lambda: answers(model, adapter="three"),
        lambda: model(TEXT, adapter="three"),
    ):
        with pytest.raises(InputError, match="there is no adapter 'three'; loaded adapters: one, two"):
            call()
    with pytest.raises(InputError, match="2 adapters are given; one at a time"):
        model.set_adapter(["one", "two"])
    with pytest.raises(InputError, match="no such adapter"):
        model.load_adapter(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"model\.load_adapter\(path, name\)"):
        model.add_adapter({})
    model.load_adapter(folders["two"], "one")  # replaces it
    assert answers(model, adapter="one") == answers(model, adapter="two")
    model.delete_adapter(["one", "two"])
    assert model.active_adapters() == []


def test_copies_share_adapters_and_pickles_read_them_again(model: Any) -> None:
    model.set_adapter("two")
    expected = answers(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.active_adapters() == ["two"]
        assert answers(twin) == expected
        assert answers(twin, adapter="one") == answers(model, adapter="one")
