"""The recommended models: what the list says follows from the configs that their makers published."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest

from ipex_lookahead.architectures import ModelSpec, model_types, spec_for
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.config_json import checked_config
from ipex_lookahead.checkpoints.low_bit import packed_bytes
from ipex_lookahead.engines.native.decoder import kv_bytes_per_token
from ipex_lookahead.engines.weights import WeightPlan, matrices
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import is_drafter
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.formats import get_format
from ipex_lookahead.hub import recommended
from ipex_lookahead.hub.choosing import GGUF_TYPES, choose, type_in
from ipex_lookahead.hub.names import HubName, parse_name
from ipex_lookahead.hub.recommended import POSITIONS, PROGRAM_BYTES, default_size, find_recommended, recommended_models
from ipex_lookahead.vision.mmproj import PROJECTORS

MODELS = recommended_models()
WORDS = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip
TIED = {"tie_word_embeddings": True}
LONG = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48}


def gemma4(layers: int, every: int, window: int, **more: Any) -> dict[str, Any]:
    """What a Gemma 4 says beside sizes: one layer of ``every`` sees all."""
    kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    return {"layer_types": kinds, "sliding_window": window, "global_head_dim": 512, **more}


def lfm2(layers: int, full: tuple[int, ...]) -> list[str]:
    return ["full_attention" if i in full else "conv" for i in range(layers)]


QWENS = ("qwen3_5_text", "qwen3_5_moe_text")
QWEN27 = ((64, 5120, 17408, 24, 4, 256, 248320, 262144), {"linear_num_value_heads": 48})
QWEN35 = (
    (40, 2048, 0, 16, 2, 256, 248320, 262144),
    {
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
)
# The numbers of WORDS (0: the family has none), and what else the makers' config.json says that bears on sizes.
PUBLISHED = {
    "smollm2-360m": ((32, 960, 2560, 15, 5, 64, 49152, 8192), TIED),
    "qwen3.5-0.8b": ((24, 1024, 3584, 8, 2, 256, 248320, 262144), {**TIED, "linear_num_value_heads": 16}),
    "qwen3-0.6b": ((28, 1024, 3072, 16, 8, 128, 151936, 40960), TIED),
    "lfm2.5-1.2b": (
        (16, 2048, 8192, 32, 8, 0, 65536, 128000),
        {**TIED, "layer_types": lfm2(16, (2, 5, 8, 10, 12, 14)), "block_auto_adjust_ff_dim": False},
    ),
    "gemma3-1b": ((26, 1152, 6912, 4, 1, 256, 262144, 32768), {"sliding_window": 512}),
    "llama3.2-1b": ((16, 2048, 8192, 32, 8, 64, 128256, 131072), TIED),
    "qwen3.5-2b": ((24, 2048, 6144, 8, 2, 256, 248320, 262144), {**TIED, "linear_num_value_heads": 16}),
    "qwen3-1.7b": ((28, 2048, 6144, 16, 8, 128, 151936, 40960), TIED),
    "smollm3-3b": ((36, 2048, 11008, 16, 4, 128, 128256, 65536), TIED),
    "llama3.2-3b": ((28, 3072, 8192, 24, 8, 128, 128256, 131072), TIED),
    "granite4.1-3b": ((40, 2560, 8192, 40, 8, 64, 100352, 131072), TIED),
    "ministral3-3b": ((26, 3072, 9216, 32, 8, 128, 131072, 262144), TIED),
    "gemma3-4b": ((34, 2560, 10240, 8, 4, 256, 262144, 131072), {"sliding_window": 1024}),
    "phi4-mini": (
        (32, 3072, 8192, 24, 8, 128, 200064, 131072),
        {**TIED, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 4096, "rope_scaling": LONG},
    ),
    "qwen3-4b": ((36, 2560, 9728, 32, 8, 128, 151936, 40960), TIED),
    "qwen3.5-4b": ((32, 2560, 9216, 16, 4, 256, 248320, 262144), TIED),
    "gemma4-e2b": (
        (35, 1536, 6144, 8, 1, 256, 262144, 131072),
        gemma4(35, 5, 512, hidden_size_per_layer_input=256, num_kv_shared_layers=20, use_double_wide_mlp=True),
    ),
    "llama3.1-8b": ((32, 4096, 14336, 32, 8, 128, 128256, 131072), {}),
    "qwen3-8b": ((36, 4096, 12288, 32, 8, 128, 151936, 40960), {}),
    "gemma4-e4b": (
        (42, 2560, 10240, 8, 2, 256, 262144, 131072),
        gemma4(42, 6, 512, hidden_size_per_layer_input=256, num_kv_shared_layers=18),
    ),
    "lfm2.5-8b-a1b": (
        (24, 2048, 7168, 32, 8, 0, 128000, 128000),
        {**TIED, "layer_types": lfm2(24, (2, 6, 10, 14, 18, 21)), "num_experts": 32, "num_experts_per_tok": 4}
        | {"moe_intermediate_size": 1792, "num_dense_layers": 2},
    ),
    "ministral3-8b": ((34, 4096, 14336, 32, 8, 128, 131072, 262144), {}),
    "granite4.1-8b": ((40, 4096, 12800, 32, 8, 128, 100352, 131072), {}),
    "qwen3.5-9b": ((32, 4096, 12288, 16, 4, 256, 248320, 262144), {}),
    "gemma4-12b": (
        (48, 3840, 15360, 16, 8, 256, 262144, 262144),
        gemma4(48, 6, 1024, hidden_size_per_layer_input=0, num_global_key_value_heads=1, attention_k_eq_v=True),
    ),
    "ministral3-14b": ((40, 5120, 16384, 32, 8, 128, 131072, 262144), {}),
    "gpt-oss-20b": (
        (24, 2880, 2880, 64, 8, 64, 201088, 131072),
        {"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128},
    ),
    "gemma4-26b-a4b": (
        (30, 2816, 2112, 16, 8, 256, 262144, 262144),
        gemma4(30, 6, 1024, hidden_size_per_layer_input=0, num_global_key_value_heads=2, attention_k_eq_v=True)
        | {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
    ),
    "qwen3.8-27b": QWEN27,
    "qwen3.5-27b": QWEN27,
    "muse-glimmer-30b": ((52, 6656, 19968, 32, 2, 128, 202048, 131072), {}),
    "granite4.1-30b": ((64, 4096, 32768, 32, 8, 128, 100352, 131072), TIED),
    "gemma4-31b": (
        (60, 5376, 21504, 32, 16, 256, 262144, 262144),
        gemma4(60, 6, 1024, hidden_size_per_layer_input=0, num_global_key_value_heads=4, attention_k_eq_v=True),
    ),
    "qwen3-30b-a3b": (
        (48, 2048, 6144, 32, 4, 128, 151936, 40960),
        {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True},
    ),
    "qwen3.5-35b-a3b": QWEN35,
    "qwen3.6-35b-a3b": QWEN35,
}
FORMATS = {
    "Q8_0": ("sym_int8", "sym_int8"), "Q4_K_M": ("gguf_q4k_m", "q4_k"), "MXFP4": ("sym_int8", "sym_int8"),
    "Q4_0": ("sym_int4", "q6_k"),
}  # fmt: skip
"""Type in a file's name -> the plan for its matrices, and the format of an embedding that is no lm_head."""
MIXED = tuple(name for name, model in MODELS.items() if model.model.startswith(("unsloth/", "meta-models/")))
"""Files in which the publisher chose the type of each tensor."""
VOCABULARY = 10_000_000
"""Bytes of a vocabulary in a file: the difference of files in the usual types from their tensors (Qwen3.5's)."""
EVERY = pytest.mark.parametrize("name", MODELS)


def spec_of(name: str) -> ModelSpec:
    sizes, more = PUBLISHED[name]
    said = {word: n for word, n in zip(WORDS, sizes, strict=True) if n}
    raw = {"model_type": MODELS[name].family, **said, **more}
    return spec_for(
        checked_config(JsonObject({k: JsonObject(v) if type(v) is dict else v for k, v in raw.items()}), name)
    )


def file_of(name: str) -> HubName:
    found = parse_name(name)
    assert isinstance(found, HubName)
    return found


def kind_of(name: str) -> str:
    file = file_of(name).file or ""
    return type_in(file) or file


def low_bit_of(tensor: Tensor, kind: str, plan: WeightPlan, *, matrix: bool, idle: bool, expert: bool) -> str:
    """What llama.cpp's types have a tensor in; ``idle``: a table of which a token reads a row."""
    name = tensor.gguf.name
    if "attn_qkv" in name and kind == "Q4_K_M":
        return "q5_k"
    if name == "per_layer_model_proj.weight":  # the converter leaves it in 16 bits
        return "bf16"
    if idle or (kind == "Q4_0" and name == "token_embd.weight"):
        return FORMATS[kind][1]
    if kind == "MXFP4" and expert:
        return "mxfp4"
    return plan.target(tensor.name, tensor.shape)[0] if matrix else "fp32"


def weighed(name: str) -> tuple[int, float]:
    """(bytes of all tensors, bytes that a token reads) as llama.cpp's types have them."""
    spec, kind = spec_of(name), kind_of(name)
    plan, shapes = WeightPlan(FORMATS[kind][0]).of_spec(spec), matrices(spec)
    shares: dict[str, float] = {}
    for mixture in spec.mixtures:
        for expert in mixture.experts:
            for linear in (expert.gate, expert.up, expert.down):
                shares[linear.weight.name] = mixture.used / len(mixture.experts)
    total, read = 0, 0.0
    for tensor in spec.tensors():
        one = tensor.name
        idle = (one == spec.embedding.name and not spec.tied) or tensor.gguf.name == "per_layer_token_embd.weight"
        low_bit = low_bit_of(tensor, kind, plan, matrix=one in shapes, idle=idle, expert=one in shares)
        sizes = get_format(low_bit).group_sizes
        size = packed_bytes(TensorInfo(tensor.shape, low_bit, 32 if 32 in sizes else sizes[0]))
        total += size
        read += 0 if idle else size * shares.get(one, 1.0)
    return total, read


def test_every_model_is_looked_up_here():
    assert set(PUBLISHED) == set(MODELS)
    assert 12 <= len(MODELS) <= 40
    downloads = [model.download for model in MODELS.values()]
    assert downloads == sorted(downloads), "from small to large"


@EVERY
def test_it_can_be_loaded(name):
    model, kind = MODELS[name], kind_of(name)
    assert model.family in model_types(), "a family that runs natively"
    assert kind in GGUF_TYPES
    asked = file_of(name)
    listed = asked.file if asked.file.endswith(".gguf") else f"{asked.repo.partition('/')[2]}-{kind}.gguf"
    assert choose(asked, {listed: model.download, "README.md": 1}).entry == listed
    if model.drafter is not None:
        head = parse_name(model.drafter)
        assert isinstance(head, HubName)
        assert head.file is not None
        assert is_drafter(head.file)
        assert choose(head, {head.file: 1, listed: model.download}).entry == head.file
    assert model.license in ("Apache-2.0", "MIT", "Gemma", "Llama 3.1", "Llama 3.2", "LFM 1.0", "not verified")
    assert re.match("confirmed by |only in ", model.source)


@EVERY
@pytest.mark.rotating(8)
def test_figures_follow_from_the_shape(name):
    model, spec = MODELS[name], spec_of(name)
    assert model.parameters == pytest.approx(sum(prod(tensor.shape) for tensor in spec.tensors()), rel=0.002)
    total, read = weighed(name)
    if name in MIXED:
        assert model.download == pytest.approx(total, rel=0.05)
        read += model.download - VOCABULARY - total
    else:  # A file holds its tensors and its vocabulary.
        assert total < model.download < total + 16_000_000
    assert model.read == pytest.approx(read, rel=0.003)
    assert model.position == kv_bytes_per_token(spec, "fp16")
    assert model.memory == model.download + POSITIONS * model.position + PROGRAM_BYTES
    assert model.bits == pytest.approx(8 * total / model.parameters, rel=0.05 if name in MIXED else 0.03)


IMAGES = {"gemma3_text": "gemma3", "gemma4_text": "gemma4v", **dict.fromkeys(QWENS, "qwen3vl_merger")}
"""Family -> the type of its vision part in files."""


@pytest.mark.parametrize("name", MODELS)
def test_models_that_take_images_are_those_with_a_supported_vision_part(name):
    has_one = name != "gemma3-1b"  # Gemma 3 of one billion parameters is for text alone
    assert MODELS[name].sees == (has_one and IMAGES.get(MODELS[name].family) in PROJECTORS)


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].draft])
def test_a_draft_model_has_the_vocabulary_and_is_much_smaller(name):
    draft = MODELS[name].draft
    assert spec_of(draft).vocab == spec_of(name).vocab
    assert MODELS[draft].family == MODELS[name].family
    assert 3 * MODELS[draft].read < MODELS[name].read


def test_a_short_name_is_its_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = HubName("Qwen/Qwen3-4B-GGUF", file="Qwen3-4B-Q4_K_M.gguf")
    assert parse_name("qwen3-4b") == parse_name("Qwen3-4B") == parse_name("qwen3:4b") == expected
    assert find_recommended("qwen3-4b").said == ""
    (tmp_path / "qwen3-4b").mkdir()
    assert parse_name("qwen3-4b") == (tmp_path / "qwen3-4b").relative_to(tmp_path), "a path of that name comes first"


@pytest.mark.parametrize(
    ("written", "model"),
    [
        ("qwen3.5:4b", "qwen3.5-4b"),
        ("gpt-oss:20b", "gpt-oss-20b"),
        ("gpt-oss", "gpt-oss-20b"),
        ("qwen3.6", "qwen3.6-35b-a3b"),
        ("qwen3.6:35b", "qwen3.6-35b-a3b"),
        ("Qwen3.6-35B-A3B-GGUF", "qwen3.6-35b-a3b"),
        ("gemma-4-12b-it", "gemma4-12b"),
        ("gemma4:e4b", "gemma4-e4b"),
        ("lfm2.5:1.2b", "lfm2.5-1.2b"),
        ("LFM2.5-8B-A1B", "lfm2.5-8b-a1b"),
        ("granite-4.1-3b", "granite4.1-3b"),
        ("Ministral-3-14B-Instruct-2512", "ministral3-14b"),
        ("Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("phi-4-mini:latest", "phi4-mini"),
        ("muse-glimmer", "muse-glimmer-30b"),
    ],
)
def test_names_as_people_type_them(written, model):
    found = find_recommended(written)
    assert found.model is MODELS[model]
    assert found.said.startswith(f"{written}: using {model} (") or written.lower() == model


@pytest.mark.parametrize(
    ("series", "sizes"),
    [
        ("gemma4", ("gemma4-e2b", "gemma4-e2b", "gemma4-e4b", "gemma4-26b-a4b")),
        ("qwen3.5:latest", ("qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-35b-a3b")),
        ("granite4", ("granite4.1-3b", "granite4.1-3b", "granite4.1-8b", "granite4.1-8b")),
        ("ministral-3", ("ministral3-3b", "ministral3-3b", "ministral3-8b", "ministral3-8b")),
    ],
)
def test_a_series_is_its_largest_size_that_fits(series, sizes, monkeypatch):
    for memory, size in zip((4, 8, 16, 64), sizes, strict=True):
        monkeypatch.setattr(recommended, "machine_memory", lambda memory=memory: memory * 10**9)
        found = find_recommended(series)
        assert found.model.name == size
        others = [name for name, one in MODELS.items() if one.series == found.model.series and name != size]
        assert found.said.endswith(f"; other sizes: {', '.join(others)}")


def test_a_size_that_does_not_fit_is_named(monkeypatch):
    monkeypatch.setattr(recommended, "machine_memory", lambda: 16 * 10**9)
    assert find_recommended("qwen3.8").said == (
        "qwen3.8: using qwen3.8-27b (16.5 GB, license Apache-2.0); it needs 17.0 GB of memory, and this machine has "
        "16.0 GB"
    )


def test_dense_models_of_many_bytes_are_no_default():
    assert default_size([MODELS["granite4.1-3b"], MODELS["granite4.1-30b"]], 64 * 10**9).name == "granite4.1-3b"
    assert default_size([MODELS["qwen3.8-27b"], MODELS["gemma4-31b"]], 64 * 10**9).name == "qwen3.8-27b"


def test_an_unknown_name_suggests_similar_ones():
    for nearly in ("qwen3-4", "qwen-4b", "llama3.2-3", "qwen3:4bb"):
        with pytest.raises(InputError, match=re.escape(f"no model named {nearly!r}")) as error:
            parse_name(nearly)
        assert error.value.hint.removeprefix("did you mean ").rstrip("?") in MODELS
    for word, series in (("qwen", "qwen3, qwen3.5, qwen3.6, qwen3.8"), ("gemma", "gemma3, gemma4")):
        with pytest.raises(InputError) as error:
            parse_name(word)
        assert error.value.hint == f"choose one of {series}"
    for other in ("something else", "-", ".", "q"):
        assert find_recommended(other) is None
    with pytest.raises(InputError) as error:
        parse_name("something else")
    assert "a short name (ipex-lookahead pull lists them)" in error.value.hint


def test_every_name_that_is_shown_is_found():
    for model in MODELS.values():
        assert find_recommended(model.name).model is model
        assert find_recommended(model.series) is not None
