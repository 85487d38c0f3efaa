"""From checkpoints onto the torch engine: ours through our readers, other families through transformers, and saves."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ipex_lookahead import AutoModelForCausalLM, InputError, LookaheadDecoding, ModelFormatError, UnsupportedModelError
from ipex_lookahead import wrap as wrap_model
from ipex_lookahead.architectures import model_types
from ipex_lookahead.engines.torch.load import ParametersOnMeta, compute_dtype
from tests.gates import cases
from tests.support import family_table, tiny_families
from tests.support.families import CHAINS, FAMILIES, STATEFUL, build, shortfall, write
from tests.support.gguf_families import write_gguf
from tests.support.tiny import write_tiny_llama

IDS = torch.tensor([[5, 9, 33, 2, 17, 60, 5, 9, 33]])
GREEDY: dict[str, Any] = {"max_new_tokens": 32, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def load(path: Path, **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, threads=1, progress=False, **kwargs)


def logits(model: Any) -> Any:
    return model(IDS).logits


# ---- our own families ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low_bit", ["sym_int4", "asym_int4", "sym_int8", "bf16", "fp16", None])
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.rotating(4)
def test_a_saved_llama_computes_the_same_bytes_and_serves_both_engines(
    tmp_path: Path, low_bit: str | None, tie: bool
) -> None:
    folder = write_tiny_llama(tmp_path / "m", seed=3, tie=tie)
    model = load(folder, load_in_low_bit=low_bit, engine="torch", mixed_precision=tie)
    model.save_low_bit(tmp_path / "saved")
    expected = logits(model)
    shutil.rmtree(folder)
    again = load(tmp_path / "saved", engine="torch")
    assert again.low_bit == model.low_bit
    assert torch.equal(logits(again), expected)
    native = pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    assert native is not None
    other = logits(load(tmp_path / "saved", engine="native"))
    assert (other - expected).norm() < 0.06 * expected.norm()


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_auto_says_what_it_chose_and_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(tmp_path / "gpt2", "gpt2")
    caplog.set_level(logging.INFO, "ipex_lookahead")
    model = load(folder, load_in_low_bit="sym_int4")
    assert (
        model.engine.describe()["chosen"] == f"torch: the native engine has no gpt2 (it has {', '.join(model_types())})"
    )
    assert "engine: torch, since the native engine has no gpt2" in caplog.text
    with pytest.raises(UnsupportedModelError, match="gpt2") as caught:
        load(folder, engine="native")
    assert "torch" in caught.value.hint


def test_auto_takes_the_native_engine_where_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    folder = write_tiny_llama(tmp_path / "m")
    assert load(folder).engine.describe()["chosen"].startswith("native: llama is supported")
    file = write_gguf(tmp_path / "m.gguf", tiny_families.build("qwen3", family_table.variants("qwen3")[0]))
    assert load(file).engine.describe()["chosen"].startswith("native: qwen3 is supported")  # what was loaded
    assert load(folder, device="cpu").engine.name == "native"
    from ipex_lookahead.engines.native import core

    monkeypatch.setattr(core, "_missing", ImportError("no such file"))
    found = load(folder)
    assert found.engine.describe()["chosen"] == "torch: the native core is not built (no such file)"


def test_options_of_another_engine_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    for kwargs, said in (
        ({"engine": "torch", "kv_cache": "int8"}, "kv_cache='int8' is not for the torch engine"),
        ({"engine": "torch", "device_map": "balanced"}, "device_map='balanced'.*device 'cpu', 'xpu' or 'cuda'"),
        ({"engine": "torch", "speculative": True}, "speculative=True needs the native"),
        ({"engine": "torch", "dtype": "int8"}, "dtype is 'int8'"),
        ({"engine": "torch", "device": "tpu"}, "device is 'tpu'"),
        ({"engine": "native", "device": "cuda"}, "the native engine runs on the CPU"),
    ):
        with pytest.raises(InputError, match=said):
            load(folder, **kwargs)


def test_the_dtype_follows_what_is_asked_and_what_is_there() -> None:
    cpu, xpu = torch.device("cpu"), torch.device("xpu")
    assert compute_dtype("torch.bfloat16", "sym_int4", cpu) is torch.bfloat16
    assert compute_dtype(torch.float16, "fp32", cpu) is torch.float16
    assert compute_dtype(None, "sym_int4", cpu, "bfloat16") is torch.float32
    assert compute_dtype("auto", "sym_int4", xpu, "bfloat16") is torch.bfloat16
    assert compute_dtype(None, "sym_int4", xpu) is torch.float16
    assert compute_dtype(None, "fp16", cpu) is torch.float32
    assert compute_dtype(None, "fp16", xpu) is torch.float16
    assert compute_dtype(None, "bf16", cpu) is torch.bfloat16


# ---- other families --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "opt", "falcon", "bloom", "gpt_neox", "phi", "gemma2", "mixtral"])
@pytest.mark.parametrize("low_bit", ["sym_int4", "sym_int8", None])
@pytest.mark.rotating(4)
def test_another_family_loads_saves_and_looks_ahead(tmp_path: Path, name: str, low_bit: str | None) -> None:
    engine = "torch" if name in model_types() else "auto"
    model = load(write(tmp_path / "m", name), load_in_low_bit=low_bit, engine=engine)
    assert model.engine.name == "torch"
    assert model.engine.describe()["low_bit"] == (low_bit or "fp32")
    plain = model.generate(IDS, **GREEDY)
    for strategy in (4, "auto"):
        assert shortfall(lambda ids: model(ids).logits, model.generate(IDS, lookahead=strategy, **GREEDY), 9) < 0.2
    if low_bit is None:
        theirs = build(name).generate(IDS, attention_mask=torch.ones_like(IDS), **GREEDY)
        assert shortfall(lambda ids: build(name)(ids).logits, plain, 9) < 0.01
        assert theirs.shape == plain.shape
    else:
        assert model.engine.describe()["backends"]["linear"]
    model.save_low_bit(tmp_path / "saved")
    shutil.rmtree(tmp_path / "m")
    again = load(tmp_path / "saved", engine=engine)
    assert again.low_bit == model.low_bit
    assert torch.equal(logits(again), logits(model))
    assert again.generation_config.eos_token_id == model.generation_config.eos_token_id


def test_packed_weights_take_the_memory_of_their_format(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "gpt2", n_embd=256, vocab_size=512)
    size = {low: load(folder, load_in_low_bit=low).engine.describe()["weight_bytes"] for low in (None, "sym_int4")}
    assert size["sym_int4"] < 0.45 * size[None]  # the embeddings stay as they are


def test_what_cannot_run_is_refused_before_its_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "m", next(iter(STATEFUL)))
    monkeypatch.delattr("transformers.PreTrainedModel.from_pretrained")  # what would read them
    with pytest.raises(UnsupportedModelError, match="recurrent state"):
        load(folder)


def test_damaged_and_strange_folders_are_errors_with_a_sentence(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "gpt2")
    config = json.loads((folder / "config.json").read_text())

    def with_config(**changes: Any) -> Path:
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        return folder

    with pytest.raises(UnsupportedModelError, match="neither to this package nor to transformers"):
        load(with_config(model_type="gpt9"))
    with pytest.raises(UnsupportedModelError, match="quantized already") as caught:
        load(with_config(quantization_config={"quant_method": "gptq", "bits": 4}))
    assert "wrap" in caught.value.hint
    with pytest.raises(UnsupportedModelError, match="cannot load this gpt2 model"):
        load(with_config(n_embd=48))
    with pytest.raises(ModelFormatError, match="is missing from the checkpoint"):
        load(with_config(n_layer=3))
    weights = (with_config() / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ModelFormatError, match=r"model\.safetensors"):
        load(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="pickle"):
        load(folder)


def test_nothing_of_another_familys_code_is_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "gpt2")
    (folder / "modeling_evil.py").write_text("raise SystemExit('this must never run')")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "modeling_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
    config["_attn_implementation"] = config["attn_implementation"] = "someone/evil-kernels"
    (folder / "config.json").write_text(json.dumps(config))
    model = load(folder, trust_remote_code=True)
    model.save_low_bit(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert not {"auto_map", "_attn_implementation", "attn_implementation"} & set(saved)


def test_a_saved_folder_that_lost_a_tensor_is_an_error(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    load(write(tmp_path / "m", "gpt2"), load_in_low_bit="sym_int4").save_low_bit(tmp_path / "saved")
    with pytest.raises(InputError, match="saved in sym_int4, but sym_int8"):
        load(tmp_path / "saved", load_in_low_bit="sym_int8")
    file = tmp_path / "saved" / "model.safetensors"
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        metadata = opened.metadata()
    del tensors["transformer.h.1.ln_2.weight"]
    save_file(tensors, file, metadata)
    with pytest.raises(ModelFormatError, match=r"transformer\.h\.1\.ln_2\.weight.*missing"):
        load(tmp_path / "saved")


def test_parameters_have_no_memory_before_they_are_loaded() -> None:
    with ParametersOnMeta():
        model = build_without_scaling()
    assert {p.device.type for p in model.parameters() if p.dim() > 1} == {"meta"}
    assert {b.device.type for b in model.buffers()} == {"cpu"}


def build_without_scaling() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**FAMILIES["llama"][1]))


# ---- a model in hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.rotating(3)
def test_a_wrapped_model_generates_its_own_text(name: str) -> None:
    model = build(name)
    attention = model.config._attn_implementation
    wrapped = wrap_model(model)
    plain = wrapped.generate(IDS, **GREEDY)
    assert shortfall(lambda ids: model(ids).logits, plain, 9) < 0.01
    for strategy in ("prompt_lookup", "suffix", "recycling", "auto"):
        from ipex_lookahead import LookaheadConfig

        config = LookaheadConfig(strategy=strategy, num_draft_tokens=6, adaptive=False)
        ids = wrapped.generate(IDS, lookahead=config, **GREEDY)
        assert shortfall(lambda ids: model(ids).logits, ids, 9) < 0.01
    assert wrapped.stats.drafted > 0
    assert model.config._attn_implementation == attention  # nothing of it has been changed
    assert wrap_model(wrapped) is wrapped
    ours = model.generate(IDS, attention_mask=torch.ones_like(IDS), **GREEDY)
    assert shortfall(lambda ids: model(ids).logits, ours, 9) < 0.01


def test_lookahead_decoding_wraps_by_itself() -> None:
    model = build("gpt2")
    decoding = LookaheadDecoding(model=model, W=3, N=3, G=2, adaptive=False)
    ids = decoding.generate(IDS, 32, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert shortfall(lambda ids: model(ids).logits, ids, 9) < 0.01
    assert decoding.model.stats.drafted > 0
    with pytest.raises(InputError, match="needs draft trees.*slides over 8"):
        LookaheadDecoding(build(CHAINS[-1]))
    with pytest.raises(UnsupportedModelError, match="not a transformers model"):
        LookaheadDecoding(object())


class EightBits(torch.nn.Module):
    """A linear layer as another library might quantise it: no ``weight`` of a float dtype anywhere."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("codes", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.codes * self.scale)


def test_a_model_that_another_library_quantised_runs_as_it_is() -> None:
    model = build("llama")
    for layer in model.model.layers:
        for owner in (layer.self_attn, layer.mlp):
            for name, child in list(owner.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(owner, name, EightBits(child))
    wrapped = wrap_model(model)
    plain = wrapped.generate(IDS, **GREEDY)
    assert shortfall(lambda ids: model(ids).logits, plain, 9) < 0.01
    out = wrapped.generate(IDS, lookahead=5, adaptive=False, **GREEDY)
    assert shortfall(lambda ids: model(ids).logits, out, 9) < 0.01
    assert wrapped.stats.drafted > 0


@pytest.mark.parametrize("tokens", [3, 20])
@pytest.mark.parametrize("low_bit", ["sym_int4", None])
@pytest.mark.rotating(2)
def test_deterministic_text_is_the_same_with_lookahead(tmp_path: Path, low_bit: str | None, tokens: int) -> None:
    from ipex_lookahead import LookaheadConfig

    model = load(write(tmp_path / "m", "gpt2"), load_in_low_bit=low_bit, deterministic=True)
    for options in (GREEDY, {**GREEDY, "do_sample": True, "temperature": 0.9, "seed": 3}):
        options = {**options, "max_new_tokens": cases(60, 150)}
        plain = model.generate(IDS, **options)
        for strategy in ("prompt_lookup", "suffix", "recycling", "auto"):
            config = LookaheadConfig(strategy=strategy, num_draft_tokens=tokens, adaptive=False)
            assert torch.equal(model.generate(IDS, lookahead=config, **options), plain)
            assert model.stats.drafted > 0
