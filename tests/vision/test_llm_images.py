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

WORDS = {
    "gemma4": "<|image|>", "qwen3": "<|vision_start|><|image_pad|><|vision_end|>", "gemma3": "<start_of_image>",
    "idefics3": "<image>", "smolvlm": "<image>", "lfm2_vl": "<image>",
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = {
    "gemma4": ["<|image|>", "<|begin_image|>", "<|end_image|>"],
    "qwen3": ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"],
    "gemma3": ["<image_soft_token>", "<start_of_image>", "<end_of_image>"],
    "idefics3": ["<image>", "<fake_token_around_image>", "<global-img>"],
    "smolvlm": ["<image>", "<fake_token_around_image>", "<row_1_col_1>"],
    "lfm2_vl": ["<image>", "<|image_start|>", "<|image_end|>"],
}
KINDS = ["gemma4", "gemma4_unified", "qwen3_vl", "qwen3_5", "gemma3", "idefics3", "smolvlm", "lfm2_vl"]
QUESTION = "what is it?"
TIE = 0.05
"""Two tokens are almost equally likely: keys and values here are binary16, and transformers' float32."""


def family_of(kind: str) -> str:
    return next(name for name in WORDS if kind.startswith(name))


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
            family = family_of(kind)
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
    tiles = [tile.pixels for file in files for tile in vision.prepare(file).tiles]
    prepared = [vision.preparation.patches(tile) for tile in tiles]
    every = [*ids, *answer]
    types = torch.tensor([[int(one == IMAGE) for one in every]])
    given: dict[str, Any] = {"mm_token_type_ids": types}
    if kind == "gemma3":
        given = {"token_type_ids": types, "pixel_values": torch.stack([channels_first(tile) for tile in tiles])}
    elif kind in ("idefics3", "smolvlm"):
        given = {"pixel_values": torch.stack([channels_first(tile) for tile in tiles])[None]}
    elif kind == "lfm2_vl":
        given = naflex(prepared)
    elif kind.startswith("qwen3"):
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


def channels_first(tile: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((tile / 255).astype(np.float32).transpose(2, 0, 1)).sub(0.5).div(0.5)


def naflex(prepared: list[Any]) -> dict[str, torch.Tensor]:
    """The inputs of LFM2-VL: patches row by row, padded to the longest tile."""
    most = max(len(one.values) for one in prepared)
    rows = [one.values[np.lexsort((one.places[:, 0], one.places[:, 1]))] for one in prepared]
    return {
        "pixel_values": torch.from_numpy(np.stack([np.pad(one, ((0, most - len(one)), (0, 0))) for one in rows])),
        "pixel_attention_mask": torch.tensor([[int(i < len(one)) for i in range(most)] for one in rows]),
        "spatial_shapes": torch.tensor([one.grid[::-1] for one in prepared]),
    }


def spelled(kind: str, llm: LLM, file: bytes) -> str:
    """The text of an image in a prompt, with a placeholder for each row."""
    layout, names = llm._model.vision.layout(file), TOKENS[family_of(kind)]
    pieces = ["".join(p if isinstance(p, str) else names[p - IMAGE] for p in one) for one in layout.pieces]
    counts = [rows * columns for rows, columns in layout.grids]
    return pieces[0] + "".join(names[0] * n + piece for n, piece in zip(counts, pieces[1:], strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [[1], [2, 3]])
def test_answers_are_those_of_transformers(made, kind, seeds):
    _, llm, theirs = made(kind)
    files = [picture(seed, (90, 40 + 9 * seed)) for seed in seeds]
    answer = answer_of(llm, *files)
    around = WORDS["qwen3"].split("<|image_pad|>") if kind.startswith("qwen3") else ["", ""]
    text = "".join(spelled(kind, llm, file).join(around) for file in files)
    ids = llm.tokenizer.encode(f"<|im_start|>user\n{text}{QUESTION}<|im_end|>\n<|im_start|>assistant\n", False)
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
    before = spelled(kind, llm, second).split(TOKENS[family_of(kind)][0])[0]
    start = len(llm.tokenizer.encode(f"<|im_start|>user\n{before}", False))
    assert other.stats.cached_tokens <= start + 1  # none of the first image's rows, but Qwen's mark before them
    messages = [
        {"role": "user", "content": [{"type": "image", "image": first}, {"type": "text", "text": QUESTION}]},
    ]
    answer = llm.chat(messages, max_new_tokens=12, lookahead=0, temperature=0, ignore_eos=True)
    assert answer.token_ids == wanted[4]
    turns = [*messages, answer.message, {"role": "user", "content": "and then?"}]
    again = llm.chat(turns, max_new_tokens=8, lookahead=0, temperature=0)
    with LLM(folder, threads=1, slots=1, progress=False) as fresh:
        assert again.token_ids == fresh.chat(turns, max_new_tokens=8, lookahead=3, temperature=0).token_ids


def test_equal_tiles_of_other_images_are_found(made):
    """Rows depend on their tile and what precedes it: an image with the same first tiles is read from the next one."""
    folder, llm, _ = made("idefics3")
    colors = noise(64, 96, seed=30)
    other = colors.copy()
    other[:, 64:] = 255 - other[:, 64:]  # the third of three tiles in a row
    first, second = (saved_image(Image.fromarray(one), "PNG") for one in (colors, other))
    layout = llm._model.vision.layout(first)
    assert (layout.plan.rows, layout.plan.columns) == (2, 3)
    assert (layout.plan.steps[0].width, layout.plan.steps[0].height) == (96, 64)
    wanted = {}
    for file in (first, second):
        with LLM(folder, threads=1, slots=1, progress=False) as fresh:
            wanted[file] = answer_of(fresh, file).token_ids
    assert answer_of(llm, first).token_ids == wanted[first]
    found = answer_of(llm, second)
    assert found.token_ids == wanted[second]
    assert 2 * layout.counts[0] < found.stats.cached_tokens
    names = TOKENS["idefics3"]
    before = spelled("idefics3", llm, second).split(names[0] * layout.counts[0])[:3]
    start = len(llm.tokenizer.encode("<|im_start|>user\n" + (names[0] * layout.counts[0]).join(before), False))
    assert found.stats.cached_tokens <= start


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
    rows = llm._model.vision.layout(picture(7)).tokens
    assert answer.stats.prompt_tokens > rows + len(question)
    assert llm.chat(question, max_new_tokens=3).token_ids


def test_a_gguf_models_mmproj_file_is_found_next_to_it(made, tmp_path):
    folder, llm, _ = made("gemma4")
    with LLM(folder, threads=1, progress=False, mmproj=write(folder, tmp_path / "mmproj.gguf")) as other:
        vision = other._model.vision
        vision.preparation = llm._model.vision.preparation  # the file has no limits
        assert vision.layout(picture(8)).pieces == ((255999,), (258882,))
        vision._config |= {"boi_token_id": BEGIN, "eoi_token_id": END}  # this vocabulary does not have Gemma 4's
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
        (["missing.png"], "images.0.: missing.png cannot be read: No such file"),
        ([""], "images.0.: '' cannot be read"),
        (["/dev/zero"], "/dev/zero has more than 33,554,432 bytes"),
        (["https://a.com/a.png"], "images.0. is the URL 'https://a.com/a.png'; images are not downloaded"),
        (["data:image/png,abc"], "data: URL in base64"),
        (["data:image/png;base64,a b"], "not valid base64"),
        ([picture(0), b"text"], "images.1.: the file is not a JPEG"),
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
    rows = llm._model.vision.layout(picture(1)).tokens
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
    (tmp_path / "text.png").write_text("text")
    assert run([*given, str(tmp_path / "a.png"), "--image", str(tmp_path / "text.png"), QUESTION]) == 1
    assert "text.png: the file is not a JPEG" in capsys.readouterr().err
    assert run([*given, str(tmp_path / "a.png"), "--raw", QUESTION]) == 2
    assert run([*given[:1], "-m", str(write_chat_llama(tmp_path / "tiny")), *given[3:], "a.png", QUESTION]) == 1
    assert "takes no images" in capsys.readouterr().err
