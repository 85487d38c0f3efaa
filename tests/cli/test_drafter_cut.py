"""``ipex-lookahead drafter cut``: the tokens that a head drafts, by texts and by a store."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from ipex_lookahead.checkpoints.draft_vocab import read_ids
from ipex_lookahead.cli.main import run
from ipex_lookahead.drafting.store import Store, vocabulary_digest
from ipex_lookahead.errors import InputError, ModelFormatError
from tests.support.chat_tokenizer import SIZE, chat_tokenizer


def test_a_cut_vocabulary(tiny, prose, tmp_path, capsys):
    out = tmp_path / "words.json"
    words = ["drafter", "cut", str(tiny), "--text", str(prose), "--output", str(out), "--tokens", "40"]
    assert run(words) == 0
    assert f"saved {out}: 40 of {SIZE} tokens" in capsys.readouterr().out
    ids = read_ids(out, SIZE)
    met = {*AutoTokenizer.from_pretrained(tiny)(prose.read_text(), add_special_tokens=False)["input_ids"]}
    assert len(ids) == 40
    assert met <= {*ids.tolist()}
    assert {*ids.tolist()} - met == {*[one for one in range(SIZE) if one not in met][: 40 - len(met)]}
    assert run(words) == 1
    assert "exists" in capsys.readouterr().err
    assert run([*words, "--overwrite"]) == 0
    with pytest.raises(InputError, match="was made for a vocabulary of"):
        read_ids(out, SIZE + 1)


def test_a_cut_counts_a_store_too(tiny, tmp_path, capsys):
    store = Store(SIZE, vocabulary_digest(chat_tokenizer().get_vocab()))
    store.add([30, 31, 30, 32, 30])
    store.save(tmp_path / "store")
    out = tmp_path / "words.json"
    words = ["drafter", "cut", str(tiny), "--store", str(tmp_path / "store"), "--output", str(out), "--tokens", "2"]
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


def test_a_cut_of_nothing(tiny, tmp_path, capsys):
    assert run(["drafter", "cut", str(tiny), "--output", str(tmp_path / "words.json")]) == 2
    assert "give --text or --store" in capsys.readouterr().err
