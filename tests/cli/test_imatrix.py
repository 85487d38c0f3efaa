"""``imatrix`` and ``quantize --imatrix``: what is measured is what transformers' layers get; it changes the codes."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM as Theirs

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.imatrix import read_imatrix, write_imatrix
from ipex_lookahead.cli.main import run
from ipex_lookahead.engines.torch.importance import measure_importance
from ipex_lookahead.errors import InputError, ModelFormatError
from tests.support.chat_tokenizer import SIZE, chat_tokenizer, write_chat_llama
from tests.support.family_table import VOCAB, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny import write_tiny_gguf
from tests.support.tiny_families import build, config_of, with_weights, write_folder

PROGRAM = os.environ.get("IPEX_LOOKAHEAD_LLAMA_QUANTIZE") or shutil.which("llama-quantize")
TEXT = "the cat sat on the mat and the dog sat on the cat. " * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chat_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


def test_sums_are_those_of_transformers_in_float64(folder, text, tmp_path, capsys):
    import torch
    from transformers import AutoModelForCausalLM as Theirs

    out = tmp_path / "m.gguf"
    assert run(["imatrix", "-m", str(folder), "--text", str(text), "--to", str(out), "--tokens", "70",
                "--window", "32", "--threads", "1"]) == 0  # fmt: skip
    assert "15 matrices, 70 tokens of text.txt" in capsys.readouterr().out
    found = read_imatrix(out)
    assert found.datasets == ("text.txt",)

    model = Theirs.from_pretrained(folder, dtype=torch.float64).eval()
    ids = chat_tokenizer()(TEXT, add_special_tokens=False)["input_ids"][:70]
    inputs: dict[str, list[torch.Tensor]] = {}
    modules = {
        "token_embd": "lm_head", "blk.1.attn_q": "model.layers.1.self_attn.q_proj",
        "blk.0.attn_output": "model.layers.0.self_attn.o_proj", "blk.1.ffn_down": "model.layers.1.mlp.down_proj",
    }  # fmt: skip
    for name, module in modules.items():
        model.get_submodule(module).register_forward_pre_hook(
            lambda _, given, name=name: inputs.setdefault(name, []).append(given[0][0])
        )
    with torch.no_grad():
        for start in (0, 32, 64):
            model(torch.tensor([ids[start : start + 32]]))
    for name, rows in inputs.items():
        expected = torch.cat(rows).square().mean(dim=0).numpy()
        np.testing.assert_allclose(found.means[f"{name}.weight"], expected, rtol=2e-5)


def codes(path, **how):
    model = AutoModelForCausalLM.from_pretrained(path, progress=False, threads=1, **how)
    return {name: weight.codes for name, weight in model.engine.weights() if weight.format != "fp32"}


def test_quantising_with_it_changes_codes_alike_everywhere(text, tmp_path, capsys):
    file = write_tiny_gguf(tmp_path / "m.gguf", quant="F16", vocab=SIZE, tie=True)
    matrix = tmp_path / "i.gguf"
    checkpoint = open_checkpoint(file)
    sizes = {t.gguf.name: t.shape[1] for t in checkpoint.spec.tensors() if t.is_matrix}
    checkpoint.close()
    rng = np.random.default_rng(0)
    sums = {name: rng.random(n) ** 6 for name, n in sizes.items()}
    write_imatrix(matrix, sums, dict.fromkeys(sums, 1), dataset="x", chunks=1, chunk=1)

    plain, weighted = codes(file, load_in_low_bit="sym_int4"), codes(file, load_in_low_bit="sym_int4", imatrix=matrix)
    assert any((plain[name] != weighted[name]).any() for name in plain)
    out = tmp_path / "out"
    assert run(["quantize", str(file), str(out), "--low-bit", "sym_int4", "--imatrix", str(matrix)]) == 0
    saved = codes(out)
    assert saved.keys() == weighted.keys()
    assert all((saved[name] == weighted[name]).all() for name in saved)


def test_what_has_no_effect_or_cannot_be_is_refused(folder, text, tmp_path, capsys):
    file = write_tiny_gguf(tmp_path / "m.gguf", quant="Q4_1")
    assert run(["quantize", str(file), str(tmp_path / "out"), "--imatrix", "x.dat"]) == 2
    assert "--imatrix needs --low-bit" in capsys.readouterr().err
    with pytest.raises(InputError, match="imatrix needs quantization"):
        AutoModelForCausalLM.from_pretrained(folder, imatrix="x.dat", progress=False)
    with pytest.raises(ModelFormatError, match=r"x\.dat.*cannot be opened"):
        AutoModelForCausalLM.from_pretrained(folder, imatrix=tmp_path / "x.dat", load_in_low_bit="q4_k", progress=False)
    out = tmp_path / "o.gguf"
    for arguments, what in (
        (["--text", str(text), "--to", str(tmp_path / "no" / "o.gguf")], "no folder"),
        (["--text", str(text), "--to", str(file)], "exists"),
    ):
        assert run(["imatrix", "-m", str(folder), *arguments]) == 1
        assert what in capsys.readouterr().err
    text.write_bytes(b"\xff\xfe")
    assert run(["imatrix", "-m", str(folder), "--text", str(text), "--to", str(out)]) == 1
    assert "cannot be read as UTF-8 text" in capsys.readouterr().err
    text.write_text("")
    assert run(["imatrix", "-m", str(folder), "--text", str(text), "--to", str(out)]) == 1
    assert "has no tokens" in capsys.readouterr().err
    assert not out.exists()
    assert not list(tmp_path.glob(".*saving*"))


def gated(model, gate, up):
    """What a family makes of an expert's gate and up, restated."""
    if model == "gpt_oss":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    return gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_each_expert_of_a_mixture_has_the_tokens_that_went_to_it(name, tmp_path, capsys):
    import torch
    from transformers import AutoModelForCausalLM as Theirs

    folder, out = write_folder(tmp_path / name, build(name, variants(name)[0])), tmp_path / "m.gguf"
    ids = np.random.default_rng(0).integers(3, VOCAB, 40).tolist()
    measured = AutoModelForCausalLM.from_pretrained(folder, engine="torch", dtype="float32", progress=False)
    checkpoint = open_checkpoint(folder)
    made = measure_importance(measured.engine.model, checkpoint.spec, ids, window=16)
    checkpoint.close()
    write_imatrix(out, made.sums, made.counts, dataset="x", chunks=3, chunk=16)
    found = read_imatrix(out)

    model = Theirs.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()
    moe = model.model.layers[1].mlp
    inputs, chosen = [], []
    moe.register_forward_pre_hook(lambda _, given: inputs.append(given[0][0]))
    router = moe.router if name == "gpt_oss" else moe.gate
    router.register_forward_hook(lambda _, given, made: chosen.append(made[2]))
    with torch.no_grad():
        for start in (0, 16, 32):
            model(torch.tensor([ids[start : start + 16]]))
    rows, went = torch.cat(inputs).numpy(), torch.cat(chosen).numpy()
    parts = {key: value.detach().numpy() for key, value in moe.experts.named_parameters()}
    experts = len(parts["down_proj"])
    counts = [(went == expert).any(axis=1).sum() for expert in range(experts)]
    assert sum(counts) == went.size
    means = {part: found.means[f"blk.1.ffn_{part}_exps.weight"].reshape(experts, -1) for part in ("gate", "up", "down")}
    for expert in range(experts):
        mine = rows[(went == expert).any(axis=1)]
        if len(mine) == 0:
            assert all((of[expert] == 1).all() for of in means.values())
            continue
        if name == "gpt_oss":
            both = mine @ parts["gate_up_proj"][expert] + parts["gate_up_proj_bias"][expert]
            gate, up = both[:, ::2], both[:, 1::2]
        else:
            gate, up = np.split(mine @ parts["gate_up_proj"][expert].T, 2, axis=1)
        for part, given in (("gate", mine), ("up", mine), ("down", gated(name, gate, up))):
            np.testing.assert_allclose(means[part][expert], np.square(given).mean(axis=0), rtol=5e-5)

    assert run(["quantize", str(folder), str(tmp_path / "saved"), "--low-bit", "sym_int4", "--imatrix", str(out)]) == 0
    assert "has no entry for" not in capsys.readouterr().err


@pytest.mark.skipif(
    not PROGRAM, reason="llama.cpp's llama-quantize is not on the path, nor named by IPEX_LOOKAHEAD_LLAMA_QUANTIZE"
)
@pytest.mark.parametrize("name", ["qwen2", "qwen3_moe"])
def test_llama_quantize_reads_it(name, tmp_path):
    model = build(name, variants(name)[0])
    file = write_gguf(tmp_path / "m.gguf", model, quant="F16")
    checkpoint = open_checkpoint(file)
    shapes = {t.gguf.name: (*t.gguf.shape[:-2], t.shape[1]) for t in checkpoint.spec.tensors() if t.is_matrix}
    checkpoint.close()
    sums, counts = ({at: np.ones(shape[:n]) for at, shape in shapes.items()} for n in (2, -1))
    write_imatrix(tmp_path / "i.gguf", sums, counts, dataset="x.txt", chunks=1, chunk=1)
    done = subprocess.run(
        [str(PROGRAM), "--imatrix", str(tmp_path / "i.gguf"), str(file), str(tmp_path / "o.gguf"), "Q4_0", "1"],
        check=True, capture_output=True, timeout=400, text=True,
    )  # fmt: skip
    assert f"loaded {len(sums)} importance matrix entries" in done.stdout + done.stderr


STATEFUL = {
    "qwen3_5_text": {"attn_qkv": "linear_attn.in_proj_qkv", "ssm_out": "linear_attn.out_proj"},
    "qwen3_next": {"ssm_ba": "linear_attn.in_proj_ba", "ssm_out": "linear_attn.out_proj"},
    "lfm2_moe": {"shortconv.in_proj": "conv.in_proj", "shortconv.out_proj": "conv.out_proj"},
    "granitemoehybrid": {"ssm_in": "mamba.in_proj", "ssm_out": "mamba.out_proj"},
    "falcon_h1": {"ssm_in": "mamba.in_proj", "ssm_out": "mamba.out_proj"},
    "nemotron_h": {"ssm_in": "mixer.in_proj", "ssm_out": "mixer.out_proj"},
}
"""Of each family's recurrent layers, matrices of a GGUF file and transformers' modules that multiply with them."""


VARIANT = {"granitemoehybrid": "recurrent, experts, odd, tied", "nemotron_h": "experts"}
"""Of families whose first variant is not the one that is meant: with recurrent layers, and experts if there are any."""


def stateful(family):
    variant = next(one for one in variants(family) if one.name == VARIANT.get(family, "plain"))
    return with_weights(config_of(family, replace(variant, values={**variant.values, "vocab_size": SIZE})))


@pytest.mark.parametrize("family", STATEFUL)
def test_a_model_that_keeps_a_state_is_measured_too(family, text, tmp_path, capsys):
    """The mean squares of the inputs of matrices and experts, compared with transformers in float64; and their use."""
    folder, out = write_folder(tmp_path / family, stateful(family)), tmp_path / "m.gguf"
    chat_tokenizer().save_pretrained(folder)
    assert run(["imatrix", "-m", str(folder), "--text", str(text), "--to", str(out), "--tokens", "40"]) == 0
    found = read_imatrix(out)

    model = Theirs.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()
    layers, inputs, experts = model.base_model.layers, {}, {}
    for at, layer in enumerate(layers):
        modules = dict(layer.named_modules())
        for name, module in STATEFUL[family].items():
            if module in modules:
                modules[module].register_forward_pre_hook(partial(keep, inputs, f"blk.{at}.{name}.weight"))
        for name, module in modules.items():
            if name.rpartition(".")[2] == "experts":
                module.register_forward_pre_hook(partial(keep, experts, (at, module)))
    ids = chat_tokenizer()(TEXT, add_special_tokens=False)["input_ids"][:40]
    with torch.no_grad():
        model(torch.tensor([ids]))
    assert inputs
    for name, (given, *_) in inputs.items():
        expected = given.reshape(-1, given.shape[-1]).square().mean(dim=0)
        np.testing.assert_allclose(found.means[name], expected, rtol=5e-4)
    for (at, module), (hidden, chosen, *_) in experts.items():
        ups, downs = (found.means[f"blk.{at}.ffn_{part}_exps.weight"] for part in ("up", "down"))
        for expert in range(module.num_experts):
            rows = hidden.reshape(-1, hidden.shape[-1])[(chosen.reshape(-1, chosen.shape[-1]) == expert).any(dim=1)]
            if len(rows):
                for means, given in ((ups, rows), (downs, inner_of(module, expert, rows))):
                    one = means.reshape(module.num_experts, -1)[expert]
                    np.testing.assert_allclose(one, given.square().mean(dim=0), rtol=5e-4)

    saved = [tmp_path / name for name in ("plain", "weighed")]
    for path, more in zip(saved, ([], ["--imatrix", str(out)]), strict=True):
        assert run(["quantize", str(folder), str(path), "--low-bit", "sym_int4", *more]) == 0
        assert "says nothing of" not in capsys.readouterr().err
    plain, weighed = map(codes, saved)
    assert plain.keys() == weighed.keys()
    assert sum((plain[name] != weighed[name]).any() for name in plain) > len(plain) // 2


def inner_of(module, expert, rows):
    """What an expert's last matrix is given."""
    if not hasattr(module, "gate_up_proj"):
        return module.act_fn(rows @ module.up_proj[expert].T).detach()
    gate, up = (rows @ module.gate_up_proj[expert].T).chunk(2, dim=-1)
    return (module.act_fn(gate) * up).detach()


def keep(into, name, _, given):
    into[name] = given


def test_a_gguf_file_of_a_model_that_keeps_a_state_is_refused_by_name(text, tmp_path, capsys):
    model = write_gguf(tmp_path / "hybrid.gguf", build("qwen3_5_text", variants("qwen3_5_text")[0]))
    assert run(["imatrix", "-m", str(model), "--text", str(text), "--to", str(tmp_path / "m.gguf")]) != 0
    said = capsys.readouterr().err
    assert "layers that keep a state are measured by transformers" in said
    assert "give the folder" in said
    assert not (tmp_path / "m.gguf").exists()
