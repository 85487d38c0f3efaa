"""Every public name that the model has from torch and transformers: real, harmless as inherited, or refused."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, InputError, wrap
from ipex_lookahead.hf.model import LookaheadModelForCausalLM
from ipex_lookahead.hf.modeling.refused import REFUSED
from tests.hf.test_model import build
from tests.support.scripted_engine import markov
from tests.support.tiny import TinyLlama, write_tiny_llama

IDS = torch.tensor([[5, 9, 33, 2, 17, 60]])

HARMLESS = {
    "facts about the class": """
        T_destination call_super_init can_record_outputs dummy_inputs dump_patches framework generation_config_class
        input_modalities is_custom_code is_parallelizable is_remote_code loss_function output_modalities
        supports_context_parallel supports_gradient_checkpointing supports_pp_plan supports_tp_plan""",
    "there are no modules inside and no buffers": """
        add_memory_hooks add_module apply base_model buffers children get_buffer get_submodule modules named_buffers
        named_children named_modules named_non_persistent_buffers register_buffer register_module register_parameter
        reset_memory_hooks_state retrieve_modules_from_names smart_apply""",
    "off, and stays off": """
        activation_checkpointing_disable ep_plan fsdp_plan fsdp_size
        gradient_checkpointing_disable is_activation_checkpointing is_distributed_loading_by_transformers
        is_gradient_checkpointing pp_plan should_save_on_this_rank tp_plan tp_size use_kernels""",
    "transformers' own steps when a class of its own is made or loaded": """
        adjust_generation_fn get_correct_attn_implementation get_correct_experts_implementation
        get_expanded_tied_weights_keys get_experts_implementation get_init_context init_parallel_plans
        is_backend_compatible mark_tied_weights_as_initialized""",
    "functions of their arguments": """
        create_extended_attention_mask_for_decoder estimate_tokens floating_point_ops get_extended_attention_mask
        get_head_mask invert_attention_mask warn_if_padding_and_no_attention_mask""",
    "they work: forward is a module's": """
        compute_transition_scores eval register_forward_hook register_forward_pre_hook""",
    "a list of words": "add_model_tags model_tags",
}
HARMLESS_NAMES = {name for names in HARMLESS.values() for name in names.split()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "m", seed=5, tie=False)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load(folder, load_in_low_bit="sym_int4")


def load(folder: Path, **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, threads=1, progress=False, **kwargs)


def inherited() -> set[str]:
    """Public names whose meaning is not this package's."""
    cls = LookaheadModelForCausalLM
    ours = {name for c in cls.__mro__ if c.__module__.startswith("ipex_lookahead.") for name in vars(c)}
    return {name for name in dir(cls) if not name.startswith("_") and (name not in ours or name in REFUSED)}


def test_every_inherited_name_has_been_looked_at() -> None:
    """A name here that stands in no list is new in torch or transformers: try it, and say what it is for us."""
    assert inherited() - HARMLESS_NAMES - set(REFUSED) == set()
    assert not HARMLESS_NAMES & set(REFUSED)


@pytest.mark.parametrize("name", sorted(set(REFUSED) & set(dir(LookaheadModelForCausalLM))))
def test_refused_names_say_what_to_use(model: Any, name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} is not for this model; .*(model|generate|engine|load)"):
        getattr(model, name)("some", argument=1)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers on its own former names
def test_harmless_names_change_nothing(folder: Path) -> None:
    model = load(folder)
    before = model(IDS).logits
    for name in sorted(HARMLESS_NAMES & set(dir(model))):
        value = getattr(model, name)
        if not inspect.isroutine(value):
            continue
        needed = [p for p in inspect.signature(value).parameters.values() if p.default is p.empty]
        if all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in needed):
            value()
    assert torch.equal(model(IDS).logits, before)
    assert [name for name, _ in model.named_modules()] == [""]
    assert list(model.buffers()) == []


def test_hooks_of_a_forward_are_called(folder: Path) -> None:
    model, seen = load(folder), []
    handle = model.register_forward_hook(lambda module, args, output: seen.append(output.logits.shape))
    model(IDS)
    handle.remove()
    model(IDS)
    assert seen == [(1, 6, 96)]


def test_transition_scores_are_those_of_the_tokens(model: Any) -> None:
    out = model.generate(IDS, max_new_tokens=5, eos_token_id=None, return_dict_in_generate=True, output_scores=True)
    found = model.compute_transition_scores(out.sequences, out.scores)
    chosen = zip(out.scores, out.sequences[0, 6:].tolist(), strict=True)
    assert found.tolist() == [[float(score[0, token]) for score, token in chosen]]


# ---- weights ----


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("low_bit", [None, "sym_int8"])
def test_weights_are_counted_and_handed_out(tmp_path: Path, tie: bool, engine: str, low_bit: str | None) -> None:
    sizes = {"tie": tie, "attention_bias": True}
    folder, shapes = write_tiny_llama(tmp_path / "m", **sizes), TinyLlama(**sizes).shapes()
    model = load(folder, engine=engine, load_in_low_bit=low_bit)
    reference = LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
    assert model.num_parameters() == reference.num_parameters()
    assert model.num_parameters(exclude_embeddings=True) == reference.num_parameters(exclude_embeddings=True)
    assert model.num_parameters(only_trainable=True) == 0
    assert model.get_memory_footprint() == model.engine.describe()["weight_bytes"] > 0
    named = dict(model.named_parameters())
    assert set(shapes) <= set(named)
    assert [tuple(named[name].shape) for name in shapes] == list(shapes.values())
    first = next(model.parameters())
    assert (first.device, first.dtype, first.requires_grad) == (model.device, torch.float32, False)
    assert torch.equal(model.get_parameter("model.norm.weight"), reference.get_parameter("model.norm.weight"))
    state = model.state_dict()
    assert {f"a.{name}" for name in state} == set(model.state_dict(prefix="a."))
    reference.load_state_dict(state)
    # The packed model rounds activations and keeps keys and values in float16.
    torch.testing.assert_close(model(IDS).logits, reference(IDS).logits, atol=0.02 if low_bit is None else 0.5, rtol=0)


def test_a_parameter_that_is_not_there(model: Any) -> None:
    with pytest.raises(InputError, match="there is no parameter 'model.norm'; the names are those of"):
        model.get_parameter("model.norm")


def test_an_engine_that_keeps_its_weights_says_so() -> None:
    model = build(markov())
    for call in (model.num_parameters, model.state_dict, lambda: list(model.parameters())):
        with pytest.raises(InputError, match="the scripted engine cannot return its weights"):
            call()


def test_a_wrapped_model_answers_with_its_own_parameters(folder: Path) -> None:
    theirs = LlamaForCausalLM.from_pretrained(folder)
    model = wrap(theirs)
    assert model.num_parameters() == theirs.num_parameters()
    assert next(model.parameters()) is next(theirs.parameters())
    assert list(model.state_dict()) == list(theirs.state_dict())


# ---- what a harness asks ----


def test_names_of_the_model(model: Any, folder: Path) -> None:
    assert model.name_or_path == model.config._name_or_path == str(model.source) == str(folder)
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    assert not hasattr(model, "hf_device_map")
    assert model.config.vocab_size == 96
    assert model.tie_weights() is None
    assert model.eval() is model.train(False) is model.requires_grad_(False) is model
    for call in (model.train, model.requires_grad_):
        with pytest.raises(InputError, match="cannot train the model; train the original"):
            call()
    assert not model.training


@pytest.mark.parametrize("place", ["ipu", "mtia"])
def test_rare_devices_are_refused_as_any_other(model: Any, place: str) -> None:
    with pytest.raises(InputError, match=f"runs on the CPU and cannot move to {place}"):
        getattr(model, place)()


@pytest.mark.parametrize("device_map", [None, "auto", "cpu", {"": "cpu"}, torch.device("cpu")])
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_device_map_of_the_cpu(folder: Path, device_map: Any, engine: str) -> None:
    model = load(folder, engine=engine, device_map=device_map)
    assert (model.engine.name, model.device.type) == (engine, "cpu")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"device_map": "balanced"}, "device_map='balanced' is not supported.*device 'cpu', 'xpu' or 'cuda'"),
        ({"device_map": {"model": 0, "lm_head": "cpu"}}, "is not supported: an engine runs a model on one device"),
        ({"device_map": "cuda", "engine": "native"}, "native engine runs on the CPU, not on 'cuda'"),
        ({"device_map": {"": 0}, "engine": "native"}, "not on 'cuda:0'"),
        ({"device_map": "xpu:1", "device": "cpu"}, "device='cpu' and device_map='xpu:1' name two devices"),
    ],
)
def test_other_device_maps_mean_the_device_or_are_refused(folder: Path, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(folder, **kwargs)


def test_a_device_map_chooses_the_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def check_device(device: Any) -> torch.device:
        asked.append(device)
        return torch.device("cpu")

    monkeypatch.setattr("ipex_lookahead.engines.torch.load.check_device", check_device)
    assert load(folder, device_map="cuda:1").engine.name == "torch"
    assert asked == ["cuda:1"]
