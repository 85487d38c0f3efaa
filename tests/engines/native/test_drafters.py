"""Heads that are named, or lie beside a model: they draft what the model's own block does, or are refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5", reason="the tiny models are transformers 5's")
import torch
from safetensors.torch import load_file, save_file

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.load import load
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import InputError, LookaheadError, ModelFormatError
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.runtime.loading import load_text_model
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.eagle3_folders import Head, Shape
from tests.support.family_table import VOCAB, Variant, variants
from tests.support.gguf_families import write_gguf
from tests.support.mtp_folders import add_to_gguf, block_alone, with_mtp
from tests.support.tiny_families import config_of, with_weights, write_folder

FAMILY = "qwen3_5_text"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``whole``, a folder with the block, ``bare`` without; GGUF files of both, and of the block alone."""
    root = tmp_path_factory.mktemp("drafters")
    target, block = with_mtp(root / "whole", FAMILY, variants(FAMILY)[0])
    shutil.copytree(root / "whole", root / "bare")
    without_block(root / "bare")
    layers = target.config.num_hidden_layers
    (root / "gguf").mkdir()
    write_gguf(root / "bare.gguf", target)
    write_gguf(root / "whole.gguf", target, change=add_to_gguf(block, layers))
    write_gguf(root / "alone.gguf", target, change=block_alone(block, layers))
    write_gguf(root / "no-embedding.gguf", target, change=block_alone(block, layers, embedding=False))
    return root


def without_block(folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file(
        {name: one for name, one in load_file(file).items() if not name.startswith("mtp.")}, file, {"format": "pt"}
    )


def tokens_of_the_text() -> np.ndarray:
    return np.random.default_rng(0).integers(3, VOCAB, 12).astype(np.int32)


def drafts(engine: Any, count: int = 6) -> Any:
    tokens, cache = tokens_of_the_text(), engine.new_cache()
    engine.head.follow(cache)
    engine.forward(chain(cache, tokens[:-1]))
    cache.keep(list(range(11)))
    return engine.head.draft(cache, int(tokens[-1]), count)


def engine(path: Path, **more: Any) -> Any:
    return load(LoadRequest(path, threads=1, **more)).engine


@pytest.mark.parametrize("drafter", ["whole", "whole.gguf", "alone.gguf", "no-embedding.gguf"])
@pytest.mark.parametrize("target", ["bare", "bare.gguf"])
def test_a_named_head_drafts_as_the_models_own_does(made: Path, target: str, drafter: str) -> None:
    own = engine(made / target.replace("bare", "whole"))
    found = engine(made / target, drafter=made / drafter)
    tokens, probs = drafts(found)
    theirs, expected = drafts(own)
    assert tokens == theirs
    assert probs == pytest.approx(expected, rel=1e-5)
    said = found.describe()["drafter"]
    assert said["kind"] == "mtp"
    assert said["from"] == str(made / drafter)
    assert said["draft_vocab"] == VOCAB
    assert said["weight_bytes"] > 0


def test_a_named_head_goes_before_the_models_own(made: Path) -> None:
    assert engine(made / "whole").describe()["drafter"]["kind"] == "mtp"
    assert "from" not in engine(made / "whole").describe()["drafter"]
    assert engine(made / "whole", drafter=made / "alone.gguf").describe()["drafter"]["from"].endswith("alone.gguf")
    assert engine(made / "bare").head is None
    assert "drafter" not in engine(made / "bare").describe()


def beside(made: Path, folder: Path, **files: str) -> Path:
    """A model's file ``model.gguf`` in a new folder, and others beside it."""
    folder.mkdir()
    shutil.copy(made / "bare.gguf", folder / "model.gguf")
    for name, source in files.items():
        shutil.copy(made / source, folder / f"{name.replace('_', '-')}.gguf")
    return folder / "model.gguf"


def test_a_head_beside_the_model_is_found(made: Path, tmp_path: Path) -> None:
    model = beside(made, tmp_path / "here", mtp_model="alone.gguf")
    for path in (model, model.parent):
        found = engine(path)
        assert found.describe()["drafter"]["from"] == str(model.with_name("mtp-model.gguf"))
        assert drafts(found) == drafts(engine(made / "whole.gguf"))
    assert engine(beside(made, tmp_path / "other", notmtp="alone.gguf")).head is None


def test_of_several_beside_it_the_one_that_is_its_own_is_used(made: Path, tmp_path: Path, caplog: Any) -> None:
    target, block = with_mtp(tmp_path / "larger", FAMILY, variants(FAMILY)[0], hidden_size=128)
    other = tmp_path / "larger.gguf"
    write_gguf(other, target, change=block_alone(block, target.config.num_hidden_layers))
    model = beside(made, tmp_path / "here", mtp_zzz="alone.gguf")
    shutil.copy(other, model.with_name("mtp-model-large.gguf"))
    assert engine(model).describe()["drafter"]["from"].endswith("mtp-zzz.gguf")
    assert not caplog.text
    model.with_name("mtp-zzz.gguf").write_bytes(b"GGUF")
    assert engine(model).head is None
    assert "mtp-zzz.gguf cannot be used, since" in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": 128}, "hidden size 128, not 64"),
        ({"vocab_size": 2 * VOCAB}, f"vocabulary {2 * VOCAB}, not {VOCAB}"),
        ({"num_hidden_layers": 8, "layer_types": None}, "number of layers 8, not 4"),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_head_of_another_model_is_refused(
    made: Path, tmp_path: Path, kind: str, change: dict[str, Any], said: str
) -> None:
    target, block = with_mtp(tmp_path / "folder", FAMILY, variants(FAMILY)[0], **change)
    write_gguf(tmp_path / "gguf", target, change=block_alone(block, target.config.num_hidden_layers))
    with pytest.raises(InputError, match="is a head for another model, with") as error:
        engine(made / "bare", drafter=tmp_path / kind)
    assert said in str(error.value)
    assert str(tmp_path / kind) in str(error.value)
    assert "drafter" in error.value.hint


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_head_with_another_embedding_is_refused(made: Path, tmp_path: Path, kind: str) -> None:
    target, block = with_mtp(tmp_path / "folder", FAMILY, variants(FAMILY)[0])
    with torch.no_grad():
        target.get_input_embeddings().weight.copy_(torch.randn(VOCAB, 64, generator=torch.manual_seed(1)))
    file = tmp_path / "folder" / "model.safetensors"
    embedding = {"model.embed_tokens.weight": target.get_input_embeddings().weight.detach().clone()}
    save_file({**load_file(file), **embedding}, file, {"format": "pt"})
    write_gguf(tmp_path / "gguf", target, change=block_alone(block, target.config.num_hidden_layers))
    with pytest.raises(InputError, match="the embedding that it carries has a correlation of -?0.[01]"):
        engine(made / "bare", drafter=tmp_path / kind)


def test_the_embedding_of_a_target_in_few_bits_is_known_again(made: Path) -> None:
    assert engine(made / "bare.gguf", low_bit="sym_int2", drafter=made / "alone.gguf").head is not None


def test_what_holds_no_head_is_refused(made: Path) -> None:
    for path in ("bare", "bare.gguf"):
        with pytest.raises(InputError, match="has no head that drafts for a qwen3_5_text model") as error:
            engine(made / "whole", drafter=made / path)
        assert str(made / path) in str(error.value)


def test_a_damaged_head_that_was_named_is_an_error(made: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((made / "alone.gguf").read_bytes()[:-4096])
    with pytest.raises(ModelFormatError):
        engine(made / "bare", drafter=cut)


def test_a_block_alone_is_no_model(made: Path) -> None:
    with pytest.raises(ModelFormatError) as error:
        engine(made / "alone.gguf")
    assert "has only an MTP block" in error.value.hint


def test_how_many_tokens_it_drafts(made: Path) -> None:
    for count, expected in ((17, 17), (0, VOCAB), (10 * VOCAB, VOCAB), (None, VOCAB)):
        head = engine(made / "bare", drafter=made / "alone.gguf", draft_vocab=count).head
        assert head.describe()["draft_vocab"] == len(head.ids) == expected
    own = {token // 16 for token in tokens_of_the_text()}  # the text's own are drafted too, and the tiles they are in
    drafted = drafts(engine(made / "whole", draft_vocab=17))[0]
    assert all(token < 17 or token // 16 in own for token in drafted)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"low_bit": "sym_int4"}, "sym_int8"),
        ({"low_bit": "sym_int4", "drafter_low_bit": "sym_int4"}, "sym_int4"),
        ({"low_bit": "fp16"}, "fp16"),
        ({"low_bit": "fp6"}, "fp6"),
        ({}, "fp32"),
        ({"drafter_low_bit": "sym_int8"}, "sym_int8"),
    ],
)
def test_its_format(made: Path, options: dict[str, Any], expected: str) -> None:
    for more in ({}, {"drafter": made / "alone.gguf"}):
        head = engine(made / "whole", **options, **more).head
        assert {w.format for _, w in head.weights() if len(w.shape) == 2} == {expected}
    assert expected == "sym_int4" or FORMATS[expected].bits >= 6


def test_settings_of_a_head_need_one(made: Path) -> None:
    for name, value in (("draft_vocab", 0), ("drafter_low_bit", "sym_int8")):
        with pytest.raises(InputError, match=f"{name}=.* needs a drafting head, but no usable head was found"):
            engine(made / "bare", **{name: value})


def test_from_python(made: Path) -> None:
    ids = torch.arange(5, 25)[None]
    plain = AutoModelForCausalLM.from_pretrained(made / "bare", progress=False)
    model = AutoModelForCausalLM.from_pretrained(
        made / "bare", drafter=made / "alone.gguf", draft_vocab=40, progress=False
    )
    expected = plain.generate(ids, max_new_tokens=30)
    config = LookaheadConfig("head", num_draft_tokens=4, adaptive=False, draft_min_prob=0.0)
    assert model.generate(ids, max_new_tokens=30, lookahead=config).tolist() == expected.tolist()
    assert model.stats.drafted > 0
    assert model.engine.describe()["drafter"]["draft_vocab"] == 40
    model, _ = AutoModelForCausalLM.from_gguf(made / "bare.gguf", drafter=made / "alone.gguf", progress=False)
    assert model.engine.head is not None
    for wrong, said in (
        (-1, "draft_vocab is"),
        (2.5, "draft_vocab is"),
        (True, "draft_vocab is"),
        ("many", "draft_vocab is"),
    ):
        with pytest.raises(LookaheadError, match=said):
            AutoModelForCausalLM.from_pretrained(made / "whole", draft_vocab=wrong, progress=False)
    with pytest.raises(InputError, match="drafter=.* needs the engine native or opencl"):
        AutoModelForCausalLM.from_pretrained(made / "bare", engine="torch", drafter=made / "alone.gguf")


def test_a_model_for_text_takes_one_too(made: Path, tmp_path: Path) -> None:
    target, block = with_mtp(tmp_path / "model", FAMILY, variants(FAMILY)[0], vocab_size=SIZE)
    chat_tokenizer().save_pretrained(tmp_path / "model")
    write_gguf(tmp_path / "alone.gguf", target, change=block_alone(block, target.config.num_hidden_layers))
    without_block(tmp_path / "model")
    loaded = load_text_model(str(tmp_path / "model"), drafter=str(tmp_path / "alone.gguf"), progress=False)
    assert loaded.engine.head is not None


@pytest.mark.parametrize(("hidden", "warned"), [(64, True), (40, False), (96, False)])
def test_an_eagle3_head_may_have_an_embedding_of_its_own(
    tmp_path: Path, hidden: int, warned: bool, caplog: Any
) -> None:
    """One of another width cannot be compared with the model's; one that is unlike is a warning. No token changes."""
    model = with_weights(config_of("llama", Variant("six layers", {"num_hidden_layers": 6})))
    folder = write_folder(tmp_path / "model", model)
    shape = Shape(hidden=hidden, heads=4, kv_heads=2, head_dim=16, own_embedding=True)
    Head(shape, model).write_flat(folder / "drafter")
    plain = AutoModelForCausalLM.from_pretrained(folder, progress=False, threads=1)
    assert plain.engine.head is not None
    assert ("has a correlation of" in caplog.text) == warned
    ids, options = torch.from_numpy(tokens_of_the_text())[None].long(), {"max_new_tokens": 16, "do_sample": False}
    assert torch.equal(plain.generate(ids, **options, lookahead="head", adaptive=False), plain.generate(ids, **options))
