"""``ipex-lookahead drafter cut``: the tokens that a head drafts, by texts and by a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from ipex_lookahead.checkpoints.draft_vocab import read_ids
from ipex_lookahead.cli.main import run
from ipex_lookahead.drafting.store import Store, vocabulary_digest
from ipex_lookahead.errors import InputError, ModelFormatError
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", vocab=SIZE, layers=4)
    chat_tokenizer().save_pretrained(made)
    return made


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"the cat number {number} sat on the mat" for number in range(40)))
    return file


def test_a_cut_vocabulary(folder, text, tmp_path, capsys):
    out = tmp_path / "words.json"
    words = ["drafter", "cut", str(folder), "--text", str(text), "--output", str(out), "--tokens", "40"]
    assert run(words) == 0
    assert f"saved {out}: 40 of {SIZE} tokens" in capsys.readouterr().out
    ids = read_ids(out, SIZE)
    met = {*AutoTokenizer.from_pretrained(folder)(text.read_text(), add_special_tokens=False)["input_ids"]}
    assert len(ids) == 40
    assert met <= {*ids.tolist()}
    assert {*ids.tolist()} - met == {*[one for one in range(SIZE) if one not in met][: 40 - len(met)]}
    assert run(words) == 1
    assert "is there already" in capsys.readouterr().err
    assert run([*words, "--overwrite"]) == 0
    with pytest.raises(InputError, match="is of a vocabulary of"):
        read_ids(out, SIZE + 1)


def test_a_cut_counts_a_store_too(folder, tmp_path, capsys):
    store = Store(SIZE, vocabulary_digest(chat_tokenizer().get_vocab()))
    store.add([30, 31, 30, 32, 30])
    store.save(tmp_path / "store")
    out = tmp_path / "words.json"
    words = ["drafter", "cut", str(folder), "--store", str(tmp_path / "store"), "--output", str(out), "--tokens", "2"]
    assert run(words) == 0, capsys.readouterr().err
    assert read_ids(out, SIZE).tolist() == [30, 31]


@pytest.mark.parametrize(
    "holds", ["", "[1]", "{}", '{"draft_vocab": [], "vocab_size": 9}', '{"draft_vocab": [9], "vocab_size": 9}',
              '{"draft_vocab": [1.5], "vocab_size": 9}', '{"draft_vocab": [-1], "vocab_size": 9}']
)  # fmt: skip
def test_a_file_that_is_no_cut_is_refused(tmp_path, holds):
    file = tmp_path / "words.json"
    file.write_text(holds)
    with pytest.raises(ModelFormatError):
        read_ids(file, 9)


def test_a_cut_of_nothing(folder, tmp_path, capsys):
    assert run(["drafter", "cut", str(folder), "--output", str(tmp_path / "words.json")]) == 2
    assert "give --text or --store" in capsys.readouterr().err
