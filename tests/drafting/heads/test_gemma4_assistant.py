"""Gemma 4's assistants: what they compute, beside transformers' own, and what they leave as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5.23", reason="the oracle is transformers' assistant")
from safetensors.torch import load_file, save_file

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints.drafters import open_drafter
from ipex_lookahead.decoding.sampling import Sampler, WarperParams
from ipex_lookahead.engines.api import FINAL_NORM, Batch, OutputRequest
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.core import available_isas
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.engines.native.load import load
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import InputError, ModelFormatError, UnsupportedModelError
from tests.support.assistant_folders import WORDS, Ids, Pair, write_assistant_gguf
from tests.support.family_engines import on

PAIRS: list[tuple[Any, ...]] = [
    ("e2b", True), ("e2b", False), ("31b", False), ("31b keys and values apart", True), ("26b", False),
    ("plain", False, WORDS, "gemma4_unified_text"),
]  # fmt: skip
"""Targets, and whether their assistants compute the logits of a few centroids alone; then of which family they are."""


def text(length: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(3, WORDS, length).astype(np.int32)


def engine_of(folder: Path, threads: int = 1, **options: Any) -> NativeEngine:
    engine: NativeEngine = load(LoadRequest(folder, threads=threads, **options)).engine
    return engine


def head_of(folder: Path, engine: NativeEngine, low_bit: str | None = None, threads: int | None = 1) -> NativeHead:
    drafter = open_drafter(folder, engine.spec)
    try:
        plan = LoadRequest(folder, low_bit).plan("")
        return NativeHead.load(drafter.checkpoint, drafter.spec, plan, engine, threads=threads, ids=drafter.ids)
    finally:
        drafter.checkpoint.close()


def committed(engine: NativeEngine, tokens: Ids) -> tuple[Any, Any]:
    """A cache of so many tokens, and the last one's features [1, width]."""
    cache = engine.new_cache()
    states = engine.forward(chain(cache, tokens, OutputRequest(hidden=(FINAL_NORM,)))).hidden[FINAL_NORM]
    cache.keep(list(range(len(tokens))))
    return cache, states[-1:]


def apart(mine: Any, theirs: Any) -> float:
    """The largest difference in standard deviations of the second; infinite where other logits were computed."""
    known = np.isfinite(theirs)
    if not np.array_equal(np.isfinite(mine), known):
        return float("inf")
    return float(np.abs(mine[known] - theirs[known]).max() / theirs[known].std())


@pytest.fixture(scope="module", params=PAIRS, ids=lambda one: f"{one[0]}{' ordered' if one[1] else ''}")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Path, Path]:
    pair = Pair(*request.param)
    return pair, *pair.write(tmp_path_factory.mktemp("assistant"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return Pair("e2b", True).write(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.rotating(5)
def test_it_computes_what_transformers_does(made: tuple[Pair, Path, Path], kv_cache: str) -> None:
    """Chains of 4, each row from the oracle's tokens and states; before a window is full, at its ends, beyond."""
    pair, target, assistant = made
    engine = engine_of(target, kv_cache=kv_cache)
    head = head_of(assistant, engine)
    most = 0.03 if kv_cache == "fp16" else 0.25
    for length in (1, 6, 7, 8, 9, 40):
        tokens = text(length, seed=length)
        cache, features = committed(engine, tokens)
        for row, (token, logits, state) in enumerate(pair.draft(tokens, 5, 4)):
            mine, own = head.run(cache, np.array([token], np.int32), features, own=row > 0)
            assert apart(mine, logits) < most, (length, row)
            assert np.abs(own - state).max() < most * state.std(), (length, row)
            features = state[None].copy()


def test_positions_are_counted_over_blocks(made: tuple[Pair, Path, Path]) -> None:
    """At the ends of attention's blocks of 256 positions."""
    pair, target, assistant = made
    engine = engine_of(target)
    head, tokens = head_of(assistant, engine), text(600, seed=3)
    for length in (255, 256, 257, 512, 513):
        cache, states = committed(engine, tokens[:length])
        token, logits, _ = next(pair.draft(tokens[:length], 5, 1))
        mine, _ = head.run(cache, np.array([token], np.int32), states)
        assert apart(mine, logits) < 0.03, length


def test_bits_do_not_depend_on_threads_instructions_or_company(small: tuple[Path, Path]) -> None:
    tokens, found = text(300, seed=4), set()
    for isa in available_isas():
        with on(isa):
            for threads in (1, 2, 3):
                engine = engine_of(small[0], threads)
                head = head_of(small[1], engine, "sym_int4", threads)
                cache, states = committed(engine, tokens)
                logits, own = head.run(cache, tokens[:1], states)
                many, last = head.run(cache, tokens[20::-1].copy(), np.repeat(states, 21, axis=0))
                assert (many.tobytes(), last.tobytes()) == (logits.tobytes(), own.tobytes())
                found.add((logits.tobytes(), own.tobytes()))
    assert len(found) == 1


def test_sequences_side_by_side_are_each_as_alone(small: tuple[Path, Path]) -> None:
    engine = engine_of(small[0], 2)
    head = head_of(small[1], engine, threads=2)
    several = [committed(engine, text(length, seed=length)) for length in (5, 300, 40)]
    ids = np.array([7, 8, 9], np.int32)
    states = np.concatenate([features for _, features in several])
    none = np.full(3, -1, np.int32)
    _, logits, own, _, centroids = head._decoder.forward(
        [cache.raw for cache, _ in several], [1] * 3, [-1] * 3, ids, none, None, True, 1, [-1], None, False, states
    )
    for i, (cache, features) in enumerate(several):
        alone, alone_own = head.run(cache, ids[i : i + 1], features)
        tokens = head.ids.reshape(8, 16)[centroids[i]].reshape(-1)
        assert alone[tokens].tobytes() == logits[i].tobytes()
        assert np.isneginf(np.delete(alone, tokens)).all()
        assert alone_own[0].tobytes() == own[0, i].tobytes()


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.rotating(5)
def test_the_target_goes_on_as_if_nothing_had_been_drafted(made: tuple[Pair, Path, Path], kv_cache: str) -> None:
    _, target, assistant = made
    engine = engine_of(target, kv_cache=kv_cache)
    head, tokens = head_of(assistant, engine), text(90, seed=5)
    logits: list[bytes] = []
    for drafting in (False, True):
        cache, states = committed(engine, tokens[:60])
        fork = cache.fork()
        for end in range(60, 90, 3):
            batch = chain(cache, tokens[end : end + 3], OutputRequest(logits=True, hidden=(FINAL_NORM,)))
            output = engine.forward(batch)
            if drafting:  # between a step and what is kept of it too
                head.run(cache, tokens[end : end + 1], states)
                head.run(fork, tokens[end : end + 1], states)
            cache.keep([0, 1, 2])
            states = output.hidden[FINAL_NORM][-1:]
            logits.append(output.logits.tobytes())
            if drafting:
                head.run(cache, tokens[:1], states)
        assert (cache.length, fork.length) == (90, 60)
    assert logits[:10] == logits[10:]


def test_it_sees_what_a_crop_leaves(small: tuple[Path, Path]) -> None:
    """Pages behind a window are given back, but for what a crop may show again; the head sees more than the window."""
    engine = engine_of(small[0])
    head, tokens = head_of(small[1], engine), text(1400, seed=6)
    for length, left in ((1400, 376), (1300, 276), (1217, 193), (1216, 192), (1215, 191)):
        cache, _ = committed(engine, tokens[:length])
        assert cache.crop(left) == left
        whole, states = committed(engine, tokens[:left])
        mine, theirs = (head.run(one, tokens[:1], states)[0] for one in (cache, whole))
        assert mine.tobytes() == theirs.tobytes()


def test_arguments_that_do_not_fit_are_refused(small: tuple[Path, Path]) -> None:
    engine = engine_of(small[0])
    head = head_of(small[1], engine)
    cache, states = committed(engine, text(4))
    with pytest.raises(InputError, match="target cache is empty"):
        head.run(engine.new_cache(), text(1), states)
    with pytest.raises(InputError, match="shape \\[rows, 64\\]"):
        head.run(cache, text(1), states[:, :40].copy())
    raw, none = head._decoder, np.full(2, -1, np.int32)
    given = (text(2), np.array([-1, 0], np.int32), None, True, 1, [], None, False, np.repeat(states, 2, axis=0))
    with pytest.raises(ValueError, match="must have parent -1"):
        raw.forward([cache.raw], [2], [-1], *given)
    with pytest.raises(ValueError, match="another model"):
        raw.forward([other_cache(small)], [2], [-1], given[0], none, *given[2:])


def other_cache(small: tuple[Path, Path]) -> Any:
    return engine_of(small[0], kv_cache="int8").new_cache().raw


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("31b", {}, "kv_heads in layers with full attention is 1, .* has 2"),
        ("e2b", {"head_dim": 32}, "head_dim in layers with a window is 32, .* has 16"),
        ("e2b", {"sliding_window": 9}, "sliding_window is 9, .* no layer with this window"),
    ],
)
def test_an_assistant_of_another_model_is_refused(
    small: tuple[Path, Path], tmp_path: Path, name: str, values: dict[str, Any], words: str
) -> None:
    _, other = Pair(name, False, **values).write(tmp_path)
    engine = engine_of(small[0])
    with pytest.raises(InputError, match=f"does not fit the model.*{words}"):
        head_of(other, engine)


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"backbone_hidden_size": 72}, InputError, "backbone_hidden_size is 72.*has 64"),
        ({"backbone_hidden_size": -1}, ModelFormatError, "backbone_hidden_size"),
        ({"num_centroids": 16}, UnsupportedModelError, "num_centroids is 16; it must divide"),
        ({"centroid_intermediate_top_k": 9}, ModelFormatError, "is 9, more than the 8 centroids"),
        ({"use_ordered_embeddings": 1}, ModelFormatError, "use_ordered_embeddings"),
        ({"text": {"num_kv_shared_layers": 2}}, ModelFormatError, "num_kv_shared_layers.*is 2"),
        ({"text": {"hidden_size_per_layer_input": 8}}, UnsupportedModelError, "hidden_size_per_layer_input is 8"),
        ({"text": {"enable_moe_block": True, "num_experts": 2, "top_k_experts": 1, "moe_intermediate_size": 8}},
         UnsupportedModelError, "enable_moe_block is True"),
        ({"text": {"vocab_size": 256}}, InputError, "vocab_size is 256.*has 128"),
    ],
)  # fmt: skip
def test_configs_that_do_not_fit_are_refused(
    small: tuple[Path, Path], tmp_path: Path, values: dict[str, Any], error: type, words: str
) -> None:
    config = json.loads((small[1] / "config.json").read_text())
    config["text_config"].update(values.pop("text", {}))
    (tmp_path / "config.json").write_text(json.dumps({**config, **values}))
    (tmp_path / "model.safetensors").write_bytes((small[1] / "model.safetensors").read_bytes())
    engine = engine_of(small[0])
    with pytest.raises(error, match=words):
        head_of(tmp_path, engine)


@pytest.mark.parametrize("wrong", ["twice", "negative", "missing", "float"])
def test_an_order_that_is_none_is_refused(small: tuple[Path, Path], tmp_path: Path, wrong: str) -> None:
    name = "masked_embedding.token_ordering"
    tensors = load_file(small[1] / "model.safetensors")
    if wrong == "missing":
        del tensors[name]
    elif wrong == "float":
        tensors[name] = tensors[name].float()
    else:
        tensors[name][3] = tensors[name][4] if wrong == "twice" else -1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((small[1] / "config.json").read_text())
    with pytest.raises((ModelFormatError, UnsupportedModelError), match="token_ordering"):
        head_of(tmp_path, engine_of(small[0]))


def test_a_part_of_the_vocabulary_is_drafted(made: tuple[Pair, Path, Path]) -> None:
    """Of the head's own output layer; one with candidates chooses for itself."""
    pair, target, assistant = made
    options = {"engine": "native", "progress": False, "drafter": str(assistant)}
    if pair.assistant.masked_embedding is not None:
        with pytest.raises(InputError, match="chooses candidates among all"):
            AutoModelForCausalLM.from_pretrained(target, draft_vocab=50, **options)
        return
    engine = AutoModelForCausalLM.from_pretrained(target, draft_vocab=50, drafter_low_bit="fp32", **options).engine
    whole = head_of(assistant, engine)
    cache, states = committed(engine, text(20))
    full, part = (head.run(cache, text(1), states)[0] for head in (whole, engine.head))
    assert part[:50].tobytes() == full[:50].tobytes()
    assert np.isneginf(part[50:]).all()
    tokens = np.full(9, 100, np.int32)
    more = engine.head.next_logits(read(engine, engine.head, tokens), 100, first=True)
    assert np.isfinite(more[96:112]).all(), "the text's own tokens, and the tiles that they are in"
    assert np.isneginf(np.delete(more, [*range(50), *range(96, 112)])).all()


@pytest.mark.parametrize("name", ["e2b", "31b"])
def test_a_gguf_file_has_the_same_head(tmp_path: Path, name: str) -> None:
    """But for the centroids: of such a file the logits of all tokens are computed."""
    pair = Pair(name, False)
    target, assistant = pair.write(tmp_path)
    file = write_assistant_gguf(tmp_path / "assistant.gguf", pair.assistant)
    engine = engine_of(target)
    cache, states = committed(engine, text(30))
    one, other = (head_of(path, engine).run(cache, text(1), states) for path in (assistant, file))
    assert [part.tobytes() for part in one] == [part.tobytes() for part in other]


def test_it_is_no_model(small: tuple[Path, Path]) -> None:
    for engine in ("auto", "native", "torch"):
        with pytest.raises(UnsupportedModelError, match="drafts for another model"):
            AutoModelForCausalLM.from_pretrained(small[1], engine=engine, progress=False)
    with pytest.raises(UnsupportedModelError, match="drafts for another model"):
        engine_of(small[1])


# ---- chains, whose features are in the target's cache ----------------------------------------------------------------


def read(engine: NativeEngine, head: NativeHead, tokens: Ids, cache: Any = None) -> Any:
    """A cache that follows the head, and holds all tokens but the last."""
    cache = engine.new_cache() if cache is None else cache
    head.follow(cache)
    rows = tokens[cache.length : -1]
    engine.forward(chain(cache, rows))
    cache.keep(list(range(len(rows))))
    return cache


def by_hand(engine: NativeEngine, head: NativeHead, tokens: Ids, most: int) -> tuple[list[int], list[float]]:
    """The chain that rows of given features make, one by one, all on what is committed."""
    cache, features = committed(engine, tokens[:-1])
    found, probs, row = [], [], tokens[-1:]
    for place in range(most):
        logits, own = head.run(cache, row, features, own=place > 0)
        features = own.copy()
        found.append(int(logits.argmax()))
        shares = np.exp(logits.astype(np.float64) - logits.max())
        probs.append(float(shares[found[-1]] / shares.sum()))
        row = np.array(found[-1:], np.int32)
    return found, probs


def test_a_chain_is_one_call_that_does_what_rows_do(made: tuple[Pair, Path, Path]) -> None:
    pair, target, assistant = made
    engine = engine_of(target, 2)
    head, tokens = head_of(assistant, engine, threads=2), text(41, seed=1)
    last, expected = int(tokens[-1]), by_hand(engine, head, tokens, 5)
    cache = read(engine, head, tokens)
    found, probs = head.draft(cache, last, 5)
    assert found == expected[0]
    assert probs == pytest.approx(expected[1], rel=1e-5)
    assert found == [int(logits.argmax()) for _, logits, _ in pair.draft(tokens[:-1], last, 5)]
    assert head.draft(cache, last, 5) == head.draft(cache.fork(), last, 5) == (found, probs)
    assert head.draft(cache, last, 3, copied=found[:2])[0] == found[2:5]
    assert head.draft(cache, last, 5, ends={found[0]})[0] == found[:1]
    assert head.draft(cache, last, 5, rates=[0.0], min_chance=0.5)[0] == found[:1]
    by_logits: list[int] = []
    logits = head.next_logits(cache, last, first=True)
    while logits is not None and len(by_logits) < 5:
        by_logits.append(int(logits.argmax()))
        logits = head.next_logits(cache, by_logits[-1], first=False)
    head.end_draft(cache)
    assert by_logits == found


def test_a_drawn_chain_is_what_the_sampler_draws(small: tuple[Path, Path]) -> None:
    engine = engine_of(small[0])
    head, tokens = head_of(small[1], engine), text(30, seed=5)
    sampler, cache = Sampler(WarperParams(0.9, 40, 0.95, 0.01), 7, 2), read(engine, head, tokens)
    found, _ = head.draft(cache, int(tokens[-1]), 4, draw=sampler.draw(len(tokens)))
    token = int(tokens[-1])
    for place, drawn in enumerate(found):
        logits = head.next_logits(cache, token, first=place == 0)
        assert logits is not None
        token = sampler(logits, len(tokens) + place)
        assert token == drawn
    head.end_draft(cache)
    assert len(found) == 4


def test_it_drafts_from_the_last_position_that_it_knows(small: tuple[Path, Path]) -> None:
    """Nothing from an empty cache, behind a crop, or where it began to follow too late; then as ever."""
    engine = engine_of(small[0])
    head, tokens = head_of(small[1], engine), text(60, seed=3)
    expected = by_hand(engine, head, tokens, 4)[0]
    cache = engine.new_cache()
    head.follow(cache)
    assert head.draft(cache, int(tokens[0]), 3) == ([], [])
    for cut in (1, 20, 58):
        read(engine, head, tokens, cache)
        assert head.draft(cache, int(tokens[-1]), 4)[0] == expected
        cache.crop(cut)
        assert head.draft(cache, int(tokens[cut]), 3) == ([], [])
    late = engine.new_cache()
    engine.forward(chain(late, tokens[:20]))
    late.keep(list(range(20)))
    head.follow(late)
    assert head.draft(late, int(tokens[20]), 3) == ([], [])
    assert head.draft(read(engine, head, tokens, late), int(tokens[-1]), 4)[0] == expected


def test_it_follows_the_text_whatever_was_accepted(small: tuple[Path, Path]) -> None:
    """After any step, of which some path was kept, the next draft is that of rows made by hand."""
    engine = engine_of(small[0])
    head, tokens, chance, at = head_of(small[1], engine), text(60, seed=4), np.random.default_rng(0), 10
    cache = read(engine, head, tokens[:at])
    while at < 50:
        assert head.draft(cache, int(tokens[at - 1]), 3)[0] == by_hand(engine, head, tokens[:at], 3)[0]
        right, wrong = int(chance.integers(0, 4)), int(chance.integers(0, 3))  # siblings of the first token
        rows = np.concatenate([tokens[at - 1 : at], np.ones(wrong, np.int32), tokens[at : at + right]])
        parents = np.array([-1, *[0] * wrong, *[0 if i == 0 else wrong + i for i in range(right)]], np.int32)
        engine.forward(Batch([cache], [len(rows)], rows, parents))
        cache.keep([0, *[1 + wrong + i for i in range(right)]])
        at += right + 1


def test_it_ends_with_its_context(tmp_path: Path, small: tuple[Path, Path]) -> None:
    _, short = Pair("e2b", True, max_position_embeddings=32).write(tmp_path)
    engine = engine_of(small[0])
    head, tokens = head_of(short, engine), text(40)
    assert len(head.draft(read(engine, head, tokens[:32]), 5, 4)[0]) == 4
    assert head.draft(read(engine, head, tokens[:33]), 5, 4) == ([], [])
