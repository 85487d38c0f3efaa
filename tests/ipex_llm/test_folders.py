"""Folders that the real ipex-llm saves, in every format that it saves on a CPU: its own values, to the last bit.

The oracle is the package itself where it has one: its dequantiser (``ggml_dequantize``), or its product with unit rows,
which its activations in eight bits carry exactly. Where its CPU library has neither (nf3, fp6, fp8_e5m2, the K formats
run on its GPUs only), what its quantiser makes of values that a format holds exactly, and the ``gguf`` package.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("ipex_llm", reason="ipex-llm is not installed here; `make test-ipex-llm` has it")

import torch
from transformers import AutoModelForCausalLM as Plain
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import IpexLlmCheckpoint, open_checkpoint
from ipex_lookahead.checkpoints.ipex_llm import KINDS, NOT_READ
from ipex_lookahead.checkpoints.ipex_llm_blocks import BLOCKS
from ipex_lookahead.checkpoints.ipex_llm_convert import convert_ipex_llm
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.formats import dequantize
from tests.support.ipex_llm_folder import NF3, NF4, SIZES, decoded, half_bits
from tests.support.tiny import write_tiny_llama

TINY: dict[str, Any] = {"vocab": 64, "hidden": 256, "intermediate": 256, "heads": 4, "kv_heads": 2, "layers": 1}
DEQUANTISED = ("sym_int4", "sym_int8", "nf4", "fp4", "fp8_e4m3")
MULTIPLIED = ("asym_int4", "sym_int5", "asym_int5")
HELD = ("nf3", "fp6", "fp8_e5m2")
IDS = torch.tensor([[1, 5, 9, 5, 9]])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "llama", tie=True, context=512, **TINY)


def saved(source: Path, folder: Path, low_bit: str, **options: Any) -> Any:
    """The folder that the real package saves, and its model."""
    from ipex_llm.transformers import AutoModelForCausalLM as Theirs

    if low_bit in ("fp16", "bf16"):
        options["torch_dtype"] = {"fp16": torch.float16, "bf16": torch.bfloat16}[low_bit]
    model = Theirs.from_pretrained(str(source), load_in_low_bit=low_bit, **options)
    model.save_low_bit(str(folder))
    return model


def opened(folder: Path) -> IpexLlmCheckpoint:
    with pytest.raises(UnsupportedModelError, match="a pickle"):
        open_checkpoint(folder)
    found = open_checkpoint(convert_ipex_llm(folder, folder.with_name(folder.name + "-converted")))
    assert isinstance(found, IpexLlmCheckpoint)
    return found


def name_of(qtype: int) -> str:
    """The name of a number of ipex-llm's, the first where it has several."""
    from ipex_llm.ggml.quantize import ggml_tensor_qtype

    found = next(name for name, number in ggml_tensor_qtype.items() if number == qtype)
    return {"fp8": "fp8_e5m2", "woq_int4": "sym_int4"}.get(found, found)


def theirs(name: str, weight: torch.Tensor, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """The values of a packed matrix by the package's own functions, or by the definition where it has none."""
    from ipex_llm.ggml.model.llama import llama_cpp as library
    from ipex_llm.ggml.quantize import ggml_tensor_qtype
    from ipex_llm.transformers.low_bit_linear import ggml_matmul_src1_x_src0_t

    packed = weight.detach().contiguous().view(torch.uint8)
    if name in DEQUANTISED:
        values = torch.full(shape, torch.nan)
        library.ggml_dequantize(
            ctypes.c_void_p(packed.data_ptr()), ctypes.c_void_p(values.data_ptr()), values.numel(),
            ggml_tensor_qtype[name],
        )  # fmt: skip
        # Of fp8_e4m3 it makes 256 times the weights that it quantised; its GPU kernels' exponent has binary16's bias.
        return values.numpy() / np.float32(256 if name == "fp8_e4m3" else 1)
    if name in MULTIPLIED:
        product = ggml_matmul_src1_x_src0_t(packed, 127 * torch.eye(shape[1]), shape, ggml_tensor_qtype[name])
        return product.T.numpy() / np.float32(127)
    return decoded(name, packed.numpy().tobytes(), *shape)


def check(checkpoint: IpexLlmCheckpoint, model: Any) -> dict[str, int]:
    """Every tensor has the package's values; returns how many are in which of its formats."""
    from ipex_llm.transformers.low_bit_linear import LowBitLinear

    packed = {name: module for name, module in model.named_modules() if isinstance(module, LowBitLinear)}
    state, seen = model.state_dict(), {"floats": 0}
    config = model.config
    d = config.hidden_size // config.num_attention_heads
    q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
    places = {"q": slice(0, q), "k": slice(q, q + kv), "v": slice(q + kv, q + 2 * kv)}
    values: dict[str, Any] = {}  # q, k and v of a merged matrix ask for it one after the other
    for name in checkpoint.names():
        module, _, kind = name.rpartition(".")
        part, rows = module, slice(None)
        if module not in packed and module.endswith(("q_proj", "k_proj", "v_proj")):
            part, rows = module[:-6] + "qkv_proj", places[module[-6]]
        got = dequantize(checkpoint.read(name))
        if kind == "bias" or part not in packed:
            qweight = f"{module}.qweight"
            if qweight in state:
                low_bit = name_of(model.get_submodule(module).qweight.qtype)
                expected = theirs(low_bit, state[qweight], checkpoint.info(name).shape)
                seen[low_bit] = seen.get(low_bit, 0) + 1
            else:
                expected = state[f"{part}.{kind}"].float().numpy()[rows]
                seen["floats"] += 1
        else:
            linear = packed[part]
            low_bit = name_of(linear.weight.qtype)
            if part not in values:
                values[part] = theirs(low_bit, state[f"{part}.weight"], tuple(linear.weight_shape))
            expected = values[part][rows][: got.shape[0], : got.shape[1]]
            seen[low_bit] = seen.get(low_bit, 0) + 1
        assert np.array_equal(got, expected), (name, low_bit)
    checkpoint.close()
    return seen


ALL = {
    **{name: name for name in SIZES},
    "fp8": "fp8_e5m2", "woq_int4": "sym_int4", "mixed_fp4": "sym_int4", "mixed_fp8": "sym_int8",
    "gguf_q4k_s": "q4_k", "gguf_q4k_m": "q4_k", "fp16": "floats", "bf16": "floats",
}  # fmt: skip
"""What it saves -> the format that most matrices of the tiny model are in."""


def test_no_format_is_left_out() -> None:
    """Each name that the package knows is read, or refused by name; none is passed over here."""
    from ipex_llm.ggml.quantize import ggml_tensor_qtype, gguf_mixed_qtype

    assert set(ggml_tensor_qtype) | set(gguf_mixed_qtype) == set(KINDS) | set(NOT_READ)
    assert set(ALL) == set(KINDS)


@pytest.mark.parametrize("low_bit", ALL)
def test_every_format(source: Path, tmp_path: Path, low_bit: str) -> None:
    model = saved(source, tmp_path / "m", low_bit)
    seen = check(opened(tmp_path / "m"), model)
    assert max(seen, key=lambda name: seen[name]) == ALL[low_bit], seen


@pytest.mark.parametrize(
    ("low_bit", "options", "also"),
    [
        ("sym_int4", {"mixed_precision": True}, "q6_k"),
        ("asym_int4", {"embedding_qtype": "q2_k"}, "q2_k"),
        ("nf4", {"embedding_qtype": "q4_k"}, "q4_k"),
        ("nf4", {"modules_to_not_convert": ["lm_head", "o_proj"]}, "floats"),
        ("fp4", {"optimize_model": False}, "floats"),
        ("sym_int5", {"torch_dtype": torch.bfloat16}, "floats"),
        ("q4_k", {"cpu_embedding": True}, "floats"),
    ],
)
def test_its_options(source: Path, tmp_path: Path, low_bit: str, options: dict[str, Any], also: str) -> None:
    model = saved(source, tmp_path / "m", low_bit, **options)
    assert also in check(opened(tmp_path / "m"), model)


@pytest.mark.parametrize(("low_bit", "instead"), [("q4_k", "asym_int4"), ("q5_k", "asym_int5"), ("q6_k", "sym_int8")])
def test_inputs_that_are_no_blocks_of_256(tmp_path: Path, low_bit: str, instead: str) -> None:
    sizes = TINY | {"hidden": 128, "intermediate": 192}
    source = write_tiny_llama(tmp_path / "source", tie=False, context=512, **sizes)
    model = saved(source, tmp_path / "m", low_bit)
    assert check(opened(tmp_path / "m"), model)[instead] == 8


@pytest.mark.parametrize("family", ["qwen2", "mistral"])
@pytest.mark.parametrize("low_bit", ["sym_int4", "nf4", "fp6", "q4_k"])
def test_other_families(tmp_path: Path, family: str, low_bit: str) -> None:
    """qwen2: biases merged with q, k and v, and an MLP filled up to 512."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 320, "max_position_embeddings": 128}  # fmt: skip
    made = Qwen2ForCausalLM(Qwen2Config(**sizes)) if family == "qwen2" else MistralForCausalLM(MistralConfig(**sizes))
    made.save_pretrained(tmp_path / "source", safe_serialization=True)
    model = saved(tmp_path / "source", tmp_path / "m", low_bit)
    seen = check(opened(tmp_path / "m"), model)
    assert seen[low_bit] >= 6, seen


def test_a_model_of_optimize_model(source: Path, tmp_path: Path) -> None:
    """Its name stands in bigdl_config.json; config.json still says that the output layer is the embedding."""
    import ipex_llm

    model = ipex_llm.optimize_model(Plain.from_pretrained(str(source)), low_bit="asym_int5")
    model.save_low_bit(str(tmp_path / "m"))
    assert "bigdl" not in (tmp_path / "m" / "config.json").read_text()
    checkpoint = opened(tmp_path / "m")
    assert checkpoint.saved_as == "asym_int5"
    assert check(checkpoint, model) == {"floats": 4, "asym_int5": 8}


def test_shards(source: Path, tmp_path: Path) -> None:
    from ipex_llm.transformers import AutoModelForCausalLM as Theirs

    model = Theirs.from_pretrained(str(source), load_in_low_bit="sym_int8")
    model.save_low_bit(str(tmp_path / "m"), max_shard_size="100KB")
    assert len(list((tmp_path / "m").glob("*.bin"))) > 2
    assert check(opened(tmp_path / "m"), model)["sym_int8"] == 8


@pytest.mark.parametrize("low_bit", ["sym_int4", "asym_int4", "sym_int8"])
def test_the_text_is_the_packages(source: Path, tmp_path: Path, low_bit: str) -> None:
    """Its own ``load_low_bit`` and ours, on one folder: nearly the same logits, from the same weights."""
    from ipex_llm.transformers import AutoModelForCausalLM as Theirs

    saved(source, tmp_path / "m", low_bit)
    new = convert_ipex_llm(tmp_path / "m", tmp_path / "n")
    ours = AutoModelForCausalLM.load_low_bit(new, progress=False)
    original = Theirs.load_low_bit(str(tmp_path / "m"))
    with torch.no_grad():
        pair = [model(IDS).logits[0, -1].flatten().float() for model in (ours, original)]
    assert torch.corrcoef(torch.stack(pair))[0, 1] > 0.999


def test_what_the_package_refuses_to_save(source: Path, tmp_path: Path) -> None:
    """Its own refusals: what cannot be in a folder of its from a CPU, but for an importance matrix."""
    refused = {}
    for name in NOT_READ:
        try:
            saved(source, tmp_path / name, name)
        except Exception as error:
            refused[name] = str(error)
        else:
            with pytest.raises(UnsupportedModelError, match=f"{name}.*not supported"):
                open_checkpoint(convert_ipex_llm(tmp_path / name, tmp_path / f"{name}-converted"))
    assert {name for name in refused if "imatrix is needed" in refused[name]} == {
        "gguf_iq2_xxs", "gguf_iq2_xs", "gguf_iq1_s"
    }  # fmt: skip
    assert set(NOT_READ) - set(refused) == {"fp6_k", "gguf_iq1_m"}


# ---- what its quantisers make of values that a format holds ----------------------------------------------------------


def quantised(name: str, values: npt.NDArray[np.float32]) -> bytes:
    from ipex_llm.ggml.quantize import ggml_tensor_qtype
    from ipex_llm.transformers.low_bit_linear import ggml_convert_qtype

    packed = ggml_convert_qtype(torch.from_numpy(values), ggml_tensor_qtype[name], device="cpu")
    return bytes(packed.view(torch.uint8).numpy().tobytes())


def numbers_of(name: str) -> npt.NDArray[np.float32]:
    """The numbers of a format whose largest magnitude the package gives a scale that is exact."""
    if name == "nf3":
        return np.array(NF3, np.float32)
    if name == "fp6":  # scale 256
        return np.array([256 * half_bits(code, 6) for code in range(64)], np.float32)
    codes = np.arange(256, dtype=np.uint16)  # scale 1
    numbers = (codes << 8).view(np.float16).astype(np.float32)
    return numbers[np.isfinite(numbers)]


@pytest.mark.parametrize("name", HELD)
def test_values_that_the_format_holds_come_back(name: str) -> None:
    """At every place of a block, which tells table and layout; each block has the largest magnitude."""
    numbers = numbers_of(name)
    values = np.random.default_rng(5).choice(numbers, (256, 128))
    largest = numbers[np.abs(numbers).argmax()]
    values[::2, ::64] = values[1::2, 63::64] = largest  # in half of the rows at the end of a block
    packed = quantised(name, values)
    assert np.array_equal(decoded(name, packed, 256, 128), values)
    block = BLOCKS[name]
    assert np.array_equal(dequantize(block.weight(np.frombuffer(packed, block.record).reshape(256, 2), 128)), values)


@pytest.mark.parametrize(("name", "table"), [("nf3", NF3), ("nf4", NF4)])
def test_the_tables_by_the_packages_thresholds(name: str, table: tuple[float, ...]) -> None:
    """Its quantisers change from code to code half-way between two numbers of the table."""
    numbers = np.array(table, np.float32)
    middles = (numbers[1:] + numbers[:-1]) / 2
    for step, first in ((-2e-7, 0), (2e-7, 1)):
        values = np.ones((len(middles), 64), np.float32)
        values[:, 5] = middles + np.float32(step)
        made = decoded(name, quantised(name, values), *values.shape)[:, 5]
        assert np.array_equal(made, numbers[first:][: len(middles)]), (step, made)


def test_a_folder_says_what_it_is(source: Path, tmp_path: Path) -> None:
    from ipex_lookahead.cli.model_facts import describe

    saved(source, tmp_path / "m", "nf4")
    assert describe(tmp_path / "m")["kind"] == "ipex_llm"
    facts = describe(convert_ipex_llm(tmp_path / "m", tmp_path / "n"))
    assert facts["quantized_by"] == "ipex-llm, nf4"
    assert json.dumps(facts["formats"]).count("nf4") == 1
