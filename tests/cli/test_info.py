"""``info`` describes what can be run and what cannot, in words, from headers alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ipex_lookahead
from ipex_lookahead.cli.main import run
from tests.support.adapter_files import llama_changes, write_peft
from tests.support.gguf_bytes import STRING, build, llama_parts, tensor, write
from tests.support.ipex_llm_folder import write_ipex_llm
from tests.support.quantized_folders import awq, bnb4, gptq, write_quantized
from tests.support.tiny import TinyLlama, write_tiny_gguf, write_tiny_llama

ROOT = Path(ipex_lookahead.__file__).parent.parent
CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "vocab_size": 96, "max_position_embeddings": 128}  # fmt: skip


def facts_of(path, capsys):
    assert run(["info", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def words_of(path, capsys):
    assert run(["info", str(path)]) == 0
    return capsys.readouterr().out


def write_config(folder, **more):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | more))
    return folder


def unread(path):
    entries, tensors = llama_parts()
    hidden = 256
    entries = [(k, t, hidden if k == "llama.embedding_length" else v) for k, t, v in entries]
    kinds = {"token_embd.weight": 28, "blk.0.attn_q.weight": 15, "blk.0.attn_k.weight": 15}
    tensors = [
        tensor(name, (hidden, dims[1]), kinds[name]) if name in kinds else (name, dims, kind, data)
        for name, dims, kind, data in tensors
    ]
    return write(path, bytes(build([*entries, ("general.license", STRING, "mit")], tensors).data))


def test_a_gguf_file_of_types_that_are_not_read(tmp_path, capsys):
    file = unread(tmp_path / "llama.Q8_K.gguf")
    facts = facts_of(file, capsys)
    assert facts["architecture"] == "llama"
    assert facts["engine"] is None
    assert facts["formats"]["Q8_K"] == {"tensors": 2, "bytes": 2 * 8 * 292}
    assert facts["formats"]["F64"] == {"tensors": 1, "bytes": 4 * 256 * 8}
    assert facts["formats"]["fp32"]["tensors"] == 3
    assert (facts["layers"], facts["hidden_size"], facts["vocab_size"]) == (1, 256, 4)
    assert facts["license"] == "mit"
    assert facts["hint"].endswith("llama-quantize --allow-requantize llama.Q8_K.gguf llama.Q8_K-Q8_0.gguf Q8_0")
    said = " ".join(words_of(file, capsys).split())
    assert "weights in Q8_K 2 tensors" in said
    assert "cannot be run" in said
    assert "llama-quantize --allow-requantize" in said
    assert run(["generate", "-m", str(file), "hi"]) == 1
    assert "hint: use a Q8_0 or Q4_0 file of this model, or convert" in capsys.readouterr().err


def test_a_file_that_is_no_model(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("my own words")
    assert run(["info", str(tmp_path / "notes.txt")]) == 1
    assert "hint: this is not a complete model; give a .gguf file" in capsys.readouterr().err


def test_a_damaged_file_is_still_an_error(tmp_path, capsys):
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[:-100])
    assert run(["info", str(file)]) == 1
    assert "the file is incomplete" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"quant_method": "spqr", "bits": 4, "group_size": 128}, "spqr, 4 bits, groups of 128"),
        ({"quant_method": "quip", "w_bit": 4, "q_group_size": 64}, "quip, 4 bits, groups of 64"),
        ({"quant_method": "quanto"}, "quanto"),
        ({}, "another program"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_folders_that_other_programs_quantised(settings, says, family, tmp_path, capsys):
    folder = write_config(tmp_path / "gptq", model_type=family, quantization_config=settings)
    name = "model.layers.0.self_attn.q_proj"
    save_file(
        {f"{name}.qweight": np.zeros((8, 64), np.int32), f"{name}.scales": np.zeros((1, 64), np.float16)},
        folder / "model.safetensors",
    )
    facts = facts_of(folder, capsys)
    assert (facts["quantized_by"], facts["engine"], facts["parameters"]) == (says, None, None)
    assert facts["formats"] == {"i32": {"tensors": 1, "bytes": 2048}, "fp16": {"tensors": 1, "bytes": 128}}
    assert facts["layers"] == 2
    assert "already quantized" in facts["problem"]
    assert "quantized by" in words_of(folder, capsys)


def test_pickles_are_weighed_and_never_opened(tmp_path, capsys):
    folder = write_config(tmp_path / "old")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04evil")
    facts = facts_of(folder, capsys)
    assert facts["formats"] == {"pickle": {"tensors": 1, "bytes": 6}}
    assert (facts["parameters"], facts["engine"]) == (None, None)
    assert "a pickle" in facts["problem"]
    assert "save_pretrained" in facts["hint"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model": {"type": "BPE", "vocab": {}}}', "byte pairs"),
        ('{"model":{"type":"WordPiece","vocab":{}}}', "WordPiece"),
        ('{\n "model": {\n  "type": "Unigram", "vocab": []}}', "Unigram"),
        ('{"model": {"vocab": {}, "merges": []}}', "byte pairs"),
    ],
)
def test_the_kind_of_a_tokenizer(text, said, tmp_path, capsys):
    folder = write_tiny_llama(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text(text)
    assert facts_of(folder, capsys)["tokenizer"] == f"{said} (tokenizer.json)"


def test_a_folder_of_ipex_llms(tmp_path, capsys):
    write_ipex_llm(tmp_path / "theirs", "sym_int8", intermediate=64, layers=1)
    facts = facts_of(tmp_path / "theirs", capsys)
    assert (facts["kind"], facts["engine"]) == ("ipex_llm", None)
    words = words_of(tmp_path / "theirs", capsys)
    command = f"ipex-lookahead convert-ipex-llm {tmp_path / 'theirs'} NEW-FOLDER"
    assert "".join(command.split()) in "".join(words.split()), "lines break wherever the folder's name is long"
    assert run(["convert-ipex-llm", str(tmp_path / "theirs"), str(tmp_path / "new")]) == 0
    assert "ipex-llm saves no tokenizer" in capsys.readouterr().out
    facts = facts_of(tmp_path / "new", capsys)
    assert (facts["kind"], facts["engine"], facts["quantized_by"]) == ("ipex_llm", "native", "ipex-llm, sym_int8")
    assert {name: entry["tensors"] for name, entry in facts["formats"].items()} == {"fp16": 4, "sym_int8_fp32": 8}


def test_a_switch_that_is_not_run_is_a_problem_and_not_a_crash(tmp_path, capsys):
    folder = write_tiny_llama(tmp_path / "gelu")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    facts = facts_of(folder, capsys)
    assert facts["engine"] is None
    assert "hidden_act is 'gelu'" in facts["problem"]
    assert facts["formats"]["fp32"]["tensors"] > 10


def write_costs(folder, vocab, rows=(1, 2)):
    from ipex_lookahead.controller.kept import FORMAT
    from ipex_lookahead.engines.identity import processor
    from ipex_lookahead.engines.native.core import core_build

    folder.mkdir(parents=True, exist_ok=True)
    about = {"processor": processor(), "vocab_size": vocab, "engine": "native", "isa": "avx2", "threads": 2,
             "low_bit": "sym_int4", "weight_bytes": 10**6, "kv_cache": "fp16", "kv_bytes_per_token": 128}  # fmt: skip
    seconds = [0.01 * (1 + 0.1 * n) for n in range(len(rows))]
    about = {"format": FORMAT, "kernels": core_build(), "disturbance": 1.1, "at": 0.0, "engine": about}
    content = {**about, "rows": rows, "seconds": seconds, "key_seconds": 0.0, "key_row_seconds": 0.0}
    (folder / f"{vocab:024}.json").write_text(json.dumps(content))


def test_costs_are_forgotten(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("IPEX_LOOKAHEAD_COSTS", str(tmp_path / "costs"))
    for vocab in (96, 97):
        write_costs(tmp_path / "costs", vocab)
    assert run(["info", "--forget-costs"]) == 0
    assert capsys.readouterr().out.startswith("deleted 2 cost curves")
    assert list((tmp_path / "costs").glob("*.json")) == []
    assert run(["info", "--forget-costs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"forgotten": 0}


def test_the_costs_of_a_model_are_its_own(tmp_path, capsys, monkeypatch):
    from ipex_lookahead import AutoModelForCausalLM
    from ipex_lookahead.controller.calibration import Calibration
    from ipex_lookahead.controller.kept import Measured, file_of, save

    monkeypatch.setenv("IPEX_LOOKAHEAD_COSTS", str(tmp_path / "costs"))
    folders = [write_tiny_llama(tmp_path / f"tiny{vocab}", vocab=vocab) for vocab in (96, 160)]
    for milliseconds, folder in enumerate(folders, 1):
        engine = AutoModelForCausalLM.from_pretrained(folder, engine="native", threads=1, progress=False).engine
        seconds = (milliseconds / 1000, 1.1 * milliseconds / 1000)
        measured = Measured(Calibration((1, 2), seconds), 1.1 * milliseconds, 0.0)  # the second one is noisy
        save(file_of(tmp_path / "costs", engine), measured, engine)
    for milliseconds, folder in enumerate(folders, 1):
        (curve,) = facts_of(folder, capsys)["step_costs"]
        assert curve["milliseconds"]["1"] == milliseconds
        words = " ".join(words_of(folder, capsys).split())
        assert f"{milliseconds}.00 ms, 2 rows 1.10x" in words
        assert ("(measured while the machine was busy)" in words) == curve["noisy"] == (milliseconds == 2)
    assert run(["info", str(folders[0]), "--forget-costs"]) == 0
    assert capsys.readouterr().out == "deleted 1 cost curve\n"
    assert [len(facts_of(folder, capsys)["step_costs"]) for folder in folders] == [0, 1]


@pytest.mark.programs
def test_nothing_heavy_is_imported(tmp_path):
    model = str(write_tiny_llama(tmp_path / "tiny"))
    code = (
        "import sys; from ipex_lookahead.cli.main import run\n"
        f"codes = [run(['info', *more]) for more in ([], [{model!r}], ['--forget-costs'])]\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)), codes)"
    )
    environment = {**os.environ, "IPEX_LOOKAHEAD_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.stdout.splitlines()[-1] == "[] [0, 0, 0]", done.stderr


@pytest.mark.parametrize(
    ("kind", "says", "main"),
    [
        (gptq(4, 128, False), "gptq, 4 bits, groups of 128", "zero_int4"),
        (gptq(4, 16, True, format="fp32"), "gptq, 4 bits, groups of 16", "fp32"),
        (awq(64, old_names=True), "awq, 4 bits, groups of 64", "zero_int4"),
        (bnb4("nf4"), "bitsandbytes", "bnb_nf4"),
    ],
)
def test_folders_of_gptq_and_its_kin_say_what_they_are_and_what_they_become(kind, says, main, tmp_path, capsys):
    values = write_quantized(tmp_path, kind)
    facts = facts_of(tmp_path, capsys)
    assert (facts["quantized_by"], facts["engine"]) == (says, "native")
    assert facts["parameters"] == sum(value.size for value in values.values())
    assert max(facts["formats"], key=lambda name: facts["formats"][name]["tensors"]) in (main, "fp16")
    assert facts["formats"][main]["tensors"] == 14
    assert facts.get("decoded") == (["int4, groups of 16 as fp32"] if main == "fp32" else None)


def test_opencl_devices_are_listed_by_the_names_that_device_takes(monkeypatch, capsys):
    from ipex_lookahead.engines.opencl import device
    from ipex_lookahead.errors import EngineError

    two = [
        device.Listed(0, "a card", "a platform", "1.2", "GPU", 2**34, 512),
        device.Listed(1, "x", "y", "3", "CPU", 1, 1),
    ]
    monkeypatch.setattr(device, "listed", lambda: two)
    assert run(["info"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "opencl:0 a card, GPU, a platform, driver 1.2, opencl:1 x, CPU, y, driver 3" in said

    def none():
        raise EngineError("pyopencl is absent", hint="install it")

    monkeypatch.setattr(device, "listed", none)
    assert run(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["opencl"] == {"devices": [], "problem": "pyopencl is absent; install it"}


def test_an_output_layer_of_its_own_is_said(tmp_path, capsys):
    """The config ties it to the embedding, and the file has another one."""
    folder = write_tiny_llama(tmp_path / "m", tie=True)
    assert "output_layer" not in facts_of(folder, capsys)
    tensors = load_file(folder / "model.safetensors")
    head = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": head.copy()}, folder / "model.safetensors")
    assert "output_layer" not in facts_of(folder, capsys)
    before = facts_of(folder, capsys)["parameters"]
    save_file({**tensors, "lm_head.weight": 2 * head}, folder / "model.safetensors")
    facts = facts_of(folder, capsys)
    assert facts["output_layer"] == "the file's own lm_head.weight, though config.json ties it to the embedding"
    assert facts["parameters"] == before + head.size
    assert "output layer" in words_of(folder, capsys)


def test_an_adapter_and_the_adapters_next_to_a_model(tmp_path, capsys):
    changes = llama_changes(TinyLlama().shapes())
    folder = write_peft(tmp_path / "a", changes, lora_alpha=6)
    facts = facts_of(folder, capsys)
    assert (facts["kind"], facts["base"], facts["ranks"], facts["scales"]) == ("adapter", "someone/base", [4], [1.5])
    assert (facts["matrices"], facts["modules"][:2]) == (14, ["down_proj", "gate_proj"])
    assert "LoRA adapter, which changes a model" in words_of(folder, capsys)
    write_peft(folder, changes, use_dora=True)
    assert "DoRA" in facts_of(folder, capsys)["problem"]
    model = write_tiny_llama(tmp_path / "m")
    assert facts_of(model, capsys)["adapters"] == []
    write_peft(model, changes)
    assert facts_of(model, capsys)["adapters"] == [str(model)]
    assert "adapters next to it" in words_of(model, capsys)


def test_the_vision_part_of_a_model(tmp_path, capsys, monkeypatch):
    from ipex_lookahead.cli import model_facts
    from tests.support.chat_tokenizer import write_chat_llama

    found = {
        "tower": "qwen3_vl_vision", "layers": 24, "parameters": 306_000_000, "bytes": 612_000_000,
        "tokens": {"224x224": 64, "1920x1080": 2040}, "operations": {"224x224": 160_000_000_000},
    }  # fmt: skip
    monkeypatch.setattr(model_facts, "_images", lambda *given: {"images": found})
    model = write_chat_llama(tmp_path / "tiny")
    assert run(["info", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == found
    assert run(["info", str(model)]) == 0
    out = re.sub(r" +", " ", capsys.readouterr().out)
    assert "vision part qwen3_vl_vision\nits layers 24\nits parameters 306,000,000\nits weights 612.0 MB" in out
    assert "tokens of a picture 224 x 224: 64, 1920 x 1080: 2,040\nGFLOP to encode it 224 x 224: 160" in out


def test_a_vision_part_is_for_a_model_that_takes_images(tmp_path, capsys):
    from tests.support.chat_tokenizer import write_chat_llama

    (tmp_path / "mmproj.gguf").write_bytes(b"GGUF")
    given = ["--mmproj", str(tmp_path / "mmproj.gguf")]
    assert run(["info", str(write_chat_llama(tmp_path / "tiny")), *given]) == 1
    assert "takes no images" in capsys.readouterr().err
    assert run(["info", *given]) == 2
