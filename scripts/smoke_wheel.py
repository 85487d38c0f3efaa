"""Try an installed wheel: whatever it needs must be in it. Run by scripts/wheels.py in a bare environment.

python -I scripts/smoke_wheel.py [--torch]

Writes a tiny random model into the current folder, which should be empty, and runs the installed command on it: plain
and with lookahead, on every instruction set that the processor has, in formats and mixtures of them, saved too; with
--torch Python's classes instead, which need it.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import ipex_lookahead

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
PROMPT = "one two three one two three one two"
DATA = (
    "configs/bench/laptop.yaml", "formats/presets/gguf_q4k_m.yaml", "bench/prompts.jsonl", "bench/quality.txt",
    "engines/opencl/kernels/linear.cl",
    "py.typed",
)  # fmt: skip


def main(arguments: list[str]) -> None:
    """Run all checks. Raises AssertionError or CalledProcessError."""
    home = Path(ipex_lookahead.__file__)
    assert home.is_relative_to(sys.prefix), f"{home} is not the installed package"
    for name in DATA:
        assert importlib.resources.files("ipex_lookahead").joinpath(name).is_file(), f"{name} is not in the wheel"
    model = write_model(Path("tiny"))
    if "--torch" in arguments:
        from_python(model)
        return
    plain = answer(model, "0")
    assert plain["tokens"] == 24, plain
    engine = json.loads(command("info", "--json"))["engine"]
    for isa in engine["isa_available"]:
        for lookahead in ("0", "3", "auto"):
            there = answer(model, lookahead, isa=isa)
            assert there["text"] == plain["text"], f"{isa}, lookahead {lookahead}: another text"
    for low_bit in ("sym_int4", "q4_k", "gguf_q4k_m", "mixed_fp4"):
        assert answer(model, "3", low_bit)["text"] == answer(model, "0", low_bit)["text"], low_bit
    quantized(model)
    exceptions_pass()
    print(f"Python {sys.version.split()[0]}, {engine['isa_chosen']} of {', '.join(engine['isa_available'])}")


def write_model(folder: Path) -> Path:
    """A Llama of two layers with random weights, and a tokenizer of bytes."""
    chance = np.random.default_rng(0)
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: i for i, one in enumerate(["<s>", "</s>", *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    vocabulary = len(alphabet) + 2
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocabulary, "hidden_act": "silu",
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32", **SIZES,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    wide, inner, kept = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["hidden_size"] // 2
    shapes = {"model.embed_tokens": (vocabulary, wide), "model.norm": (wide,)}
    for i in range(SIZES["num_hidden_layers"]):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.input_layernorm": (wide,), f"{at}.post_attention_layernorm": (wide,)}
        shapes |= {f"{at}.self_attn.{one}_proj": (kept if one in "kv" else wide, wide) for one in "qkvo"}
        shapes |= {f"{at}.mlp.{one}_proj": (inner, wide) for one in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj": (wide, inner)}
    weights = {
        f"{name}.weight": (np.ones(shape) if len(shape) == 1 else chance.normal(0, 0.08, shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(weights, str(folder / "model.safetensors"))
    return folder


def command(*words: str, isa: str = "") -> str:
    """What the installed command prints."""
    variables = {**os.environ, "IPEX_LOOKAHEAD_CACHE": "cache"} | ({"IPEX_LOOKAHEAD_ISA": isa} if isa else {})
    program = str(Path(sys.executable).parent / "ipex-lookahead")
    done = subprocess.run([program, *words], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def answer(model: Path, lookahead: str, low_bit: str = "", isa: str = "") -> dict[str, object]:
    """An answer in JSON."""
    options = ("--raw", "--json", "-n", "24", "--lookahead", lookahead, *(("--low-bit", low_bit) if low_bit else ()))
    return json.loads(command("generate", "--model", str(model), *options, PROMPT, isa=isa))


def quantized(model: Path) -> None:
    """A folder that quantize saved answers as the model does that is quantized on the way in."""
    command("quantize", str(model), "saved", "--low-bit", "gguf_q4k_m")
    assert answer(Path("saved"), "auto")["text"] == answer(model, "0", "gguf_q4k_m")["text"]


def exceptions_pass() -> None:
    """What the core throws arrives in Python as what it is, whichever libstdc++ other libraries have brought."""
    from ipex_lookahead import _native

    for wrong in (lambda: _native.chosen_isa("no such"), lambda: _native.LinearPool(0)):
        said = ""
        try:
            wrong()
        except ValueError as error:
            said = str(error)
        assert "available" in said or "from 1 to" in said, said or "nothing was raised"


def from_python(model: Path) -> None:
    """The same through transformers' words; torch has a libstdc++ of its own in the process, before the core's."""
    import torch

    exceptions_pass()

    loaded = ipex_lookahead.AutoModelForCausalLM.from_pretrained(model, progress=False)
    ids = torch.tensor([loaded.tokenizer(PROMPT)["input_ids"]])
    plain = loaded.generate(ids, max_new_tokens=24, do_sample=False)
    assert torch.equal(plain, loaded.generate(ids, max_new_tokens=24, do_sample=False, lookahead="auto"))


if __name__ == "__main__":
    main(sys.argv[1:])
