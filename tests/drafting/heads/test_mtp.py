"""A model's own block for drafting: what it computes, beside transformers' layers, and what comes of its drafts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5", reason="the oracle is put together of transformers 5's layers")
import torch
from safetensors.torch import load_file, save_file

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.decoding.sampling import Sampler, WarperParams
from ipex_lookahead.drafting import Draft, Outcome
from ipex_lookahead.drafting.heads.chain import HeadChain
from ipex_lookahead.engines.api import FINAL_NORM, Batch, OutputRequest
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.engines.native.load import load
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import InputError
from tests.support.family_table import VOCAB, variants
from tests.support.gguf_families import write_gguf
from tests.support.mtp_folders import LAYERS, add_to_gguf, with_mtp
from tests.support.tiny_families import build, write_folder

EVERY = [(family, variant) for family in LAYERS for variant in variants(family)]


def text(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCAB, length).astype(np.int32)


@pytest.mark.parametrize(("family", "variant"), EVERY, ids=str)
@pytest.mark.rotating(9)
def test_it_computes_what_transformers_layers_do(tmp_path: Path, family: str, variant: Any) -> None:
    target, block = with_mtp(tmp_path, family, variant)
    engine = load(LoadRequest(tmp_path, threads=1)).engine
    tokens = text(24)
    states = engine.forward(chain(engine.new_cache(), tokens, OutputRequest(hidden=(FINAL_NORM,)))).hidden[FINAL_NORM]
    with torch.no_grad():
        theirs = target.model(torch.from_numpy(tokens).long()[None]).last_hidden_state[0]
    expected, features = block(torch.from_numpy(tokens[1:]).long(), theirs[:-1])
    head, cache = engine.head, engine.head.new_cache()
    for end in range(1, len(tokens)):
        logits, own = head.run(cache, tokens[end : end + 1], states[end - 1 : end])
        scale = expected.std()
        assert np.abs(logits - expected[end - 1].numpy()).max() < 0.02 * scale, end
        assert np.abs(own[0] - features[end - 1].numpy()).max() < 0.02 * features.std(), end


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mtp") / "model"
    with_mtp(made, "qwen3_5_text", variants("qwen3_5_text")[0], max_position_embeddings=2048)
    return made


def states_of(engine: Any, tokens: np.ndarray) -> np.ndarray:
    """Hidden states after the final norm, float32 [n, width]."""
    step = engine.forward(chain(engine.new_cache(), tokens, OutputRequest(hidden=(FINAL_NORM,))))
    return step.hidden[FINAL_NORM]


def read(engine: Any, cache: Any, tokens: np.ndarray, head: Any = None) -> Any:
    """A cache that follows the head, and has read all tokens but the last."""
    (head or engine.head).follow(cache)
    engine.forward(chain(cache, tokens[:-1]))
    cache.keep(list(range(len(tokens) - 1)))
    return cache


def by_hand(head: Any, tokens: np.ndarray, states: np.ndarray, most: int) -> tuple[list[int], list[float]]:
    """The chain that rows of given features make, one by one."""
    cache, row, features = head.new_cache(), tokens[1:], states
    found: list[int] = []
    probs: list[float] = []
    for _ in range(most):
        logits, features = head.run(cache, row, features)
        found.append(int(logits.argmax()))
        probs.append(torch.softmax(torch.from_numpy(logits).double(), 0)[found[-1]].item())
        row = np.array(found[-1:], np.int32)
    return found, probs


def test_a_chain_is_one_call_that_does_what_rows_do(folder: Path) -> None:
    engine = load(LoadRequest(folder, threads=2)).engine
    head, tokens = engine.head, text(40, seed=1)
    last, expected = int(tokens[-1]), by_hand(engine.head, tokens, states_of(engine, tokens)[:-1], 5)
    cache = read(engine, engine.new_cache(), tokens)
    fork = cache.fork()
    found, probs = head.draft(cache, last, 5)
    assert found == expected[0]
    assert probs == pytest.approx(expected[1], rel=1e-5)
    assert head.draft(cache, last, 5) == ([], [])  # nothing is known of what follows
    chances = np.cumprod(probs)
    least = chances[1] + 1e-6
    assert head.draft(fork.fork(), last, 5, min_chance=least)[0] == found[: 1 + (chances[0] >= least)]
    assert head.draft(fork.fork(), last, 5, ends={found[0]})[0] == found[:1]
    assert head.draft(fork.fork(), last, 5, rates=[0.0], min_chance=0.5)[0] == found[:1]
    assert head.draft(fork.fork(), last, 3, copied=found[:2])[0] == found[2:5]
    by_logits = []
    logits = head.next_logits(fork, last, first=True)
    while len(by_logits) < 5:
        by_logits.append(int(logits.argmax()))
        logits = head.next_logits(fork, by_logits[-1], first=False)
    head.end_draft(fork)
    assert by_logits == found


def test_a_drawn_chain_is_what_the_sampler_draws(folder: Path) -> None:
    engine = load(LoadRequest(folder, threads=1)).engine
    head, tokens = engine.head, text(30, seed=5)
    sampler = Sampler(WarperParams(0.9, 40, 0.95, 0.01), 7, 2)
    cache = read(engine, engine.new_cache(), tokens)
    fork = cache.fork()
    found, leads = head.draft(cache, int(tokens[-1]), 4, draw=sampler.draw(len(tokens)))
    token = int(tokens[-1])
    for place, (drawn, lead) in enumerate(zip(found, leads, strict=True)):
        logits = head.next_logits(fork, token, first=place == 0)
        token = sampler(logits, len(tokens) + place)
        assert token == drawn
        assert lead == pytest.approx(sampler.lead(logits, len(tokens) + place, token), abs=0.02)  # of fewer rivals
    assert len(found) == 4


@pytest.mark.parametrize("cut", [1, 2, 17, 600])
def test_any_cut_of_the_prompt_gives_the_same_drafts(folder: Path, cut: int) -> None:
    """Drafting in between or not, and with more rows than wait for the head."""
    engine = load(LoadRequest(folder, threads=2)).engine
    head, tokens = engine.head, text(1300 if cut == 600 else 40, seed=2)
    last = int(tokens[-1])
    whole = head.draft(read(engine, engine.new_cache(), tokens), last, 4)
    assert whole[0] == by_hand(head, tokens, states_of(engine, tokens)[:-1], 4)[0]
    cache = engine.new_cache()
    head.follow(cache)
    while cache.length < len(tokens) - 1:
        rows = tokens[cache.length : min(cache.length + cut, len(tokens) - 1)]
        engine.forward(chain(cache, rows))
        cache.keep(list(range(len(rows))))
        if cache.length % 2 and cache.length < len(tokens) - 1:
            head.draft(cache, int(tokens[cache.length]), 3)
    assert head.draft(cache, last, 4) == whole


def test_rows_that_are_cropped_or_never_seen(folder: Path) -> None:
    """A text that goes on otherwise, from any length on, and one whose beginning no head followed."""
    engine = load(LoadRequest(folder, threads=1)).engine
    head, tokens, other = engine.head, text(60, seed=3), text(60, seed=4)
    for length in (0, 1, 30, 58, 59):
        for drafted in (False, True):
            cache = read(engine, engine.new_cache(), tokens)
            if drafted:
                head.draft(cache, int(tokens[-1]), 3)
            cache.crop(length)
            mixed = np.concatenate([tokens[:length], other])
            engine.forward(chain(cache, mixed[length:-1]))
            cache.keep(list(range(len(other) - 1)))
            found, _ = head.draft(cache, int(mixed[-1]), 4)
            assert len(found) == 4
            if not drafted or not length:  # else what was read last is not read again, whose features are gone
                assert found == by_hand(head, mixed, states_of(engine, mixed)[:-1], 4)[0]
    late = engine.new_cache()
    engine.forward(chain(late, tokens[:20]))
    late.keep(list(range(20)))
    head.follow(late)
    assert head.draft(late, int(tokens[20]), 3) == ([], [])
    engine.forward(chain(late, tokens[20:-1]))
    late.keep(list(range(39)))
    assert head.draft(late, int(tokens[-1]), 3)[0] == by_hand(head, tokens[20:], states_of(engine, tokens)[20:-1], 3)[0]


def test_a_head_with_a_shorter_context_stops_and_holds_no_features(folder: Path) -> None:
    request = LoadRequest(folder, threads=1)
    engine = load(request).engine
    checkpoint = open_checkpoint(folder)
    short = NativeHead.load(checkpoint, replace(engine.spec.mtp, max_context=64), request.plan(""), engine)
    checkpoint.close()
    tokens = text(400, seed=7)
    cache, beside = engine.new_cache(), engine.new_cache()
    short.follow(cache)
    for at in range(399):
        for one in (cache, beside):
            engine.forward(chain(one, tokens[at : at + 1]))
            one.keep([0])
        if at == 40:
            assert len(short.draft(cache, int(tokens[41]), 3)[0]) == 3
    assert short.draft(cache, int(tokens[-1]), 3) == ([], [])
    assert cache.raw.bytes - beside.raw.bytes < 64 * short.position_bytes * 2 + 4 * short.width * 129
    again = read(engine, engine.new_cache(), tokens[:60], short)
    assert len(short.draft(again, int(tokens[59]), 2)[0]) == 2
    engine.forward(chain(again, tokens[59:200]))
    again.keep(list(range(141)))
    assert short.draft(again, int(tokens[200]), 2) == ([], [])
    reached = again.crop(50)
    engine.forward(chain(again, tokens[reached:55]))
    again.keep(list(range(55 - reached)))
    assert len(short.draft(again, int(tokens[55]), 2)[0]) == 2


def test_a_cut_vocabulary_drafts_its_own_tokens_and_those_of_the_text(folder: Path) -> None:
    request = LoadRequest(folder, threads=1)
    engine = load(request).engine
    tokens = np.tile(np.array([5, 9, 40], np.int32), 8)
    states = states_of(engine, tokens)
    full, _ = engine.head.run(engine.head.new_cache(), tokens[1:], states[:-1])
    checkpoint = open_checkpoint(folder)
    ids = np.array([3, 4, 17, 90], np.int32)
    cut = NativeHead.load(checkpoint, engine.spec.mtp, request.plan(""), engine, ids=ids)
    checkpoint.close()
    logits, _ = cut.run(cut.new_cache(), tokens[1:], states[:-1])
    assert logits[ids].tobytes() == full[ids].tobytes()
    assert np.isneginf(np.delete(logits, ids)).all()
    cache = read(engine, engine.new_cache(), tokens, cut)
    more = cut.next_logits(cache, int(tokens[-1]), first=True)
    cut.end_draft(cache)
    seen = np.array(sorted({*ids.tolist(), *range(16), *range(32, 48)}))  # tiles of 16 that tokens of the text are in
    np.testing.assert_allclose(more[seen], full[seen], atol=1e-3 * np.abs(full).max())
    assert np.isneginf(np.delete(more, seen)).all()
    cut.allow_tokens(cache, np.array([70], np.int32))
    engine.forward(chain(cache, tokens[-1:]))
    cache.keep([0])
    assert np.isfinite(cut.next_logits(cache, 5, first=True)[64:80]).all()


def test_a_model_without_a_head_says_so(tmp_path: Path) -> None:
    write_folder(tmp_path, build("qwen3_5_text", variants("qwen3_5_text")[0]))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, engine="native", progress=False)
    with pytest.raises(InputError, match="needs a draft head"):
        model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, lookahead="head")


def test_its_rows_follow_the_text_whatever_was_accepted(folder: Path) -> None:
    """After any step the next draft is that of a head that reads the whole text at once."""
    engine = load(LoadRequest(folder, threads=1)).engine
    head, tokens = engine.head, text(60, seed=4)
    states = states_of(engine, tokens)
    chance, at = np.random.default_rng(0), 10
    cache = read(engine, engine.new_cache(), tokens[:at])
    proposer = HeadChain(head, lambda: cache)
    proposer.begin(tokens[:at].tolist())
    while at < 50:
        if chance.random() < 0.8:
            found = proposer.propose(4)
            assert found.tokens == by_hand(head, tokens[:at], states[: at - 1], 4)[0]
        right, wrong = int(chance.integers(0, 4)), int(chance.integers(0, 3))  # siblings of the first token
        rows = np.concatenate([tokens[at - 1 : at], np.ones(wrong, np.int32), tokens[at : at + right]])
        parents = np.array([-1, *[0] * wrong, *[0 if i == 0 else wrong + i for i in range(right)]], np.int32)
        engine.forward(Batch([cache], [len(rows)], rows, parents))
        cache.keep([0, *[1 + wrong + i for i in range(right)]])
        accepted = [wrong + i for i in range(right)]
        draft = Draft([*rows[1:].tolist()], [*(parents[1:] - 1).tolist()])
        proposer.observe(Outcome(draft, accepted, tokens[at : at + right + 1].tolist()))
        at += right + 1


@pytest.mark.parametrize(
    "sampling", [{}, {"do_sample": True, "temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"]
)
def test_auto_takes_a_head_that_is_there(folder: Path, sampling: dict[str, Any]) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, engine="native", progress=False)
    sources: set[str] = set()
    for seed in range(3):
        ids = torch.from_numpy(text(20, seed=seed)).long()[None]
        plain = model.generate(ids, max_new_tokens=60, **sampling)
        drafted = model.generate(
            ids, max_new_tokens=60, lookahead=LookaheadConfig("auto", 8, adaptive=False), **sampling
        )
        assert drafted.tolist() == plain.tolist()
        sources |= {*model.stats.drafted_by_source}
    assert "head" in sources


def test_a_gguf_file_has_the_same_head(tmp_path: Path) -> None:
    target, block = with_mtp(tmp_path / "folder", "qwen3_5_text", variants("qwen3_5_text")[0])
    layers = target.config.num_hidden_layers
    file = write_gguf(tmp_path / "model.gguf", target, change=add_to_gguf(block, layers))
    one, other = (load(LoadRequest(path, threads=1)).engine for path in (tmp_path / "folder", file))
    tokens, features = text(20), np.random.default_rng(0).standard_normal((20, one.head.width), np.float32)
    mine, theirs = (engine.head.run(engine.head.new_cache(), tokens, features)[0] for engine in (one, other))
    np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(mine).max())


@pytest.mark.parametrize("missing", ["mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"])
def test_a_block_that_is_not_whole_is_read_past(folder: Path, tmp_path: Path, missing: str) -> None:
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors[missing]
    save_file(tensors, file, {"format": "pt"})
    assert load(LoadRequest(tmp_path / "model", threads=1)).engine.head is None


@pytest.mark.parametrize("wrong", ["shape", "nan"])
def test_a_model_answers_without_a_block_that_is_damaged(
    folder: Path, tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    name = "mtp.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name][1:].clone() if wrong == "shape" else torch.full_like(tensors[name], torch.nan)
    save_file(tensors, file, {"format": "pt"})
    one, other = (load(LoadRequest(path, threads=1)).engine for path in (folder, tmp_path / "model"))
    assert other.head is None
    assert "block for drafting cannot be used, since" in caplog.text
    tokens = text(9)
    logits = [
        engine.forward(chain(engine.new_cache(), tokens, OutputRequest(logits=True))).logits for engine in (one, other)
    ]
    assert logits[0].tobytes() == logits[1].tobytes()
