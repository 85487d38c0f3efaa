"""Tokenizer files as the families bring them: ids, text and stream of transformers' own ``AutoTokenizer``."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.tokenization.detokenizer import Detokenizer
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.isolated import IsolatedText
from ipex_lookahead.tokenization.splitting import GPT2, GPT4O, KIMI, LLAMA3, QWEN2, QWEN35, SEED, SPLITTINGS, TEKKEN
from ipex_lookahead.tokenization.text import BytePairText, TextTokenizer
from tests.support import vocabularies
from tests.support.vocabularies import TEXTS

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}
PREPEND = {"type": "Prepend", "prepend": "▁"}
ESCAPE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
UNESCAPE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
SPELLED = [UNESCAPE, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIPPED = [*SPELLED, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
STARCODER = r"\p{N}{1,3}(?=\p{N}{3}*(?!\p{N}))|" + GPT2
"""An expression that nobody knows."""


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def normalizers(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


def cuts(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def decoders(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": parts}


@lru_cache
def vocabulary(kind: str) -> dict[str, Any]:
    """``model`` and ``added_tokens`` of a tokenizer.json: byte-level BPE, or BPE with "▁" and bytes as pieces."""
    metadata = vocabularies.byte_level() if kind == "bytes" else vocabularies.spelled()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": kind != 4} for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind in (2, 3, 4)
    ]  # fmt: skip
    merges = [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}  # fmt: skip
    if kind != "bytes":
        runs = [["\n" * left, "\n" * (n - left)] for n in range(2, 6) for left in range(1, n)]
        model |= {"merges": [*merges, *runs], "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, "added_tokens": added, "model": model}  # fmt: skip


def byte_level(*pre: dict[str, Any], whole_words: bool = False, **parts: Any) -> dict[str, Any]:
    made = vocabulary("bytes") | {"pre_tokenizer": cuts(*pre, BYTES), "post_processor": BYTES, "decoder": BYTES} | parts
    return made | {"model": made["model"] | {"ignore_merges": whole_words}}


def spelled(**parts: Any) -> dict[str, Any]:
    return vocabulary("spelled") | parts


def bos(description: dict[str, Any]) -> dict[str, Any]:
    """With the first special token before a text."""
    i = next(token["id"] for token in description["added_tokens"] if token["content"] == "<|start|>")
    special = {"<|start|>": {"id": "<|start|>", "ids": [i], "tokens": ["<|start|>"]}}
    single = [{"SpecialToken": {"id": "<|start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
    if description["post_processor"] is None:
        return description | {"post_processor": template}
    return description | {"post_processor": {"type": "Sequence", "processors": [BYTES, template]}}


def greedy_of_spaces(description: dict[str, Any]) -> dict[str, Any]:
    """With special tokens that take the white space behind them, as Phi-3's."""
    added = [token | {"rstrip": token["special"]} for token in description["added_tokens"]]
    return description | {"added_tokens": added}


def unigram(description: dict[str, Any]) -> dict[str, Any]:
    """The same tokens as a unigram model, the longer the better."""
    tokens = sorted(description["model"]["vocab"], key=description["model"]["vocab"].get)
    pieces = [[token, -1.0 / (1 + len(token)) - 8] for token in tokens]
    return description | {"model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": True}}


LLAMA = {"normalizer": normalizers(PREPEND, ESCAPE), "decoder": decoders(STRIPPED)}
GEMMA = {
    "normalizer": ESCAPE,
    "pre_tokenizer": {**split(" "), "pattern": {"String": " "}, "behavior": "MergedWithPrevious"},
    "decoder": decoders(SPELLED),
}
NFC = {"type": "NFC"}
DEEPSEEK = SPLITTINGS["deepseek-v3"].patterns
DEEPSEEK2_CUTS = SPLITTINGS["deepseek-llm"].patterns
REGEX_DIGITS = {**BYTES, "use_regex": True}

FAST = "PreTrainedTokenizerFast"
FAMILIES: dict[str, tuple[dict[str, Any], str, str, str | None]] = {
    "qwen2": (byte_level(split(QWEN2), normalizer=NFC), "Qwen2Tokenizer", "qwen2", "qwen2"),
    "mistral": (bos(spelled(**LLAMA)), "LlamaTokenizer", "mistral", None),
    "mistral v3": (
        bos(spelled(pre_tokenizer=METASPACE, decoder=decoders(STRIPPED))),
        "LlamaTokenizer",
        "mistral",
        None,
    ),
    "mixtral": (bos(spelled(**LLAMA)), "LlamaTokenizer", "mixtral", None),
    "ministral3": (bos(byte_level(split(TEKKEN), whole_words=True)), FAST, "ministral3", "tekken"),
    "smollm2": (byte_level(DIGITS, split(GPT2)), FAST, "llama", "smollm"),  # GPT2Tokenizer would leave the digits whole
    "smollm3": (byte_level(split(LLAMA3), whole_words=True), FAST, "smollm3", "llama-bpe"),
    "granite": (byte_level() | {"pre_tokenizer": cuts(DIGITS, REGEX_DIGITS)}, "GPT2Tokenizer", "granite", "refact"),
    "phi3": (greedy_of_spaces(spelled(**LLAMA)), "LlamaTokenizer", "phi3", None),
    "phi4-mini": (byte_level(split(GPT4O)), "GPT2Tokenizer", "phi3", "gpt-4o"),
    "gemma": (bos(spelled(**GEMMA)), "GemmaTokenizer", "gemma3_text", "gemma4"),
    "olmo2": (byte_level(split(LLAMA3)), "GPT2Tokenizer", "olmo2", "dbrx"),
    "gpt_oss": (byte_level(split(GPT4O)), FAST, "gpt_oss", "gpt-4o"),
    "deepseek": (bos(byte_level(*map(split, DEEPSEEK))), FAST, "deepseek_v3", "deepseek-v3"),
    "qwen3_5": (byte_level(split(QWEN35), normalizer=NFC), "Qwen3_5Tokenizer", "qwen3_5_text", "qwen35"),
    "lfm2": (bos(byte_level(split(LLAMA3), whole_words=True)), FAST, "lfm2", "lfm2"),
    "granite 4": (byte_level(split(LLAMA3)), "GPT2Tokenizer", "granitemoehybrid", "dbrx"),
    "glm4": (byte_level(split(LLAMA3), whole_words=True), FAST, "glm4_moe", "glm4"),
    "cohere2": (
        byte_level(normalizer=NFC) | {"pre_tokenizer": cuts(DIGITS, REGEX_DIGITS)},
        "CohereTokenizer",
        "cohere2",
        "command-r",
    ),
    "olmoe": (byte_level(normalizer=NFC) | {"pre_tokenizer": REGEX_DIGITS}, "GPTNeoXTokenizer", "olmoe", "olmo"),
    "seed_oss": (byte_level(split(SEED)), FAST, "seed_oss", "seed-coder"),
    "kimi": (byte_level(split(KIMI), whole_words=True), FAST, "kimi_linear", "kimi-k2"),
}
"""tokenizer.json, the class and the model that the folder names, and ``tokenizer.ggml.pre`` (or the kind) of the GGUF
file of the same model."""

DEEPSEEK2 = bos(
    byte_level(*map(split, [*DEEPSEEK2_CUTS[:3], r"\s+$", DEEPSEEK2_CUTS[4]]), DIGITS, normalizer=normalizers())
)
APART: dict[str, dict[str, Any]] = {
    "deepseek_v2": DEEPSEEK2,
    "an expression": byte_level(split(STARCODER)),
    "a rewriting expression": spelled(
        normalizer=normalizers({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, ESCAPE),
        decoder=decoders(SPELLED),
    ),
    "scripts": byte_level({"type": "UnicodeScripts"}),
    "whitespace": byte_level({"type": "Whitespace"}),
}
"""What runs in a process of its own."""
OF_ENCODERS: dict[str, dict[str, Any]] = {
    "unigram": unigram(bos(spelled(**LLAMA))),
    "accents": byte_level(split(GPT2), normalizer=normalizers({"type": "NFD"}, {"type": "StripAccents"})),
    "bert": spelled(normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                                "strip_accents": None, "lowercase": True},
                    pre_tokenizer={"type": "BertPreTokenizer"}, decoder=decoders(SPELLED)),
}  # fmt: skip
"""Parts of encoders' tokenizers, which run in this process."""


def write(folder: Path, description: dict[str, Any], cls: str, model_type: str) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
    roles = {"bos_token": "<|start|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    if description["model"].get("unk_token"):
        roles["unk_token"] = "<unk>"
    told = {"tokenizer_class": cls, **roles, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    return folder


@pytest.fixture(params=[*FAMILIES, *APART, *OF_ENCODERS])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[TextTokenizer, Any]:
    """Ours and transformers', of one folder."""
    from transformers import AutoTokenizer

    apart = request.param in APART
    others = APART | OF_ENCODERS
    known = request.param in FAMILIES
    folder = write(tmp_path, *(FAMILIES[request.param][:3] if known else (others[request.param], FAST, "llama")))
    ours = text_from_folder(folder, {})
    assert type(ours) is (IsolatedText if apart else BytePairText)
    return ours, AutoTokenizer.from_pretrained(folder)


@pytest.mark.rotating(15)
def test_ids_and_text_are_transformers(pair: tuple[TextTokenizer, Any]) -> None:
    ours, theirs = pair
    for text in TEXTS:
        for special in (True, False):
            assert ours.encode(text, add_special_tokens=special) == theirs.encode(text, add_special_tokens=special), (
                text
            )
        ids = ours.encode(text)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip), text
    more = set(theirs.get_vocab()) - set(ours.get_vocab())
    assert more <= {
        "<|endoftext|>",
        "<mask>",
        "<UNK>",
        "<CLS>",
        "<SEP>",
        "<MASK_TOKEN>",
    }  # classes of transformers add what the real vocabularies have
    assert {token: i for token, i in theirs.get_vocab().items() if token not in more} == ours.get_vocab()
    assert set(ours.all_special_ids) == set(theirs.all_special_ids) - {theirs.get_vocab()[token] for token in more}
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)


@pytest.mark.rotating(15)
def test_any_text(pair: tuple[TextTokenizer, Any]) -> None:
    ours, theirs = pair

    @settings(max_examples=30, deadline=None, database=None)
    @given(st.text(max_size=30) | st.text("aZ 1'\n▁<s>|\t日é\u0301🙂ǅ.", max_size=30))
    def same(text: str) -> None:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        shown = ours.decode(ids, skip_special_tokens=True)
        assert shown == theirs.decode(ids, skip_special_tokens=True)
        stream = Detokenizer(ours)
        assert "".join([*map(stream.put, ids), stream.end()]) == shown

    same()


@pytest.mark.rotating(15)
def test_the_stream_is_the_text_of_the_whole(pair: tuple[TextTokenizer, Any]) -> None:
    ours = pair[0]
    for text in TEXTS:
        ids = ours.encode(text)
        stream = Detokenizer(ours)
        assert "".join([*map(stream.put, ids), stream.end()]) == ours.decode(ids, skip_special_tokens=True), text


@pytest.mark.rotating(15)
def test_as_a_transformers_tokenizer(pair: tuple[TextTokenizer, Any]) -> None:
    ours, theirs = pair
    full = ours.for_transformers()
    assert full.padding_side == "left"
    for text in TEXTS:
        assert full.encode(text) == theirs.encode(text), text
        assert full.decode(full.encode(text)) == theirs.decode(theirs.encode(text)), text
    batch = full(["a cat", "it sat on the mat"], padding=True, return_tensors="pt")
    assert full.batch_decode(batch["input_ids"], skip_special_tokens=True) == [
        ours.decode(ours.encode(text), skip_special_tokens=True) for text in ("a cat", "it sat on the mat")
    ]
    assert full("a cat", "a mat")["input_ids"] == theirs("a cat", "a mat")["input_ids"]
    words = {"is_split_into_words": True, "return_offsets_mapping": True}
    assert full(["a", "cat"], **words)["offset_mapping"] == theirs(["a", "cat"], **words)["offset_mapping"]


@pytest.mark.parametrize("family", [*(f for f, parts in FAMILIES.items() if parts[-1]), "deepseek_v2"])
def test_the_gguf_file_of_the_same_model_gives_the_same_ids(tmp_path: Path, family: str) -> None:
    description, cls, model_type, pre = {**FAMILIES, "deepseek_v2": (DEEPSEEK2, FAST, "deepseek_v2", "deepseek-llm")}[
        family
    ]
    metadata = {**vocabularies.byte_level(), "tokenizer.ggml.pre": pre}
    if pre == "gemma4":
        metadata = dict(vocabularies.spelled())
    folder = text_from_folder(write(tmp_path, description, cls, model_type), {})
    file = text_from_gguf({**metadata, "tokenizer.ggml.add_bos_token": "TemplateProcessing" in str(description)}, "x")
    assert folder is not None

    def same(text: str) -> None:
        assert file.encode(text) == folder.encode(text)
        ids = file.encode(text)
        assert file.decode(ids, skip_special_tokens=True) == folder.decode(ids, skip_special_tokens=True)

    for text in TEXTS:
        same(text)
    settings(max_examples=60, deadline=None, database=None)(given(st.text(max_size=40))(same))()


def test_transformers_own_reading_of_gguf_files_has_the_same_patterns() -> None:
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    theirs: dict[str, str] = mapping.GGUF_PRE_TOKENIZER_SPLITS
    known = {name: splitting.patterns[-1] for name, splitting in SPLITTINGS.items() if name in theirs}
    assert len(known) > 15
    assert known == {name: theirs[name] for name in known}


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "tekken", "gpt-4o", "dbrx", "qwen35", "gpt-2"])
@pytest.mark.rotating(3)
def test_transformers_own_reading_of_gguf_files(tmp_path: Path, pre: str) -> None:
    pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    from transformers import AutoTokenizer

    metadata = {**vocabularies.byte_level(), "tokenizer.ggml.pre": pre}
    vocabularies.write_gguf(tmp_path / "x.gguf", metadata)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path, gguf_file="x.gguf"), text_from_gguf(metadata, "x.gguf")
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text
