"""Images in ``LLM``: answers of transformers, equal under lookahead and caching, and refusals."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import AddedToken

from ipex_lookahead.cli.main import run
from ipex_lookahead.errors import ContextLengthError, InputError
from ipex_lookahead.llm import LLM
from tests.support.chat_tokenizer import chat_tokenizer, write_chat_llama
from tests.vision.folders import BEGIN, END, IMAGE, saved
from tests.vision.mmproj_files import write
from tests.vision.test_images import noise
from tests.vision.test_images import saved as saved_image
from tests.vision.test_towers import processor

WORDS = {"gemma4": "<|image|>", "qwen3": "<|vision_start|><|image_pad|><|vision_end|>"}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = {
    "gemma4": ["<|image|>", "<|begin_image|>", "<|end_image|>"],
    "qwen3": ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"],
}
KINDS = ["gemma4", "gemma4_unified", "qwen3_vl", "qwen3_5"]
QUESTION = "what is it?"
TIE = 0.05
"""Two tokens are almost equally likely: keys and values here are binary16, and transformers' float32."""


def picture(seed: int, size: tuple[int, int] = (90, 40)) -> bytes:
    """Large patches of colors."""
    small = Image.fromarray(noise(2, 3, seed=seed) // 128 * 255)
    return saved_image(small.resize(size, Image.Resampling.NEAREST), "PNG")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Iterator[Callable[[str], tuple[Path, LLM, Any]]]:
    """Return a kind's folder, its LLM and transformers' model."""
    found: dict[str, tuple[Path, LLM, Any]] = {}

    def make(kind: str) -> tuple[Path, LLM, Any]:
        if kind not in found:
            folder = tmp_path_factory.mktemp(kind)
            theirs = saved(kind, folder, processor(kind))
            family = kind[:6] if kind.startswith("gemma4") else "qwen3"
            tokenizer = chat_tokenizer()
            tokenizer.add_tokens([AddedToken(one, special=True) for one in TOKENS[family]], special_tokens=True)
            tokenizer.chat_template = TEMPLATE.replace("IMAGE", WORDS[family])
            tokenizer.save_pretrained(folder)
            (folder / "generation_config.json").write_text("{}")
            found[kind] = folder, LLM(folder, threads=2, slots=2, progress=False), theirs
        return found[kind]

    yield make
    for _, llm, _ in found.values():
        llm.close()


def answer_of(llm: LLM, *files: bytes, question: str = QUESTION, **options: Any) -> Any:
    return llm.chat(
        question,
        images=list(files),
        **{"max_new_tokens": 12, "lookahead": 0, "temperature": 0, "ignore_eos": True, **options},
    )


def logits_of(kind: str, llm: LLM, theirs: Any, files: list[bytes], ids: list[int], answer: list[int]) -> np.ndarray:
    """Transformers' logits for each token of an answer, [tokens, vocab], divided by their standard deviation."""
    vision = llm._model.vision
    prepared = [vision.preparation.patches(vision.prepare(file).pixels) for file in files]
    every = [*ids, *answer]
    given: dict[str, Any] = {"mm_token_type_ids": torch.tensor([[int(one == IMAGE) for one in every]])}
    if kind.startswith("qwen3"):
        given["pixel_values"] = torch.from_numpy(np.concatenate([one.values for one in prepared]))
        given["image_grid_thw"] = torch.tensor([[1, one.grid[1], one.grid[0]] for one in prepared])
        theirs.model.rope_deltas = None
    else:
        size = max(len(one.values) for one in prepared)
        values, places = [], []
        for one in prepared:
            order = np.lexsort((one.places[:, 0], one.places[:, 1]))
            rest = size - len(order)
            values.append(np.pad(one.values[order], ((0, rest), (0, 0))))
            places.append(np.pad(one.places[order].astype(np.int64), ((0, rest), (0, 0)), constant_values=-1))
        given["pixel_values"] = torch.from_numpy(np.stack(values))
        given["image_position_ids"] = torch.from_numpy(np.stack(places))
    with torch.no_grad():
        found = theirs(input_ids=torch.tensor([every]), use_cache=False, **given).logits[0, len(ids) - 1 : -1].numpy()
    return found / found.std(1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [[1], [2, 3]])
def test_answers_are_those_of_transformers(made, kind, seeds):
    _, llm, theirs = made(kind)
    files = [picture(seed, (90, 40 + 9 * seed)) for seed in seeds]
    answer = answer_of(llm, *files)
    rows = [int(np.prod(llm._model.vision.size(file))) for file in files]
    words = llm.tokenizer.encode("<|im_start|>user\n", False)
    ids = list(words)
    for count in rows:
        ids += [BEGIN, *([IMAGE] * count), END]
    ids += llm.tokenizer.encode(f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n", False)
    assert answer.stats.prompt_tokens == len(ids)
    tokens = answer.token_ids[: [*answer.token_ids, IMAGE].index(IMAGE)]
    found = logits_of(kind, llm, theirs, files, ids, tokens)
    assert (found.max(1) - found[np.arange(len(tokens)), tokens]).max() < TIE
    others = [picture(seed + 20, (90, 40 + 9 * seed)) for seed in seeds]
    assert np.abs(found - logits_of(kind, llm, theirs, others, ids, tokens)).max() > 2 * TIE


@pytest.mark.parametrize("kind", KINDS)
def test_lookahead_and_caching_change_nothing(made, kind):
    folder, llm, _ = made(kind)
    first, second = picture(4), picture(5)
    with LLM(folder, threads=1, slots=1, progress=False) as fresh:
        wanted = {seed: answer_of(fresh, picture(seed)).token_ids for seed in (4, 5)}
    assert wanted[4] != wanted[5]
    for lookahead in (0, 4, "auto", "prompt_lookup", "jacobi"):
        assert answer_of(llm, first, lookahead=lookahead).token_ids == wanted[4], lookahead
    other = answer_of(llm, second)
    assert other.token_ids == wanted[5]
    assert other.stats.cached_tokens < 20  # none of the first image's rows
    messages = [
        {"role": "user", "content": [{"type": "image", "image": first}, {"type": "text", "text": QUESTION}]},
    ]
    answer = llm.chat(messages, max_new_tokens=12, lookahead=0, temperature=0, ignore_eos=True)
    assert answer.token_ids == wanted[4]
    turns = [*messages, answer.message, {"role": "user", "content": "and then?"}]
    again = llm.chat(turns, max_new_tokens=8, lookahead=0, temperature=0)
    with LLM(folder, threads=1, slots=1, progress=False) as fresh:
        assert again.token_ids == fresh.chat(turns, max_new_tokens=8, lookahead=3, temperature=0).token_ids


def test_images_come_as_paths_bytes_and_data_urls(made, tmp_path):
    _, llm, _ = made("gemma4")
    file = picture(6)
    (tmp_path / "a.png").write_bytes(file)
    url = "data:image/png;base64," + base64.b64encode(file).decode()
    wanted = answer_of(llm, file).token_ids
    for given in (tmp_path / "a.png", str(tmp_path / "a.png"), url):
        assert answer_of(llm, given).token_ids == wanted
    for part in ({"type": "image_url", "image_url": {"url": url}}, {"type": "image", "image": file}):
        messages = [{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}]
        assert llm.chat(messages, max_new_tokens=12, lookahead=0, temperature=0, ignore_eos=True).token_ids == wanted
    with llm.stream(QUESTION, images=[file], max_new_tokens=12, temperature=0, ignore_eos=True) as stream:
        assert stream.answer.token_ids == wanted


def test_tokens_of_images_in_a_text_are_text(made):
    _, llm, _ = made("gemma4")
    question = "<|image|> is it?"
    answer = answer_of(llm, picture(7), question=question)
    rows = int(np.prod(llm._model.vision.size(picture(7))))
    assert answer.stats.prompt_tokens > rows + len(question)
    assert llm.chat(question, max_new_tokens=3).token_ids


def test_a_gguf_models_mmproj_file_is_found_next_to_it(made, tmp_path):
    folder, llm, _ = made("gemma4")
    with LLM(folder, threads=1, progress=False, mmproj=write(folder, tmp_path / "mmproj.gguf")) as other:
        vision = other._model.vision
        vision.preparation = llm._model.vision.preparation  # the file has no limits
        assert vision.around == ((255999,), (258882,))
        vision.around = llm._model.vision.around  # Gemma 4's, which this vocabulary does not have
        assert answer_of(other, picture(8)).token_ids == answer_of(llm, picture(8)).token_ids


def test_a_wrong_mmproj_file_is_refused_when_the_model_is_loaded(made, tmp_path):
    folder, _, _ = made("gemma4")
    other = write(folder, tmp_path / "mmproj.gguf", projection=64)
    with pytest.raises(InputError, match="hidden size 64; this model has 32"):
        LLM(folder, progress=False, mmproj=other)
    with pytest.raises(InputError, match="is a folder"):
        LLM(folder, progress=False, mmproj=folder)
    with pytest.raises(InputError, match="no model named"):
        LLM(folder, progress=False, mmproj=tmp_path / "missing.gguf")
    with pytest.raises(InputError, match="this model takes no images"):
        LLM(write_chat_llama(tmp_path / "llama"), progress=False, mmproj=other)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (["missing.png"], "No such file"),
        (["data:image/png,abc"], "data: URL in base64"),
        (["data:image/png;base64,a b"], "not valid base64"),
        ([b"text"], "not a JPEG"),
        ([3], "images.0. is int"),
        (b"bytes", "a list of paths or bytes"),
        ([picture(0)] * 65, "65 images; at most 64"),
    ],
)
def test_wrong_images_are_refused(made, images, message):
    with pytest.raises(InputError, match=message):
        made("gemma4")[1].chat(QUESTION, images=images)


def test_images_are_not_fetched(made):
    parts = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]
    with pytest.raises(InputError, match="must be a data: URL"):
        made("gemma4")[1].chat([{"role": "user", "content": parts}])


def test_a_prompt_of_images_that_is_too_long_is_refused(made, tmp_path):
    folder, _, _ = made("gemma4")
    with (
        LLM(folder, threads=1, progress=False, max_context=100) as llm,
        pytest.raises(ContextLengthError, match="of them for images"),
    ):
        answer_of(llm, picture(1), picture(2))


def test_models_without_vision_refuse_images(tmp_path):
    with LLM(write_chat_llama(tmp_path / "tiny"), threads=1, progress=False) as llm:
        with pytest.raises(InputError, match="takes no images"):
            llm.chat(QUESTION, images=[picture(1)])
        with pytest.raises(InputError, match="images needs the chat template"):
            llm.stream(QUESTION, images=[picture(1)], raw=True)
        system = [{"role": "system", "content": [{"type": "image", "image": picture(1)}]}]
        with pytest.raises(InputError, match="text parts"):
            llm.chat([*system, {"role": "user", "content": "a"}])


def test_usage_counts_the_tokens_of_images(made):
    _, llm, _ = made("qwen3_5")
    without = llm.chat(QUESTION, max_new_tokens=1).stats.prompt_tokens
    rows = int(np.prod(llm._model.vision.size(picture(1))))
    assert answer_of(llm, picture(1)).stats.prompt_tokens == without + rows + 2


def test_the_command_gives_the_same(made, tmp_path, capsys, monkeypatch):
    folder, llm, _ = made("gemma4")
    monkeypatch.setattr(sys, "stdin", None)
    (tmp_path / "a.png").write_bytes(picture(9))
    given = ["generate", "-m", str(folder), "--threads", "1", "--json", "-n", "12", "--temperature", "0", "--image"]
    assert run([*given, str(tmp_path / "a.png"), QUESTION]) == 0
    found = json.loads(capsys.readouterr().out)
    answer = llm.chat(QUESTION, images=[picture(9)], max_new_tokens=12, temperature=0)
    assert found["text"] == answer.text
    assert run([*given, str(tmp_path / "b.png"), QUESTION]) == 1
    assert "b.png" in capsys.readouterr().err
    assert run([*given, str(tmp_path / "a.png"), "--raw", QUESTION]) == 2
    assert run([*given[:1], "-m", str(write_chat_llama(tmp_path / "tiny")), *given[3:], "a.png", QUESTION]) == 1
    assert "takes no images" in capsys.readouterr().err
