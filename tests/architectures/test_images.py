"""Text parts around images, compared with transformers on the same features: masks, positions, added features."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import images as of_images
from ipex_lookahead.architectures.images import with_images
from ipex_lookahead.architectures.spec import Attention
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.images import GivenRows, ImageRows, PromptImage, check_images, row_keys
from ipex_lookahead.engines.native.core import available_isas
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.errors import InputError
from tests.support.family_engines import load, on
from tests.support.family_table import FAMILIES, VOCAB, variants
from tests.support.gguf_families import write_gguf
from tests.support.pictures import PLACEHOLDER, ours, picture, prompt, rows_of, seeing, theirs
from tests.support.tiny_families import build, with_weights, write_folder

NEAR = 5e-3
"""Distance to transformers' float32, whose keys and values are not float16, over the spread of the logits."""

_EYES = FAMILIES["qwen3_vl"].base["vision_config"]
_BOTH = {"use_bidirectional_attention": "vision"}
CASES: dict[str, Any] = {
    "gemma3": seeing("gemma3", {}, sliding_window=9),
    "gemma4 causal with per-layer inputs": seeing("gemma4", {}, sliding_window=9),
    "gemma4 with spans": seeing("gemma4", {"text_config": FAMILIES["gemma4_text"].base}, sliding_window=9, **_BOTH),
    "gemma4_unified": seeing("gemma4_unified", {}, sliding_window=9),
    "qwen3_vl": seeing(
        "qwen3_vl",
        {
            "vision_config": {
                **FAMILIES["qwen3_vl"].base["vision_config"],
                "depth": 2,
                "deepstack_visual_indexes": [0, 1],
            }
        },
    ),
    "qwen3_5": seeing("qwen3_5", {}),
    "smolvlm": seeing("smolvlm", {}),
    "lfm2_vl": seeing("lfm2_vl", {}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, NativeEngine]]:
    found = {}
    for name, config in CASES.items():
        model = with_weights(config)
        found[name] = model, load(write_folder(tmp_path_factory.mktemp("images"), model))
    return found


def some(engine: NativeEngine, count: int = 2) -> tuple[list[PromptImage], Any]:
    """Images for a model, and a prompt of 48 tokens with them."""
    assert engine.images is not None
    places = list(zip((4, 24), ((3, 5), (4, 2)), strict=True))[:count]
    images = [
        picture(start, grid, engine.spec.hidden, deepstack=engine.images.deepstack, seed=i)
        for i, (start, grid) in enumerate(places)
    ]
    return images, prompt(48, images)


def apart(got: Any, expected: Any) -> float:
    return float(np.abs(got - expected).max() / expected.std())


@pytest.mark.parametrize("name", CASES)
def test_logits_around_images_agree_with_transformers(models: dict[str, tuple[Any, NativeEngine]], name: str) -> None:
    model, engine = models[name]
    for count in (1, 2):
        images, ids = some(engine, count)
        got = ours(engine, ids, images)
        assert apart(got, theirs(model, ids, images)) < NEAR
        for rows in (1, 7, 20):
            assert ours(engine, ids, images, rows).tobytes() == got.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_an_answer_behind_images_goes_on_as_in_transformers(
    models: dict[str, tuple[Any, NativeEngine]], name: str
) -> None:
    model, engine = models[name]
    images, ids = some(engine)
    cache = engine.new_cache()
    last = ours(engine, ids, images, cache=cache)[-1]
    for _ in range(6):
        ids = np.append(ids, np.int32(last.argmax()))
        expected = theirs(model, ids, images)
        last = ours(engine, ids, images, cache=cache)[-1]
        assert apart(last, expected[-1]) < NEAR
        assert last.argmax() == expected[-1].argmax()


class Swapped(ImageRows):
    """Rows and columns of images swapped."""

    def given(self, sequence: int, first: int, rows: int) -> GivenRows | None:
        found = super().given(sequence, first, rows)
        assert found is not None
        assert found.positions is not None
        return replace(found, positions=np.ascontiguousarray(found.positions[:, [0, 2, 1]]))


class Slots(ImageRows):
    """Text behind images at its slots."""

    def __init__(self, images: Any, **given: Any) -> None:
        super().__init__(images, **given)
        self._offsets = 0 * self._offsets


class Short(ImageRows):
    """Spans end a row early."""

    def given(self, sequence: int, first: int, rows: int) -> GivenRows | None:
        found = super().given(sequence, first, rows)
        assert found is not None
        assert found.last_seen is not None
        own = np.arange(rows, dtype=np.int32)
        return replace(found, last_seen=np.maximum(own, found.last_seen - (found.last_seen > own)).astype(np.int32))


class Causal(ImageRows):
    """No row sees a later one."""

    def given(self, sequence: int, first: int, rows: int) -> GivenRows | None:
        found = super().given(sequence, first, rows)
        return None if found is None else replace(found, last_seen=None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3_vl", Swapped),
        ("qwen3_5", Swapped),
        ("qwen3_vl", Slots),
        ("qwen3_5", Slots),
        ("gemma3", Short),
        ("gemma4 with spans", Short),
        ("gemma4 with spans", Causal),
    ],
)
def test_wrong_positions_and_masks_show(
    models: dict[str, tuple[Any, NativeEngine]], name: str, kind: type[ImageRows]
) -> None:
    """What the comparison above would not pass."""
    _, engine = models[name]
    images, ids = some(engine)
    assert apart(ours(engine, ids, images, kind=kind), ours(engine, ids, images)) > 3 * NEAR


@pytest.mark.parametrize("name", ["gemma3", "gemma4 with spans"])
@pytest.mark.parametrize("window", [8, 10])
def test_another_window_shows(
    models: dict[str, tuple[Any, NativeEngine]], tmp_path: Path, name: str, window: int
) -> None:
    """A row of an image sees back to the edge of its own window, of 9 positions."""
    model, engine = models[name]
    folder = write_folder(tmp_path, model)
    config = json.loads((folder / "config.json").read_text())
    assert config["text_config"]["sliding_window"] == 9
    config["text_config"]["sliding_window"] = window
    (folder / "config.json").write_text(json.dumps(config))
    images, ids = some(engine)
    changed = np.abs(ours(load(folder), ids, images) - ours(engine, ids, images)).max(axis=1)
    first = images[0].start + images[0].count
    assert changed[images[0].start : first].max() / ours(engine, ids, images).std() > 3 * NEAR


@pytest.mark.parametrize("everywhere", [False, True])
def test_spans_in_wrong_layers_show(
    models: dict[str, tuple[Any, NativeEngine]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everywhere: bool
) -> None:
    """Gemma 4's layers with full attention stay causal, and Gemma 3's do not."""
    name = "gemma4 with spans" if everywhere else "gemma3"
    model, engine = models[name]
    monkeypatch.setattr(of_images, "_ALL_LAYERS", ("gemma4_text",) if everywhere else ())
    wrong = load(write_folder(tmp_path, model))
    images, ids = some(engine)
    if not everywhere:
        assert not wrong.spans
    assert apart(ours(wrong, ids, images), ours(engine, ids, images)) > 3 * NEAR


def test_rows_of_images_have_the_padding_token_per_layer(models: dict[str, tuple[Any, NativeEngine]]) -> None:
    _, engine = models["gemma4 causal with per-layer inputs"]
    images, ids = some(engine)
    right, spec = ours(engine, ids, images), engine.spec
    assert spec.images is not None
    engine.spec = replace(spec, images=replace(spec.images, pad=9))
    try:
        assert apart(ours(engine, ids, images), right) > 3 * NEAR
    finally:
        engine.spec = spec


def test_added_features_show(models: dict[str, tuple[Any, NativeEngine]]) -> None:
    _, engine = models["qwen3_vl"]
    images, ids = some(engine)
    swapped = [replace(one, deepstack=one.deepstack[::-1]) for one in images]
    assert apart(ours(engine, ids, swapped), ours(engine, ids, images)) > 3 * NEAR


@pytest.mark.parametrize("name", CASES)
def test_bytes_depend_on_neither_threads_nor_instructions_nor_neighbors(
    models: dict[str, tuple[Any, NativeEngine]], tmp_path: Path, name: str
) -> None:
    model, engine = models[name]
    images, ids = some(engine)
    right, folder = ours(engine, ids, images), write_folder(tmp_path, model)
    for isa in available_isas():
        with on(isa):
            other = load(folder, threads=3)
        assert ours(other, ids, images).tobytes() == right.tobytes(), isa
    others = [picture(2, (3, 3), engine.spec.hidden, deepstack=len(images[0].deepstack), seed=5)]
    texts = [(prompt(30, others), others), (ids, images), (prompt(20, []), [])]
    for rows in (16, 64, 512):
        chains = [(engine.new_cache(), own) for own, _ in texts]
        found: list[list[Any]] = [[], [], []]
        steps = prefill(
            engine,
            chains,
            wanted=[range(len(own)) for own, _ in texts],
            wants=OutputRequest(logits=True),
            rows=rows,
            images=[rows_of(engine, own) for _, own in texts],
        )
        for chunks, output in steps:
            assert output.logits is not None
            for chunk in chunks:
                found[chunk.chain].append(output.logits[chunk.answers.start : chunk.answers.stop])
        assert np.concatenate(found[1]).tobytes() == right.tobytes(), rows
        assert np.concatenate(found[2]).tobytes() == ours(engine, texts[2][0], []).tobytes(), rows


def test_models_without_images_refuse_given_rows(models: dict[str, tuple[Any, NativeEngine]]) -> None:
    _, engine = models["qwen3_5"]
    images, ids = some(engine)
    spec = engine.spec
    batch = Batch([engine.new_cache()], [48], ids, np.arange(-1, 47, dtype=np.int32))
    batch.given = [found] if (found := rows_of(engine, images).given(0, 0, 48)) else []
    engine.spec = replace(spec, images=None)
    try:
        with pytest.raises(InputError, match="takes no images"):
            engine.forward(batch)
    finally:
        engine.spec = spec


def test_pairs_turn_by_time_row_and_column(models: dict[str, tuple[Any, NativeEngine]]) -> None:
    """Interleaved, as the sections [2, 3, 3] of 8 pairs have it."""
    spec = models["qwen3_vl"][1].spec
    assert [block.mixer.rope.axes for block in spec.layers] == [(0, 1, 2, 0, 1, 2, 0, 1)] * len(spec.layers)


def test_rows_that_do_not_fit_are_refused(models: dict[str, tuple[Any, NativeEngine]]) -> None:
    """Before anything is computed, with nothing committed."""
    _, engine = models["gemma4 with spans"]
    images, ids = some(engine, 1)
    rows = rows_of(engine, images)
    assert rows is not None
    given = rows.given(0, 0, 48)
    assert given is not None
    right = Batch([engine.new_cache()], [48], ids, np.arange(-1, 47, dtype=np.int32), given=[given])
    engine.forward(right)
    seen, turns = given.last_seen, np.repeat(np.arange(48, dtype=np.int32)[:, None], 3, axis=1)
    assert seen is not None
    tree = np.array([-1, 0, *range(46)], np.int32)
    for change, problem in (
        ({"last_seen": seen - 1}, "it must see itself"),
        ({"last_seen": seen[:40]}, "do not fit"),
        ({"last_seen": np.full(48, 48, np.int32)}, "it must see itself"),
        ({"embeddings": given.embeddings[:3]}, "no given embedding"),
        ({"embeddings": given.embeddings[:, :8]}, "shape"),
        ({"positions": turns + 256}, "RoPE position"),
        ({"positions": turns * [1, 1, -1]}, "RoPE position|int32"),
        ({"deepstack": (given.embeddings,) * 9}, "deepstack"),
        ({"deepstack": (given.embeddings[:2],)}, "shape"),
        ({"sequence": 4}, "do not fit"),
        ({"rows": given.rows + 40}, "do not fit"),
    ):
        with pytest.raises(InputError, match=problem):
            engine.forward(replace(right, given=[replace(given, **change)]))
    with pytest.raises(InputError, match="only rows of a chain"):
        engine.forward(replace(right, parents=tree))
    for offsets in ([-1], [300], [0, 0]):
        with pytest.raises(InputError, match="RoPE position|offsets"):
            engine.forward(replace(right, given=[], offsets=offsets))
    assert right.caches[0].length == 0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"start": 3}, "not at placeholders"),
        ({"start": 40}, "within the 48 tokens"),
        ({"grid": (5, 5)}, r"with a grid of \(5, 5\); they must be float32 \[25, 64\]"),
        ({"digest": b"short"}, "5 bytes"),
        (
            {"features": np.zeros((15, 8), np.float32)},
            r"\[15, 8\] with a grid of \(3, 5\); they must be float32 \[15, 64\]",
        ),
        ({"features": np.zeros((15, 64))}, "float64"),
        ({"deepstack": ()}, "0 deepstack features; the model has 1"),
    ],
)
def test_images_are_checked_against_the_prompt(change: dict[str, Any], problem: str) -> None:
    image = picture(4, (3, 5), 64, deepstack=1)
    ids = prompt(48, [image])
    check_images([image], ids, PLACEHOLDER, 64, 1)
    with pytest.raises(InputError, match=problem):
        check_images([replace(image, **change)], ids, PLACEHOLDER, 64, 1)
    with pytest.raises(InputError, match="the prompt has 15 image placeholders"):
        check_images([], ids, PLACEHOLDER, 64, 1)
    with pytest.raises(InputError, match="image 1"):
        check_images([image, image], ids, PLACEHOLDER, 64, 1)


def test_keys_of_rows_follow_from_the_digest_and_the_grid() -> None:
    """As many as rows, all below 0, and none shared by two images."""
    one, same, other = picture(4, (3, 5), 8), picture(9, (3, 5), 8), picture(4, (3, 5), 8, seed=1)
    turned = replace(one, grid=(5, 3))
    assert one.keys().tolist() == same.keys().tolist()
    assert one.keys().dtype == np.int64
    assert (one.keys() < 0).all()
    found = np.concatenate([image.keys() for image in (one, other, turned)])
    assert len(set(found.tolist())) == 45
    ids = prompt(30, [one])
    keys = row_keys(ids, [one])
    assert keys[4:19].tolist() == one.keys().tolist()
    assert np.delete(keys, range(4, 19)).tolist() == np.delete(ids, range(4, 19)).tolist()
    assert row_keys(ids[:10], [one])[4:].tolist() == one.keys()[:6].tolist()
    assert row_keys(ids, []) is ids


@pytest.mark.parametrize(
    ("model_type", "metadata", "token", "axes", "deepstack"),
    [
        ("qwen3_vl", {"qwen3vl.n_deepstack_layers": 2}, 151655, (0, 1, 2, 0, 1, 2, 0, 1), 2),
        ("qwen2_vl", {}, 151655, (0, 0, 1, 1, 1, 2, 2, 2), 0),
        ("qwen3_5_text", {"qwen35.rope.dimension_sections": [1, 1, 0, 0]}, 248056, (0, 1, 0), 0),
        ("gemma3_text", {}, 262144, (), 0),
        ("gemma4_text", {}, 258880, (), 0),
        ("lfm2", {}, 396, (), 0),
    ],
)
def test_gguf_files_of_text_parts_take_images(
    tmp_path: Path, model_type: str, metadata: dict[str, Any], token: int, axes: tuple[int, ...], deepstack: int
) -> None:
    """Their placeholder is the family's, if the vocabulary has it."""
    sections = {"qwen3_vl": "qwen3vl", "qwen2_vl": "qwen2vl"}
    if model_type in sections:
        metadata = {**metadata, f"{sections[model_type]}.rope.dimension_sections": [2, 3, 3, 0]}
    file = write_gguf(tmp_path / "a.gguf", build(model_type, variants(model_type)[0]), metadata=metadata)
    checkpoint = open_checkpoint(file)
    spec, config = checkpoint.spec, checkpoint.config
    checkpoint.close()
    assert spec.images is None
    seen = with_images(replace(spec, vocab=1 << 20), config)
    assert seen.images is not None
    assert (seen.images.token, seen.images.deepstack, seen.images.grid_positions) == (token, deepstack, bool(axes))
    mixers = [block.mixer for block in seen.layers if isinstance(block.mixer, Attention)]
    assert {mixer.rope.axes for mixer in mixers if mixer.rope is not None} == {axes}
    spans = {(mixer.window is not None, mixer.spans) for mixer in mixers}
    expected = {"gemma3_text": {(True, True), (False, True)}}
    assert spans == expected.get(
        model_type, {(True, False), (False, False)} if "gemma" in model_type else {(False, False)}
    )


def test_a_gguf_file_of_smolvlm_is_known_by_its_vocabulary(tmp_path: Path) -> None:
    """Its text part is a llama; the placeholder is <image>."""
    names = [f"<{i}>" for i in range(VOCAB)]
    for vocabulary, token in ((names, None), (["<fake_token_around_image>", *names[1:9], "<image>", *names[10:]], 9)):
        file = write_gguf(
            tmp_path / "a.gguf",
            build("llama", variants("llama")[0]),
            metadata={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": vocabulary},
        )
        checkpoint = open_checkpoint(file)
        images = checkpoint.spec.images
        checkpoint.close()
        assert (None if images is None else images.token) == token


def test_gguf_files_of_gemma_4_have_spans_without_per_layer_inputs(tmp_path: Path) -> None:
    """E2B and E4B are causal; the others are not in layers with a window."""
    file = write_gguf(tmp_path / "a.gguf", build("gemma4_text", variants("gemma4_text")[1]))
    checkpoint = open_checkpoint(file)
    spec, config = checkpoint.spec, checkpoint.config
    checkpoint.close()
    seen = with_images(replace(spec, vocab=1 << 20), config)
    mixers = [block.mixer for block in seen.layers if isinstance(block.mixer, Attention)]
    assert {(mixer.window is not None, mixer.spans) for mixer in mixers} == {(True, True), (False, False)}
