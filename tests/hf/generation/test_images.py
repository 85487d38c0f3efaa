"""Outputs of image processors in ``generate`` and ``forward``: plain decoding's bytes, transformers' logits, errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5.23", reason="older transformers lack these families")

from ipex_lookahead import AutoModelForCausalLM, AutoModelForImageTextToText
from ipex_lookahead.engines.images import PromptImage
from ipex_lookahead.errors import CacheFileError, InputError, UnsupportedModelError
from tests.support.chat_tokenizer import write_chat_llama
from tests.support.pictures import ours
from tests.vision.folders import IMAGE, saved
from tests.vision.test_images import noise
from tests.vision.test_towers import processor

KINDS = ["gemma4", "gemma4_unified", "qwen3_vl", "qwen3_5"]
TIE = 0.05
"""Keys and values here are binary16, transformers' are float32."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any, Any]]:
    """Return a kind's folder, our model and transformers' model."""
    found: dict[str, tuple[Path, Any, Any]] = {}

    def make(kind: str) -> tuple[Path, Any, Any]:
        if kind not in found:
            folder = tmp_path_factory.mktemp(kind)
            theirs = saved(kind, folder, processor(kind))
            model = AutoModelForImageTextToText.from_pretrained(folder, threads=2, progress=False)
            found[kind] = folder, model, theirs
        return found[kind]

    return make


def processed(kind: str, model: Any, rows: list[list[Any]], length: int = 0) -> dict[str, Any]:
    """What a processor returns for rows of texts: numbers are numbers of random tokens, pairs sizes of images.

    Rows are padded on the left to the longest, and to ``length``.
    """
    vision, images, texts = model._see(), [], []
    for number, parts in enumerate(rows):
        chance = np.random.default_rng(number)
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids += chance.integers(3, 60, part).tolist()
                continue
            seed, height, width = part
            (step,) = vision.preparation.plan(width, height).steps
            patches = vision.preparation.patches(noise(step.height, step.width, seed=seed))
            ids += [IMAGE] * int(np.prod(vision.tokens(patches)))
            images.append(patches)
        texts.append(ids)
    longest = max(length, *map(len, texts))
    found: dict[str, Any] = {
        "input_ids": torch.tensor([[0] * (longest - len(ids)) + ids for ids in texts]),
        "attention_mask": torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in texts]),
    }
    found["mm_token_type_ids"] = (found["input_ids"] == IMAGE).long()
    if kind.startswith("qwen3"):
        found["pixel_values"] = torch.from_numpy(np.concatenate([one.values for one in images]))
        found["image_grid_thw"] = torch.tensor([[1, one.grid[1], one.grid[0]] for one in images])
        return found
    most = max(len(one.values) for one in images) + 9
    values, places = [], []
    for one in images:  # row by row, then padding
        order = np.lexsort((one.places[:, 0], one.places[:, 1]))
        rest = most - len(order)
        values.append(np.pad(one.values[order], ((0, rest), (0, 0))))
        places.append(np.pad(one.places[order].astype(np.int64), ((0, rest), (0, 0)), constant_values=-1))
    return {
        **found,
        "pixel_values": torch.from_numpy(np.stack(values)),
        "image_position_ids": torch.from_numpy(np.stack(places)),
    }


def alone(kind: str, model: Any, given: dict[str, Any], new: int) -> list[int]:
    """The answer to one row from the engine, with features of the tower and no drafts."""
    vision, ids, images, start = model._see(), given["input_ids"][0].numpy().astype(np.int32), [], 0
    grids, places = (given.get(name) for name in ("image_grid_thw", "image_position_ids"))
    integers = [None if one is None else one.numpy() for one in (grids, places)]
    for patches in vision.processed(given["pixel_values"].numpy(), *integers):
        features = vision.features_of(patches, vision.digest(patches))
        start = int(np.flatnonzero(ids[start:] == IMAGE)[0]) + start
        digest, grid = vision.digest(patches), vision.tokens(patches)
        images.append(PromptImage(start, features.values, grid, digest, features.deepstack))
        start = images[-1].end
    cache, answer = model.engine.new_cache(), []
    for _ in range(new):
        answer.append(int(ours(model.engine, ids, images, cache=cache)[-1].argmax()))
        ids = np.append(ids, np.int32(answer[-1]))
    return answer


ONE = [[9, (1, 40, 90), 7]]
TWO = [[4, (2, 60, 50), 3, (1, 40, 90), 8]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [ONE, TWO])
def test_logits_are_those_of_transformers(made, kind, parts):
    _, model, theirs = made(kind)
    given = processed(kind, model, parts)
    found = model(**given).logits[0].numpy()
    types = given.pop("mm_token_type_ids")
    with torch.no_grad():
        if kind == "gemma4_unified":  # its forward alone would show images in full layers too, generate does not
            text = theirs.config.text_config
            embedded = torch.zeros(1, types.shape[1], text.hidden_size)
            given["attention_mask"] = theirs.create_masks_for_generate(
                theirs.config, embedded, given["attention_mask"], None, torch.arange(types.shape[1])[None], types
            )
        if kind.startswith("qwen3"):
            theirs.model.rope_deltas = None
        expected = theirs(**given, mm_token_type_ids=types, use_cache=False).logits[0].numpy()
    scale = expected.std(1, keepdims=True)
    assert (np.abs(found - expected) / scale).max() < TIE
    other = processed(
        kind, model, [[(part[0] + 9, *part[1:]) if isinstance(part, tuple) else part for part in parts[0]]]
    )
    assert (np.abs(found - model(**other).logits[0].numpy()) / scale).max() > TIE


@pytest.mark.parametrize("kind", KINDS)
def test_generate_gives_plain_decodings_tokens(made, kind):
    """With every strategy, in batches with padding, and with several sequences of a prompt."""
    _, model, _ = made(kind)
    singles = [processed(kind, model, rows) for rows in (ONE, TWO)]
    expected = [alone(kind, model, given, 10) for given in singles]
    for given, answer in zip(singles, expected, strict=True):
        for lookahead in (None, 4, "auto", "jacobi"):
            found = model.generate(**given, max_new_tokens=10, lookahead=lookahead, eos_token_id=None)
            assert found[0, given["input_ids"].shape[1] :].tolist() == answer
    assert model.generate(singles[0], max_new_tokens=10, eos_token_id=None)[0, -10:].tolist() == expected[0]
    both = processed(kind, model, [ONE[0], [5, (9, 40, 40), 3], TWO[0]])
    rows = [processed(kind, model, [[0]] * i + [own]) for i, own in enumerate([ONE[0], [5, (9, 40, 40), 3], TWO[0]])]
    for lookahead in (None, 3):
        found = model.generate(**both, max_new_tokens=10, lookahead=lookahead, eos_token_id=None, pad_token_id=0)
        for number, given in enumerate(rows):
            own = {**given, "input_ids": given["input_ids"][number:], "attention_mask": None, "mm_token_type_ids": None}
            own["attention_mask"] = given["attention_mask"][number:]
            assert found[number, -10:].tolist() == alone(kind, model, own, 10)
    sampled = {"do_sample": True, "num_return_sequences": 2, "seed": 3, "max_new_tokens": 8, "eos_token_id": None}
    plain = model.generate(**singles[0], **sampled)
    assert torch.equal(plain, model.generate(**singles[0], **sampled, lookahead=3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_goes_on_behind_images(made, kind, tmp_path):
    _, model, _ = made(kind)
    given = processed(kind, model, TWO)
    length = given["input_ids"].shape[1]
    answer = alone(kind, model, given, 12)
    first = model.generate(**given, max_new_tokens=5, return_dict_in_generate=True, eos_token_id=None)
    past = first.past_key_values
    past.save(tmp_path / "past.bin")
    loaded = model.load_cache(tmp_path / "past.bin")
    fork = __import__("copy").deepcopy(past)
    for one in (past, fork, loaded):
        whole = {**given, "input_ids": first.sequences, "attention_mask": None, "mm_token_type_ids": None}
        found = model.generate(**whole, past_key_values=one, max_new_tokens=7, lookahead=3, eos_token_id=None)
        assert found[0, length:].tolist() == answer
        assert model.runtime.stats.cached_tokens >= length - 8
    # One token after the other, by calls.
    output = model(**given)
    tokens = [int(output.logits[0, -1].argmax())]
    while len(tokens) < 12:
        output = model(torch.tensor([tokens[-1:]]), past_key_values=output.past_key_values)
        tokens.append(int(output.logits[0, -1].argmax()))
    assert tokens == answer
    # Another image at the second image's place, after a crop to what is before it.
    past, before = model(**given).past_key_values, 4 + int((given["input_ids"][0, 4:] != IMAGE).to(torch.int8).argmax())
    other = processed(kind, model, [[4, (2, 60, 50), 3, (7, 40, 90), 8]])
    with pytest.raises(InputError, match="an image has the tokens"):
        past.crop(before - 1)
    past.crop(before)
    assert past.get_seq_length() == before
    tail = processed(kind, model, [[3, (7, 40, 90), 8]])
    rest = {**tail, "input_ids": other["input_ids"][:, before:], "attention_mask": None}
    logits = model(**rest, past_key_values=past).logits
    assert torch.equal(logits, model(**other).logits[:, before:])
    # A cache of one image is not one of another.
    found = model.generate(**other, past_key_values=past, max_new_tokens=6, eos_token_id=None)
    assert found[0, length:].tolist() == alone(kind, model, other, 6)
    found = model.generate(**given, past_key_values=past, max_new_tokens=6, eos_token_id=None)
    assert found[0, length:].tolist() == answer[:6]
    assert model.runtime.stats.cached_tokens <= before + 3


def test_a_saved_cache_with_wrong_images_is_refused(made, tmp_path, monkeypatch):
    _, model, _ = made("qwen3_5")
    given = processed("qwen3_5", model, ONE)
    past = model(**given).past_key_values
    for wrong in (b"[[[0, 1, 2]]]", b"[]", b'[[[0, 1, 2, "00"]]]', b"\xff", b'[[[9, 1, 2, "' + b"00" * 32 + b'"]]]'):
        with monkeypatch.context() as patch:
            patch.setattr("ipex_lookahead.hf.generation.past._described", lambda images, wrong=wrong: wrong)
            past.save(tmp_path / "past.bin")
        with pytest.raises(CacheFileError, match="is damaged"):
            model.load_cache(tmp_path / "past.bin")


def test_own_loops_get_the_images_once(made):
    _, model, _ = made("qwen3_vl")
    given = processed("qwen3_vl", model, ONE)
    ids = given.pop("input_ids")
    first = model.prepare_inputs_for_generation(ids, **given)
    output = model(**first)
    step = torch.cat([ids, output.logits[:, -1:].argmax(-1)], 1)
    given["attention_mask"] = torch.ones_like(step)
    later = model.prepare_inputs_for_generation(step, past_key_values=output.past_key_values, **given)
    assert "pixel_values" not in later
    logits = model(**later).logits[0, -1]
    assert int(logits.argmax()) == alone("qwen3_vl", model, {"input_ids": ids, **given}, 2)[1]


def changed(given: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**given, **values}


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("qwen3_5", lambda g: {"pixel_values": None}, "image_grid_thw is given without pixel_values"),
        ("qwen3_5", lambda g: {"image_grid_thw": None}, "pixel_values need image_grid_thw"),
        ("gemma4", lambda g: {"image_position_ids": None}, "pixel_values need image_position_ids"),
        ("gemma4", lambda g: {"image_grid_thw": torch.tensor([[1, 2, 2]])}, "image_grid_thw is not for this model"),
        ("qwen3_5", lambda g: {"image_grid_thw": g["image_grid_thw"] * 2}, "must be 1 frame"),
        ("qwen3_5", lambda g: {"image_grid_thw": g["image_grid_thw"][:, :2]}, r"must be \[images, 3\]"),
        ("qwen3_5", lambda g: {"image_grid_thw": g["image_grid_thw"].float()}, "must be integers"),
        ("qwen3_5", lambda g: {"pixel_values": g["pixel_values"][:-4]}, "describes"),
        ("qwen3_5", lambda g: {"pixel_values": g["pixel_values"][:, :-1]}, "must be .patches, 96"),
        ("qwen3_5", lambda g: {"pixel_values": g["pixel_values"].long()}, "must be floats"),
        ("qwen3_5", lambda g: {"pixel_values": g["pixel_values"] * float("nan")}, "NaN"),
        ("gemma4", lambda g: {"image_position_ids": g["image_position_ids"].clamp(min=0)}, "each place of a grid once"),
        ("gemma4", lambda g: {"image_position_ids": g["image_position_ids"][:, 1:]}, "image_position_ids has shape"),
        ("gemma4", lambda g: {"pixel_values": g["pixel_values"][0]}, "must be .images, patches, 48"),
        ("qwen3_vl", lambda g: {"input_ids": g["input_ids"].where(g["input_ids"] != IMAGE, 5)}, "1 at image tokens"),
        ("qwen3_vl", lambda g: {"mm_token_type_ids": g["mm_token_type_ids"] * 2}, "no videos"),
        ("qwen3_vl", lambda g: {"pixel_values_videos": g["pixel_values"]}, "no videos"),
        ("qwen3_vl", lambda g: {"input_features": g["pixel_values"]}, "no sound"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(made, kind, change, message):
    _, model, _ = made(kind)
    given = processed(kind, model, ONE)
    with pytest.raises(InputError, match=message):
        model.generate(**changed(given, **change(given)), max_new_tokens=2)
    assert model.generate(**given, max_new_tokens=2).shape[1] > given["input_ids"].shape[1]


def test_images_and_tokens_must_fit_each_other(made):
    _, model, _ = made("qwen3_5")
    given = processed("qwen3_5", model, [ONE[0], TWO[0]])
    given.pop("mm_token_type_ids")
    swapped = changed(given, input_ids=given["input_ids"].flip(0), attention_mask=given["attention_mask"].flip(0))
    fewer = given["input_ids"].clone()
    fewer[0, (fewer[0] == IMAGE).nonzero()[0]] = 5
    for wrong, message in ((swapped, "does not fit its image"), (changed(given, input_ids=fewer), "image tokens")):
        for call in (lambda **g: model.generate(**g, max_new_tokens=2), model):
            with pytest.raises(InputError, match=message):
                call(**wrong)


def test_models_of_text_refuse_images(tmp_path):
    write_chat_llama(tmp_path)
    with pytest.raises(UnsupportedModelError, match="takes no images"):
        AutoModelForImageTextToText.from_pretrained(tmp_path, progress=False)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, progress=False)
    ids = torch.tensor([[1, 2, 3]])
    for call in (lambda **g: model.generate(ids, **g, max_new_tokens=2), lambda **g: model(ids, **g)):
        with pytest.raises(InputError, match="takes no images"):
            call(pixel_values=torch.zeros(1, 3))
