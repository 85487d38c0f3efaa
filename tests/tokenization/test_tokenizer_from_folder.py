"""Tokenizers of Hugging Face folders: exact where they are good, an error that names the field where they are not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, processors

from ipex_lookahead.errors import LookaheadError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.tokenization import folder as folder_module
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.splitting import GPT2, LLAMA3, QWEN2, TEKKEN
from ipex_lookahead.tokenization.tokenizer_json import read_pipeline
from tests.support import vocabularies
from tests.support.full_tokenizers import tokenizer_from_folder

from .conftest import CHATML, TEXTS

CONFIG = {"vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2}


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


@pytest.fixture
def spm_folder(tmp_path, spm_bytes):
    (tmp_path / "tokenizer.model").write_bytes(spm_bytes)
    return tmp_path


@pytest.fixture
def description(bpe_core) -> dict[str, Any]:
    return json.loads(bpe_core.to_str())


@pytest.fixture
def bpe_folder(tmp_path, description):
    write(tmp_path / "tokenizer.json", description)
    write(tmp_path / "tokenizer_config.json", {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}})
    return tmp_path


def test_a_folder_without_tokenizer_has_none(tmp_path):
    write(tmp_path / "config.json", {})
    write(tmp_path / "tokenizer_config.json", {"bos_token": "<s>"})
    assert tokenizer_from_folder(tmp_path, CONFIG) is None


# tokenizer.model


@pytest.mark.parametrize("model", ["stories260K", "babyllama-tok105"])
def test_trained_models_equal_the_package(shared, model):
    folder = shared / "models" / model
    config = json.loads((folder / "config.json").read_text())
    tokenizer = tokenizer_from_folder(folder, config)
    processor = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    lines = sorted((shared / "corpus").glob("*.txt"))[0].read_text(encoding="utf-8").splitlines()[:400]
    for text in [*TEXTS, *lines]:
        ids = tokenizer.encode(text, split_special_tokens=True)
        assert ids == [1, *processor.encode(text)], text
        if processor.unk_id() not in ids:
            assert tokenizer.decode(ids, skip_special_tokens=True) == processor.decode(ids)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, len(tokenizer)) == (1, 2, config["vocab_size"])


@pytest.mark.parametrize("name", ["no bytes", "unigram", "normalised", "no prefix", "user symbols"])
def test_every_kind_of_model_equals_the_package(tmp_path, spm_variants, name):
    (tmp_path / "tokenizer.model").write_bytes(spm_variants[name])
    tokenizer = tokenizer_from_folder(tmp_path, CONFIG)
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm_variants[name])
    for text in TEXTS:
        assert tokenizer.encode(text, split_special_tokens=True) == [1, *processor.encode(text)]


def test_settings_of_a_sentencepiece_folder(spm_folder, spm_bytes):
    n = sentencepiece.SentencePieceProcessor(model_proto=spm_bytes).get_piece_size()
    settings = {
        "add_bos_token": False,
        "add_eos_token": True,
        "chat_template": CHATML,
        "model_max_length": 2048,
        "tokenizer_class": "EvilTokenizer",
        "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]},
        "added_tokens_decoder": {"1": {"content": "<s>", "special": True}, str(n): {"content": "<|start|>"}},
    }
    write(spm_folder / "tokenizer_config.json", settings)
    write(spm_folder / "special_tokens_map.json", {"pad_token": "<unk>", "eos_token": {"content": "</s>"}})
    tokenizer = tokenizer_from_folder(spm_folder, CONFIG)
    assert type(tokenizer).__name__ == "SentencePieceTokenizer"
    ids = tokenizer("the cat")["input_ids"]
    assert (ids[0] == 1, ids[-1]) == (False, 2)
    assert (tokenizer.pad_token_id, tokenizer.model_max_length, tokenizer.padding_side) == (0, 2048, "left")
    assert tokenizer.encode("<|start|>", add_special_tokens=False) == [n]
    assert tokenizer.decode([n]) == "<|start|>"
    assert len(tokenizer) == n + 1
    assert tokenizer.chat_template == CHATML


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"bos_token": 5}, "bos_token: is a number"),
        ({"bos_token": ""}, "bos_token"),
        ({"bos_token": {"text": "<s>"}}, "bos_token"),
        ({"eos_token": "<nowhere>"}, "'<nowhere>' is not in the vocabulary"),
        ({"additional_special_tokens": ["<nowhere>"]}, "'<nowhere>' is not in the vocabulary"),
        ({"add_bos_token": "yes"}, "add_bos_token: is a string"),
        ({"chat_template": 5}, "chat_template"),
        ({"chat_template": [{"name": "x"}]}, "chat_template"),
        ({"chat_template": ["x"]}, "chat_template"),
        ({"chat_template": "x" * (256 * 1024 + 1)}, "chat_template"),
        ({"added_tokens_decoder": []}, "added_tokens_decoder: is an array"),
        ({"added_tokens_decoder": {"x": {"content": "a"}}}, "is not a valid id"),
        ({"added_tokens_decoder": {"-1": {"content": "a"}}}, "is not a valid id"),
        ({"added_tokens_decoder": {"513": {"content": "aa"}}}, "is not a valid id"),
        ({"added_tokens_decoder": {"99999999999999": {"content": "aa"}}}, "is not a valid id"),
        ({"added_tokens_decoder": {"5": {"content": "<s>"}}}, "contradicts"),
        ({"added_tokens_decoder": {"1": {"content": "<other>"}}}, "contradicts"),
        ({"added_tokens_decoder": {"500": {"content": "q!"}, "501": {"content": "q!"}}}, "contradicts"),
        ({"added_tokens_decoder": {"500": 5}}, "must be a token"),
    ],
)
def test_bad_settings(spm_folder, settings, problem):
    write(spm_folder / "tokenizer_config.json", settings)
    with pytest.raises(ModelFormatError, match=problem) as caught:
        tokenizer_from_folder(spm_folder, CONFIG)
    assert "tokenizer_config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"vocab_size": 100}, "pieces, but the model's embedding has 100 rows"),
        ({"vocab_size": 512, "eos_token_id": 511}, "eos_token_id: is 511, which is not an id"),
        ({"vocab_size": 512, "bos_token_id": -1}, "bos_token_id: is -1, which is not an id"),
        ({"vocab_size": 512, "bos_token_id": "1"}, "bos_token_id: is '1', which is not an id"),
    ],
)
def test_a_model_that_does_not_fit_the_config(spm_folder, config, problem):
    with pytest.raises(ModelFormatError, match=problem):
        tokenizer_from_folder(spm_folder, config)


def test_files_that_are_no_tokenizer(tmp_path, spm_folder, monkeypatch):
    (spm_folder / "tokenizer_config.json").write_bytes(b'{"a": 1, "a": 2}')
    with pytest.raises(ModelFormatError, match="twice"):
        tokenizer_from_folder(spm_folder, CONFIG)
    (spm_folder / "tokenizer_config.json").write_bytes(b"{}")
    (spm_folder / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(ModelFormatError, match="is not UTF-8"):
        tokenizer_from_folder(spm_folder, CONFIG)
    (spm_folder / "chat_template.jinja").write_text("{{ 'from the file' }}")
    assert tokenizer_from_folder(spm_folder, CONFIG).chat_template == "{{ 'from the file' }}"
    monkeypatch.setattr(folder_module, "MAX_TOKENIZER", 100)
    with pytest.raises(ModelFormatError, match="the maximum is 100"):
        tokenizer_from_folder(spm_folder, CONFIG)
    (spm_folder / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelFormatError, match="has no pieces"):
        tokenizer_from_folder(spm_folder, CONFIG)


def test_symbols_of_spaces_as_gemma_has_them(tmp_path):
    """sentencepiece finds them in a run of spaces; they are text, and no word of their own."""
    (tmp_path / "tokenizer.model").write_bytes(vocabularies.sentencepiece_model(dummy_prefix=False))
    known = text_from_folder(tmp_path, {"bos_token_id": 1}).get_vocab()
    settings = {"added_tokens_decoder": {str(known["▁▁"]): {"content": "▁▁", "special": False}}}
    for told in ({}, settings):
        write(tmp_path / "tokenizer_config.json", told)
        ours = text_from_folder(tmp_path, {"bos_token_id": 1})
        processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
        in_gguf = text_from_gguf(vocabularies.pieces(dummy_prefix=False), "x.gguf")
        for text in ("a    b  c", "   x", "  \n   y", "x     "):
            ids = ours.encode(text)
            assert ids == [1, *processor.encode(text)] == in_gguf.encode(text)
            for tokenizer in (ours, in_gguf, ours.for_transformers()):
                assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_tokens_that_take_the_space_beside_them(tmp_path):
    """As transformers' own splitting, which the full tokenizer has."""
    (tmp_path / "tokenizer.model").write_bytes(vocabularies.sentencepiece_model(dummy_prefix=True))
    ids = text_from_folder(tmp_path, {"bos_token_id": 1}).get_vocab()
    sides = {"<|start|>": {"rstrip": True}, "<|end|>": {"rstrip": True, "lstrip": True}, "[TOOL]": {"lstrip": True}}
    tokens = {str(ids[text]): {"content": text, **sides[text]} for text in sides}
    write(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": tokens})
    ours = text_from_folder(tmp_path, {"bos_token_id": 1})
    full = ours.for_transformers()
    for text in [*vocabularies.TEXTS, "a <|end|> b", "a\n[TOOL] \nb <|start|>\t c", "  <|end|>  ", "<|start|>   "]:
        assert ours.encode(text) == full.encode(text), text
    assert ours.encode("a  <|end|>  b") == ours.encode("a<|end|>b")


def test_several_templates(spm_folder):
    templates = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    write(spm_folder / "tokenizer_config.json", {"chat_template": templates})
    tokenizer = tokenizer_from_folder(spm_folder, CONFIG)
    chat = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "a"
    assert tokenizer.apply_chat_template(chat, tokenize=False, tools=[{"name": "t"}]) == "b"
    assert tokenizer.apply_chat_template(chat, tokenize=False, chat_template="tool_use") == "b"
    assert tokenizer.apply_chat_template(chat, tokenize=False, chat_template="{{ 'c' }}") == "c"


# tokenizer.json


def test_byte_level_ids_equal_the_library(bpe_folder, bpe_core):
    tokenizer = tokenizer_from_folder(bpe_folder, {"vocab_size": 400})
    bpe_core.encode_special_tokens = True
    for text in TEXTS:
        assert tokenizer.encode(text, split_special_tokens=True) == bpe_core.encode(text).ids
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 1)
    assert tokenizer.padding_side == "left"


@pytest.mark.parametrize("pattern", [GPT2, LLAMA3, QWEN2, TEKKEN])
def test_a_pipeline_as_llama_3_has_it(bpe_folder, description, pattern):
    """Regex split, byte level, beginning of sequence by template, tokens added behind the vocabulary."""
    description["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    description["model"]["ignore_merges"] = True
    description["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    description["added_tokens"].append({**description["added_tokens"][0], "id": 400, "content": "<|bos|>"})
    description["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [400], "tokens": ["<|bos|>"]}},
    }
    write(bpe_folder / "tokenizer.json", description)
    write(bpe_folder / "tokenizer_config.json", {"bos_token": "<|bos|>", "eos_token": "<|end|>"})
    tokenizer = tokenizer_from_folder(bpe_folder, {"vocab_size": 401})
    library = Tokenizer.from_str(json.dumps(description))
    for text in TEXTS:
        assert tokenizer.encode(text) == library.encode(text).ids
        assert tokenizer.encode(text)[0] == 400
        if "<" not in text:
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_a_pipeline_as_llama_2_has_it(tmp_path):
    """Prepend and replace, byte fallback, a decoder in four parts."""
    letters = ["▁", "t", "h", "e", "c", "a", "▁t", "he", "▁the", "at"]
    vocab = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *letters])}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "t")]
    core = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_from_folder(tmp_path, {"vocab_size": len(vocab), "bos_token_id": 1, "eos_token_id": [2]})
    assert tokenizer.eos_token == "</s>"
    for text in TEXTS:
        assert tokenizer.encode(text) == core.encode(text).ids
    assert tokenizer.decode(tokenizer.encode("the cat é"), skip_special_tokens=True) == "the cat é"
    write(tmp_path / "tokenizer_config.json", {"add_bos_token": False, "add_eos_token": True})
    ids = tokenizer_from_folder(tmp_path, {"bos_token_id": 1, "eos_token_id": 2}).encode("the")
    assert (ids[0] == 1, ids[-1]) == (False, 2)


def damage(good: dict[str, Any]) -> dict[str, tuple[dict[str, Any], type[LookaheadError], str]]:
    """Damaged copies of a ``tokenizer.json``, the error each must give and what it must say."""
    cases: dict[str, tuple[dict[str, Any], type[LookaheadError], str]] = {}

    def case(name: str, path: str, value: Any, kind: type[LookaheadError], says: str) -> None:
        changed = copy.deepcopy(good)
        *parents, last = path.split("/")
        place = changed
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place[key]
        place[int(last) if isinstance(place, list) else last] = value
        cases[name] = (changed, kind, says)

    bad, unsupported = ModelFormatError, UnsupportedModelError
    regex = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    case("model missing", "model", None, bad, "model: is null")
    case("model type", "model/type", "Mystery", unsupported, "Mystery.*known are BPE, Unigram, WordLevel, WordPiece")
    case("model type a list", "model/type", ["BPE"], unsupported, "known are BPE, Unigram, WordLevel, WordPiece")
    case("model of another type", "model/type", "WordPiece", bad, "model.unk_token.*not allowed")
    case("unigram of a vocabulary", "model/type", "Unigram", bad, "array of pieces and scores")
    case("vocab missing", "model/vocab", None, bad, "model.vocab")
    case("vocab empty", "model/vocab", {}, bad, "has 0 tokens")
    case("vocab id negative", "model/vocab/a", -1, bad, "is -1")
    case("vocab id beyond", "model/vocab/a", 400, bad, "ids 0 to 399")
    case("vocab id text", "model/vocab/a", "5", bad, "is '5'")
    case("vocab id flag", "model/vocab/a", True, bad, "is True")
    case("vocab id twice", "model/vocab/a", good["model"]["vocab"]["b"], bad, "two tokens have the same id")
    case("merges missing", "model/merges", None, bad, "model.merges")
    case("merge number", "model/merges/0", 5, bad, "array of pairs")
    case("merge twice", "model/merges/0", good["model"]["merges"][1], bad, "appears twice")
    case("unknown token", "model/unk_token", "<nowhere>", bad, "unk_token")
    case("dropout", "model/dropout", 0.5, unsupported, "dropout")
    case("suffix", "model/end_of_word_suffix", 5, bad, "the tokenizers library does not take it")
    case("fallback", "model/byte_fallback", 1, bad, "byte_fallback")
    case("added no list", "added_tokens", {}, bad, "added_tokens")
    case("added no object", "added_tokens/0", 5, bad, "must be an object")
    case("added id beyond", "added_tokens/0/id", 500, bad, f"ids 0 to {399 + len(good['added_tokens'])}")
    case("added id other", "added_tokens/0/id", 7, bad, "contradicts")
    case("added empty", "added_tokens/0/content", "", bad, "content")
    case("added flag", "added_tokens/0/special", "yes", bad, "special")
    case("added twice", "added_tokens/1", good["added_tokens"][0], bad, "appears twice")
    case("normalizer", "normalizer", {"type": "Mystery"}, unsupported, "known are .*Precompiled")
    case("charsmap", "normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, bad, "its trie has 0 bytes")
    case(
        "normalizer regex",
        "normalizer",
        {"type": "Replace", "pattern": {"Regex": "(x+"}, "content": ""},
        bad,
        "the tokenizers library does not take it",
    )
    case("normalizer text", "normalizer", {"type": "Prepend", "prepend": 5}, bad, "prepend")
    case("pre-tokenizer", "pre_tokenizer", {"type": "Mystery"}, unsupported, "known are .*ByteLevel.*Sequence")
    case("regex", "pre_tokenizer", {**regex, "pattern": {"Regex": "(a+"}}, bad, "does not take it")
    case("regex and more", "pre_tokenizer", {**regex, "pattern": {"Regex": "a", "String": "a"}}, bad, "pattern")
    case("sequence no list", "pre_tokenizer", {"type": "Sequence", "pretokenizers": 5}, bad, "must be an array")
    case("sequence of numbers", "pre_tokenizer", {"type": "Sequence", "pretokenizers": [5]}, bad, "must be an object")
    case("empty pattern", "pre_tokenizer", {**regex, "pattern": {"String": ""}}, bad, "String or a Regex")
    case("behaviour", "pre_tokenizer", {**regex, "behavior": "Explode"}, bad, "behavior")
    case("flag", "pre_tokenizer", {"type": "ByteLevel", "use_regex": 1}, bad, "use_regex")
    case("missing setting", "pre_tokenizer", {"type": "Split", "pattern": {"String": "x"}}, bad, "does not take it")
    case("type no text", "pre_tokenizer", {"type": ["ByteLevel"]}, unsupported, "ByteLevel")
    case("decoder", "decoder", {"type": "Mystery"}, unsupported, "known are .*CTC")
    case("strip", "decoder", {"type": "Strip", "content": " ", "start": -1, "stop": 0}, bad, "start")
    template = {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}
    case(
        "template id",
        "post_processor",
        {**template, "special_tokens": {"x": {"id": "x", "ids": [400], "tokens": ["x"]}}},
        bad,
        "ids 0 to 399",
    )
    case(
        "template lengths",
        "post_processor",
        {**template, "special_tokens": {"x": {"id": "x", "ids": [1], "tokens": []}}},
        bad,
        "one id for each token",
    )
    case(
        "template unlisted",
        "post_processor",
        {**template, "single": [{"SpecialToken": {"id": "y", "type_id": 0}}]},
        bad,
        "neither a sequence nor",
    )
    case("template no list", "post_processor", {**template, "single": "A"}, bad, "post_processor.single")
    case("post-processor", "post_processor", {"type": "RobertaProcessing"}, bad, "does not take it")
    return cases  # fmt: skip


CASES = sorted(
    damage({"model": {"vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]] * 2}, "added_tokens": [{"id": 0}, {}]})
)


@pytest.mark.parametrize("name", CASES)
def test_damaged_tokenizer_json(bpe_folder, description, name):
    changed, kind, says = damage(description)[name]
    write(bpe_folder / "tokenizer.json", changed)
    with pytest.raises(kind, match=says) as caught:
        tokenizer_from_folder(bpe_folder, {"vocab_size": 400})
    assert "tokenizer.json" in str(caught.value)


def test_unlisted_settings_and_padding_have_no_effect(bpe_folder, description):
    expected = tokenizer_from_folder(bpe_folder, {}).encode("the cat")
    description["truncation"] = {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    description["padding"] = {"strategy": {"Fixed": 10**12}, "pad_id": 0}
    description["pre_tokenizer"]["code"] = "__import__('os')"
    description["auto_map"] = "evil"
    write(bpe_folder / "tokenizer.json", description)
    assert tokenizer_from_folder(bpe_folder, {}).encode("the cat") == expected


@pytest.mark.parametrize("merge", [["a"], ["a", "b", "c"], ["a", 1], ["a", ["b"]], ["日", "本"], ["b", "a"]])
@pytest.mark.parametrize("apart", [False, True])
def test_a_merge_at_fault_is_found_when_the_file_is_read(tmp_path, description, merge, apart):
    """In this process by the library, which looks up each, and said in our words; before one of its own is started."""
    description["model"]["merges"][3] = merge
    if apart:
        description["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(x+)+y"}, "behavior": "Isolated",
                                        "invert": False}  # fmt: skip
    write(tmp_path / "tokenizer.json", description)
    with pytest.raises(ModelFormatError, match=r"model\.merges: merge 3, ") as caught:
        text_from_folder(tmp_path, {})
    assert caught.value.problem.endswith(("is not two tokens with one space between them", "not in the vocabulary"))


def test_a_pipeline_is_what_the_library_makes_of_its_description(tmp_path, description):
    """Vocabulary, merges and added tokens go to the library by themselves; which ids those get must not differ."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    first = max(description["model"]["vocab"].values()) + 1
    after = max([first - 1, *(token["id"] for token in description["added_tokens"])]) + 1
    named = {token["content"] for token in description["added_tokens"]}
    ordinary = next(token for token in description["model"]["vocab"] if len(token) > 2 and token not in named)
    description["added_tokens"] += [
        {"id": after, "content": "<think>", **flags},
        {"id": after + 1, "content": "<|x|>", **flags, "special": True, "normalized": False, "rstrip": True},
        {"id": after + 2, "content": "</think>", **flags, "lstrip": True, "single_word": True},
        {"id": description["model"]["vocab"][ordinary], "content": ordinary, **flags},
    ]
    description["model"] |= {"unk_token": "a", "fuse_unk": True, "byte_fallback": True}
    pipeline = read_pipeline(description, tmp_path / "tokenizer.json", None)
    assert pipeline.apart is None
    whole = Tokenizer.from_str(json.dumps(pipeline.description))
    assert json.loads(pipeline.core().to_str()) == json.loads(whole.to_str())
    assert pipeline.core().get_vocab() == whole.get_vocab()
