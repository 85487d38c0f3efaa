"""Rules which matrix gets which format: what is read, what is refused, and llama.cpp's mixtures."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.rules import (
    FOLDER,
    FormatRules,
    Layers,
    ModelFacts,
    format_of,
    label_of,
    read_rules,
    rules_of,
)
from ipex_lookahead.low_bits import ALIASES, NAMES, NOT_MADE, PRESETS

IPEX_LLM = (
    "sym_int4 asym_int4 sym_int5 asym_int5 sym_int8 nf3 nf4 fp4 fp6 fp8 fp8_e4m3 fp8_e5m2 fp16 bf16 mixed_fp4 mixed_fp8"
    " woq_int4 q2_k q3_k q4_k q5_k q6_k gguf_q4k_s gguf_q4k_m"
).split()
MORE_BITS_OF_30 = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29]
"""Layers whose attn_v and ffn_down are in Q6_K in the Q4_K_M that llama-quantize makes of 30 layers."""
BOMB = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{f'*a{n - 1},' * 9}]}}\n" for n in range(1, 12))
"""A key that is merged from nine of the key before, eleven times over."""


def shapes(layers: int = 30, experts: int = 0, queries: int = 2) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"embed.weight": (64, 256), "head.weight": (64, 256)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        found |= {f"{at}self_attn.{part}_proj.weight": (64 * queries, 256) for part in "qo"}
        found |= {f"{at}self_attn.{part}_proj.weight": (64, 256) for part in "kv"}
        mlps = [f"mlp.experts.{expert}" for expert in range(experts)] or ["mlp"]
        found |= {f"{at}{mlp}.{part}_proj.weight": (256, 256) for mlp in mlps for part in ("gate", "up", "down")}
    return found


def of(rules: FormatRules, part: str, **sizes: int) -> list[str]:
    """The format of a module in each layer."""
    given = shapes(**sizes)
    model = ModelFacts.of(given)
    names = [name for name in given if name.endswith(f"{part}.weight")]
    found = [rules.of(name, model, "head.weight", "embed.weight") for name in names]
    assert all(len(formats) == 1 for formats in found)
    return [formats[0] for formats in found]


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes) -> FormatRules:
        file = tmp_path / "mine.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_rules(file)

    return read


@pytest.mark.parametrize("name", IPEX_LLM)
def test_every_name_of_ipex_llm_is_known(name):
    assert rules_of(name).named()


def test_names():
    assert sorted(PRESETS) == sorted(path.stem for path in FOLDER.glob("*.yaml"))
    assert len(set(NAMES)) == len(NAMES), "a name means one thing"
    assert set(ALIASES.values()) <= {*FORMATS, *PRESETS}
    assert set(NOT_MADE.values()) <= set(FORMATS)
    assert not set(NOT_MADE) & set(NAMES)
    assert rules_of("fp8").default == ("fp8_e5m2",), "as in ipex-llm"
    assert (label_of("q8_0"), label_of("gguf_q4k_m"), label_of("/a/b.yaml")) == ("sym_int8", "gguf_q4k_m", "b.yaml")


@pytest.mark.parametrize(("theirs", "ours"), [("q4_k_m", "gguf_q4k_m"), ("q4_k_s", "gguf_q4k_s")])
def test_the_names_of_llama_cpps_mixtures_are_those_of_presets(theirs, ours):
    assert rules_of(theirs) == rules_of(ours)
    assert label_of(theirs) == ours
    with pytest.raises(LowBitFormatError, match=theirs):
        format_of(theirs)  # where one format is asked for


def test_presets_are_beside_the_other_presets():
    assert {path.name for path in (Path(__file__).parents[2] / "configs/formats").iterdir()} == {
        f"{name}.yaml" for name in PRESETS
    }


@pytest.mark.parametrize("name", NOT_MADE)
def test_what_is_not_made_has_an_alternative(name):
    with pytest.raises(LowBitFormatError, match=f"^{name} .*{NOT_MADE[name]}") as caught:
        rules_of(name)
    assert NOT_MADE[name] in caught.value.hint


@pytest.mark.parametrize("name", ["gguf_q4km", "", "sym_int", None, 4, ["q4_k"], "x.yml"])
def test_what_is_unknown(name):
    with pytest.raises(LowBitFormatError):
        rules_of(name)


def test_llama_cpps_medium_mixture():
    rules = rules_of("gguf_q4k_m")
    more = ["q6_k" if layer in MORE_BITS_OF_30 else "q4_k" for layer in range(30)]
    assert of(rules, "v_proj") == of(rules, "down_proj") == more
    assert set(of(rules, "k_proj")) == set(of(rules, "up_proj")) == {"q4_k"}
    assert of(rules, "head") == ["q6_k"]
    assert of(rules, "embed") == ["q4_k"]
    assert set(of(rules, "v_proj", layers=80, queries=8)) == {"q6_k", "q5_k"}, "the 70B's few values"
    for part, wanted in (("v_proj", "sym_int8"), ("k_proj", "sym_int8"), ("o_proj", "q5_k"), ("q_proj", "q4_k")):
        assert set(of(rules, part, experts=8)) == {wanted}
    assert set(of(rules, "o_proj", experts=4)) == {"q4_k"}


def test_llama_cpps_small_mixture():
    rules = rules_of("gguf_q4k_s")
    assert of(rules, "v_proj") == ["q5_k"] * 4 + ["q4_k"] * 26
    assert of(rules, "down_proj") == ["q5_k"] * 3 + ["q4_k"] * 27
    assert of(rules, "head") == ["q6_k"]


@given(st.integers(1, 200))
def test_layers_that_have_more_bits(n):
    """The shares of whole numbers, by llama.cpp's arithmetic on integers."""
    chosen = Layers(Fraction(1, 8), Fraction(1, 8), 3)
    for layer in range(n):
        assert chosen.has(layer, n) == (layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2)


def test_the_first_rule_that_matches_wins(read):
    rules = read(
        "rules:\n"
        "  - {match: '*.0.*.v_proj|*.1.*.v_proj', format: q6_k}\n"
        "  - {match: '*.v_proj', format: nf4, layers: {last: 1}}\n"
        "  - {match: '*.v_proj', format: q8_0, when: {layers: 9}}\n"
        "  - {match: '*_proj', format: sym_int4}\n"
    )
    assert of(rules, "v_proj", layers=3) == ["q6_k", "q6_k", "nf4"]
    assert of(rules, "v_proj", layers=4) == ["q6_k", "q6_k", "sym_int4", "nf4"]
    assert of(rules, "v_proj", layers=9)[2:] == ["sym_int8"] * 6 + ["nf4"]
    model = ModelFacts.of(shapes())
    assert rules.of("head.weight", model, "head.weight", "embed.weight") == (), "no default: as in the file"


def test_an_embedding_stays_unless_it_is_named(read):
    for text, wanted in (("default: q4_k", ()), ("rules: [{match: '*', format: q4_k}]", ()),
                         ("rules: [{match: embedding, format: q6_k}]", ("q6_k",))):  # fmt: skip
        rules = read(text)
        assert rules.of("embed.weight", ModelFacts(), "head.weight", "embed.weight") == wanted


def test_a_pattern_that_matches_nothing_is_told_with_the_nearest_name(read):
    given = shapes()
    with pytest.raises(LowBitFormatError, match=r"mine.yaml: rules\[0\]: '\*.vproj' matches none of .* 212") as caught:
        read("rules: [{match: '*.vproj', format: q4_k}]").check(given, ModelFacts.of(given), "head.weight", "")
    assert "did you mean '*.v_proj'?" in caught.value.hint
    other = read("rules: [{match: '*.experts.*', format: q4_k, when: {experts: 8}}, {match: embedding, format: q4_k}]")
    other.check(given, ModelFacts.of(given), "head.weight", "")  # for other models


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is None; it must be a mapping"),
        ("[]", "the file is \\[\\]; it must be a mapping"),
        ("{}", "neither default nor rules"),
        ("defalt: q4_k", "unknown key 'defalt'; choose one of default, rules, fallbacks"),
        ("default: q4k", "default: unknown low-bit format 'q4k'"),
        ("default: []", "default: unknown low-bit format \\[\\]"),
        ("default: gguf_iq1_s", "default: gguf_iq1_s needs"),
        ("default: gguf_q4k_m", "unknown low-bit format 'gguf_q4k_m'"),
        ("default: [q4_k, 3]", "unknown low-bit format 3"),
        ("rules: {}", "rules is {}; it must be a list"),
        ("rules: [q4_k]", r"rules\[0\] is 'q4_k'; it must be a mapping"),
        ("rules: [{match: a}]", r"rules\[0\] has no format"),
        ("rules: [{format: q4_k}]", r"rules\[0\].match is None"),
        ("rules: [{match: 'a||b', format: q4_k}]", r"rules\[0\].match is 'a||b'"),
        ("rules: [{match: a, format: q4_k, layer: {}}]", r"rules\[0\]: unknown key 'layer'.*layers"),
        ("rules: [{match: a, format: q4_k, layers: {first: -1}}]", "layers.first is -1; it must be a whole number, or"),
        ("rules: [{match: a, format: q4_k, layers: {last: 3/2}}]", "layers.last is '3/2'"),
        ("rules: [{match: a, format: q4_k, layers: {last: 1/0}}]", "layers.last is '1/0'"),
        ("rules: [{match: a, format: q4_k, layers: {every: 1/2}}]", "layers.every is '1/2'; it must be a whole number"),
        ("rules: [{match: a, format: q4_k, when: {heads: 8}}]", "unknown key 'heads'.*layers, experts, queries"),
        ("rules: [{match: a, format: q4_k, when: {experts: yes}}]", "when.experts is True"),
        ("{default: q4_k, fallbacks: {q4_k: q5_0, sym_int5: q4_k}}", "cycle: q4_k -> sym_int5 -> q4_k"),
        ("default: [", "is not YAML"),
        ("default: !!python/object/apply:os.system [true]", "is not YAML"),
        (b"default: \xff", "is not YAML"),
        (b"#" * (1 << 16) + b"\n#", "has 65538 bytes; the maximum is 65536"),
        ("default: !!int ''", "is not YAML"),
        ("default: q4_k\ndefault: q6_k", "a key appears twice"),
        ("default: &a q4_k\nrules: [{match: a, format: *a}]", r"\*a: aliases are not supported"),
        (BOMB, "aliases are not supported"),
        ("[" * 5000, "is not YAML"),
    ],
)  # fmt: skip
def test_what_is_refused(text, says, read):
    with pytest.raises(LowBitFormatError, match=says) as caught:
        read(text)
    assert "mine.yaml" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(LowBitFormatError, match="absent.yaml: cannot be opened: .*No such file"):
        rules_of(str(tmp_path / "absent.yaml"))
    with pytest.raises(LowBitFormatError, match="is not a regular file"):
        read_rules(tmp_path)
