"""Tokenizers of encoders: from folders and from GGUF files with the same vocabulary, single texts and pairs."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.layout import FIRST, SECOND, Layout
from ipex_lookahead.tokenization.sentencepiece_model import read_model
from ipex_lookahead.tokenization.text import BytePairText, TextTokenizer
from ipex_lookahead.tokenization.word_piece import pair_ends, unigram_core, word_piece_core
from tests.tokenization.conftest import SENTENCES

TEXTS = [
    *SENTENCES,
    "",
    "   ",
    "Ünïcödé café naïve İstanbul STRASSE straße ΑΣ ας",
    "日本語のテキスト 中文 한국어",
    "Привет, мир! مرحبا بالعالم नमस्ते ไทย",
    "emoji 🙂👩‍👩‍👧 ½ ﬁ ① Ａｂｃ \u00a0\u200b\u3000end",
    "tabs\tand\r\nlines\n\n",
    "x" * 120 + " " + "a" * 100,
    "[CLS] inside [SEP] <s> </s> <mask> [MASK]",
    "$%&-_ ~` ±×",
]


def save(folder: Path, core: Tokenizer, **settings: Any) -> TextTokenizer:
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    made = text_from_folder(folder, {"vocab_size": core.get_vocab_size()})
    assert type(made) is BytePairText  # no other process
    return made


@pytest.fixture(scope="module")
def bert() -> Tokenizer:
    core = word_piece_core({"[UNK]": 0}, "[UNK]", lowercase=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    core.train_from_iterator([*SENTENCES, *TEXTS] * 2, trainer)
    vocabulary = core.get_vocab()
    made = word_piece_core(vocabulary, "[UNK]", lowercase=True)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    made.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    return made


def bert_metadata(core: Tokenizer, **more: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes."""
    vocabulary = core.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token.content for token in core.get_added_tokens_decoder().values()}

    def spelled(token: str) -> str:
        if token.startswith("[") and token.endswith("]"):
            return token
        return token[2:] if token.startswith("##") else "▁" + token

    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [spelled(token) for token in tokens],
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.unknown_token_id": vocabulary["[UNK]"],
        "tokenizer.ggml.cls_token_id": vocabulary["[CLS]"],
        "tokenizer.ggml.seperator_token_id": vocabulary["[SEP]"],
        "tokenizer.ggml.padding_token_id": vocabulary["[PAD]"],
        "tokenizer.ggml.add_sep_token": False,  # as llama.cpp's converter writes it; both tokens are added all the same
        **more,
    }


@pytest.fixture(scope="module")
def charsmap() -> bytes:
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3), model_writer=file, vocab_size=120, minloglevel=2,
        normalization_rule_name="nmt_nfkc", hard_vocab_limit=False,
    )  # fmt: skip
    return read_model(file.getvalue(), "x").precompiled_charsmap


@pytest.fixture(scope="module")
def roberta(charsmap: bytes) -> Tokenizer:
    """XLM-RoBERTa's, with its order of special tokens."""
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.Precompiled(charsmap)
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=special, unk_token="<unk>", show_progress=False, shrinking_factor=0.5
    )
    core.train_from_iterator([*SENTENCES, *TEXTS] * 2, trainer)
    core.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    core.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    return core


def roberta_metadata(core: Tokenizer, charsmap: bytes) -> dict[str, Any]:
    pieces = [*json.loads(core.to_str())["model"]["vocab"], ["<mask>", 0.0]]
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
        "tokenizer.ggml.scores": [float(score) for _, score in pieces],
        "tokenizer.ggml.token_type": [3, 3, 3, 2, *[1] * (len(pieces) - 5), 3],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.precompiled_charsmap": [byte - 256 if byte > 127 else byte for byte in charsmap],
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }


def same(ours: TextTokenizer, theirs: Tokenizer) -> None:
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text).ids, text
        own = ours.encode(text, add_special_tokens=False)
        assert (own, None) == (theirs.encode(text, add_special_tokens=False).ids, None)
        expected = theirs.encode(text, TEXTS[2])
        found = ours.layout.arrange(own, ours.encode(TEXTS[2], add_special_tokens=False))
        assert found == (expected.ids, expected.type_ids), text


def test_word_piece_is_the_folders(tmp_path: Path, bert: Tokenizer) -> None:
    same(save(tmp_path, bert), bert)


@pytest.mark.parametrize("lowercase", [True, False, None])
def test_word_piece_of_a_gguf_file_is_the_folders(bert: Tokenizer, lowercase: bool | None) -> None:
    """Without a key, texts are lowercased, as in llama.cpp."""
    core = Tokenizer.from_str(bert.to_str())
    if lowercase is False:
        core.normalizer = normalizers.BertNormalizer(lowercase=False)
    more = {} if lowercase is None else {"tokenizer.ggml.normalizer.lowercase": lowercase}
    same(text_from_gguf(bert_metadata(bert, **more), "x.gguf"), core)


def test_a_word_that_cannot_be_spelled_is_one_unknown_token(bert: Tokenizer) -> None:
    made = text_from_gguf(bert_metadata(bert), "x.gguf")
    unknown = bert.token_to_id("[UNK]")
    assert made.encode("cat㋿cat", add_special_tokens=False) == [unknown]
    assert made.encode("a" * 101, add_special_tokens=False) == [unknown]


def test_pairs_of_bert_have_types(bert: Tokenizer) -> None:
    layout = text_from_gguf(bert_metadata(bert), "x.gguf").layout
    cls, sep = bert.token_to_id("[CLS]"), bert.token_to_id("[SEP]")
    assert layout.arrange([7, 8], [9]) == ([cls, 7, 8, sep, 9, sep], [0, 0, 0, 0, 1, 1])
    assert layout.arrange([7]) == ([cls, 7, sep], [0, 0, 0])
    assert (layout.added(), layout.added(pair=True)) == (2, 3)


def test_unigram_is_the_folders(tmp_path: Path, roberta: Tokenizer) -> None:
    same(save(tmp_path, roberta), roberta)


def test_unigram_of_a_gguf_file_is_the_folders(roberta: Tokenizer, charsmap: bytes) -> None:
    made = text_from_gguf(roberta_metadata(roberta, charsmap), "x.gguf")
    same(made, roberta)
    assert made.layout.arrange([7], [8]) == ([0, 7, 2, 2, 8, 2], [0] * 6)


def test_a_unigram_model_without_space_prefix(roberta: Tokenizer) -> None:
    core = unigram_core([("<unk>", 0.0), ("a", -1.0), ("▁b", -1.0)], 0, prefix=False)
    assert core.encode(" a   b ").ids == [1, 2]


def test_layouts_of_nothing_and_of_both_ends(bpe_core: Tokenizer) -> None:
    assert Layout.of(None) == Layout()
    assert Layout.around([5], [6]).arrange([1], [2]) == ([5, 1, 6, 5, 2, 6], [0, 0, 0, 1, 1, 1])
    made = Layout.of(pair_ends(None, ("</s>", 2), types=False))
    assert made.single == ((FIRST, 0), (2, 0))
    assert made.pair == ((FIRST, 0), (2, 0), (2, 0), (SECOND, 0), (2, 0))


def test_flags_do_not_remove_the_end_that_an_embedding_needs(tmp_path: Path, bpe_core: Tokenizer) -> None:
    core = Tokenizer.from_str(bpe_core.to_str())
    core.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="$A <|end|>", pair="$A $B:1 <|end|>", special_tokens=[("<|end|>", 1)]),
        ]
    )
    save(tmp_path, core, add_bos_token=False, eos_token="<|end|>")
    for keep, ends in ((True, [1]), (False, [])):
        made = text_from_folder(tmp_path, {"vocab_size": 400}, keep_ends=keep)
        assert made.encode("cat")[-1:] == (ends or made.encode("cat", add_special_tokens=False)[-1:])
        assert made.layout.added() == len(ends)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("scores", [float("nan")] * 6, "not finite"),
        ("precompiled_charsmap", [1, 2, 3, 4, 5], "its trie has"),
        ("scores", None, "is missing"),
    ],
)
def test_damaged_unigram_models(key: str, value: Any, problem: str) -> None:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": ["<s>", "<pad>", "</s>", "<unk>", "▁a", "b"],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, -1.0, -2.0],
        "tokenizer.ggml.unknown_token_id": 3,
        f"tokenizer.ggml.{key}": value,
    }
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(ModelFormatError, match=problem):
        text_from_gguf(metadata, "x.gguf")


def test_damaged_word_pieces(bert: Tokenizer) -> None:
    metadata = bert_metadata(bert)
    twice = metadata | {"tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"][:-1], "▁cat"]}
    with pytest.raises(ModelFormatError, match="holds .* twice"):
        text_from_gguf(twice, "x.gguf")
    without = {key: value for key, value in metadata.items() if not key.endswith("unknown_token_id")}
    assert text_from_gguf(without, "x.gguf").encode("㋿") == text_from_gguf(metadata, "x.gguf").encode("㋿")


def test_a_charsmap_in_a_folder_is_checked(tmp_path: Path, roberta: Tokenizer) -> None:
    roberta.save(str(tmp_path / "tokenizer.json"))
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    table = bytearray(base64.b64decode(description["normalizer"]["precompiled_charsmap"]))
    table[4:8] = b"\xff\xff\xff\xff"
    description["normalizer"]["precompiled_charsmap"] = base64.b64encode(table).decode()
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(ModelFormatError, match="precompiled_charsmap.*its trie"):
        text_from_folder(tmp_path, {"vocab_size": 1000})
