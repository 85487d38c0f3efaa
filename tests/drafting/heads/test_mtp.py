"""A model's own block for drafting: what it computes, beside transformers' layers, and what comes of its drafts."""

from __future__ import annotations

import shutil
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5", reason="the oracle is put together of transformers 5's layers")
import torch
from safetensors.torch import load_file, save_file

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.auto import load_text_model
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.decoding import sequence_group
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.drafting import Auto, Draft, Outcome
from ipex_lookahead.drafting.heads.choosing import Choosing
from ipex_lookahead.drafting.heads.mtp import Mtp
from ipex_lookahead.engines.base import FINAL_NORM, OutputRequest
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.engines.native.load import load
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import InputError
from ipex_lookahead.generation.run import RunOptions, run
from ipex_lookahead.generation.sampling_params import SamplingParams
from ipex_lookahead.generation.service import Service
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.family_table import VOCAB, variants
from tests.support.gguf_families import write_gguf
from tests.support.letters import tokens_of
from tests.support.mtp_folders import LAYERS, add_to_gguf, with_mtp
from tests.support.tiny_families import build, write_folder

EVERY = [(family, variant) for family in LAYERS for variant in variants(family)]


def text(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCAB, length).astype(np.int32)


@pytest.mark.parametrize(("family", "variant"), EVERY, ids=str)
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
        logits, own = head.step(cache, tokens[end : end + 1], states[end - 1 : end])
        scale = expected.std()
        assert np.abs(logits - expected[end - 1].numpy()).max() < 0.02 * scale, end
        assert np.abs(own[0] - features[end - 1].numpy()).max() < 0.02 * features.std(), end


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mtp") / "model"
    with_mtp(made, "qwen3_5_text", variants("qwen3_5_text")[0])
    return made


def test_a_chain_is_one_call_that_does_what_steps_do(folder: Path) -> None:
    engine = load(LoadRequest(folder, threads=2)).engine
    tokens = text(40, seed=1)
    states = engine.forward(chain(engine.new_cache(), tokens, OutputRequest(hidden=(FINAL_NORM,)))).hidden[FINAL_NORM]
    head = engine.head
    one, other = head.new_cache(), head.new_cache()
    found, probs = head.draft(one, tokens[1:], states[:-1], 5)
    assert one.length == len(tokens) - 1
    row, features = tokens[1:], states[:-1]
    for token, prob in zip(found, probs, strict=True):
        logits, features = head.step(other, row, features)
        assert int(logits.argmax()) == token
        assert prob == pytest.approx(torch.softmax(torch.from_numpy(logits).double(), 0)[token].item(), rel=1e-5)
        row = np.array([token], np.int32)
    assert head.draft(one, row, features, 0) == ([], [])
    again = head.draft(head.new_cache(), tokens[1:], states[:-1], 5, probs[1] + 1e-6)
    assert again[0] == found[: next(i for i, p in enumerate(probs) if p < probs[1] + 1e-6) + 1]
    ended = head.draft(head.new_cache(), tokens[1:], states[:-1], 5, 0.0, {found[0]})
    assert ended[0] == found[:1]


def test_any_cut_of_the_rows_gives_the_same_drafts(folder: Path) -> None:
    engine = load(LoadRequest(folder, threads=1)).engine
    tokens = text(30, seed=2)
    states = engine.forward(chain(engine.new_cache(), tokens, OutputRequest(hidden=(FINAL_NORM,)))).hidden[FINAL_NORM]
    whole = engine.head.draft(engine.head.new_cache(), tokens[1:], states[:-1], 4)
    for cut in (1, 2, 17):
        cache = engine.head.new_cache()
        for first in range(0, 29 - cut, cut):
            engine.head.draft(cache, tokens[1 + first : 1 + first + cut], states[first : first + cut], 3)
        first = cache.length
        assert engine.head.draft(cache, tokens[1 + first :], states[first:-1], 4) == whole


def test_a_cut_vocabulary_drafts_its_own_tokens_alone(folder: Path) -> None:
    request = LoadRequest(folder, threads=1)
    loaded = load(request)
    engine, tokens = loaded.engine, text(20, seed=3)
    states = engine.forward(chain(engine.new_cache(), tokens, OutputRequest(hidden=(FINAL_NORM,)))).hidden[FINAL_NORM]
    full, _ = engine.head.step(engine.head.new_cache(), tokens[1:], states[:-1])
    checkpoint = open_checkpoint(folder)
    ids = np.array([3, 4, 17, 90], np.int32)
    cut = NativeHead.load(checkpoint, engine.spec.mtp, request.plan(""), engine, ids=ids)
    logits, _ = cut.step(cut.new_cache(), tokens[1:], states[:-1])
    assert logits[ids].tobytes() == full[ids].tobytes()
    assert np.isneginf(np.delete(logits, ids)).all()
    found, _ = cut.draft(cut.new_cache(), tokens[1:], states[:-1], 4)
    assert len(found) == 4
    assert {*found} <= {*ids.tolist()}
    checkpoint.close()


@pytest.mark.parametrize(
    "sampling", [{}, {"do_sample": True, "temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("low_bit", [None, "sym_int4"])
def test_what_it_drafts_changes_no_token(folder: Path, low_bit: str | None, sampling: dict[str, Any]) -> None:
    options = {} if low_bit is None else {"load_in_low_bit": low_bit}
    model = AutoModelForCausalLM.from_pretrained(folder, engine="native", progress=False, **options)
    for seed in range(3):
        ids = torch.from_numpy(text(20 + seed, seed=seed)).long()[None]
        plain = model.generate(ids, max_new_tokens=40, **sampling)
        for config in ("mtp", LookaheadConfig("mtp", num_draft_tokens=5, adaptive=False, draft_min_prob=0.0)):
            drafted = model.generate(ids, max_new_tokens=40, lookahead=config, **sampling)
            assert drafted.tolist() == plain.tolist()
    assert model.stats.drafted > 0


def test_a_batch_and_a_prompt_found_again(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, engine="native", progress=False)
    ids = torch.stack([torch.from_numpy(text(24, seed=seed)).long() for seed in range(3)])
    config = LookaheadConfig("mtp", num_draft_tokens=3, adaptive=False, draft_min_prob=0.0)
    assert (
        model.generate(ids, max_new_tokens=30, lookahead=config).tolist()
        == model.generate(ids, max_new_tokens=30).tolist()
    )


def test_a_model_without_a_head_says_so(tmp_path: Path) -> None:
    write_folder(tmp_path, build("qwen3_5_text", variants("qwen3_5_text")[0]))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, engine="native", progress=False)
    with pytest.raises(InputError, match="needs a model with a block for drafting"):
        model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, lookahead="mtp")


def test_its_rows_follow_the_text_whatever_was_accepted(folder: Path) -> None:
    """After any outcome the next draft is that of a head that reads the whole text at once."""
    engine = load(LoadRequest(folder, threads=1)).engine
    tokens = text(60, seed=4)
    states = engine.forward(chain(engine.new_cache(), tokens, OutputRequest(hidden=(FINAL_NORM,)))).hidden[FINAL_NORM]
    chance, proposer, at = np.random.default_rng(0), Mtp(engine.head), 10
    proposer.begin(tokens[:at].tolist(), {FINAL_NORM: states[: at - 1]})
    while at < 50:
        if chance.random() < 0.8:
            found = proposer.propose(4)
            fresh = engine.head.draft(engine.head.new_cache(), tokens[1:at], states[: at - 1], 4)
            assert (found.tokens, found.probs) == fresh
        right = int(chance.integers(0, 4))
        wrong = [1] * int(chance.integers(0, 3))  # siblings of the first token, before it
        draft = Draft(
            [*wrong, *tokens[at : at + right].tolist()],
            [*[-1] * len(wrong), *range(len(wrong) - 1, len(wrong) + right - 1)],
        )
        if right and wrong:
            draft.parents[len(wrong)] = -1
        path = [len(wrong) + i for i in range(right)]
        hidden = np.zeros((1 + len(draft.tokens), states.shape[1]), np.float32)
        hidden[[0, *(row + 1 for row in path)]] = states[at - 1 : at + right]
        emitted = tokens[at : at + right + 1].tolist()
        proposer.observe(Outcome(draft, path, emitted, hidden={FINAL_NORM: hidden}))
        at += right + 1


class Knows:
    """A head that drafts what comes next, or something else, and counts how often it is asked."""

    wants = OutputRequest(hidden=(FINAL_NORM,))

    def __init__(self, right: bool) -> None:
        self.right, self.asked, self.text = right, 0, []

    def begin(self, prompt: Any, hidden: Any = None) -> None:
        self.text = [*prompt]

    def propose(self, budget: int) -> Draft:
        self.asked += budget
        start = len(self.text)
        drafted = [follower(start + i) + (0 if self.right else 1) for i in range(budget)]
        return Draft(drafted, range(-1, budget - 1), probs=[0.9] * budget)

    def observe(self, outcome: Outcome) -> None:
        self.text += outcome.emitted


def follower(at: int) -> int:
    """A text that nothing free foresees."""
    return int(np.random.default_rng(at).integers(3, 30000))


@pytest.mark.parametrize("right", [True, False])
def test_a_head_drafts_where_it_is_right_and_is_left_alone_where_not(right: bool) -> None:
    head = Knows(right)
    proposer, at, steps = Choosing(Auto(), head, 0.06), 8, 0
    proposer.begin([follower(i) for i in range(at)], {})
    while at < 1500:
        draft = proposer.propose(8)
        accepted: list[int] = []
        for row, token in enumerate(draft.tokens):
            if draft.parents[row] == (accepted[-1] if accepted else -1) and token == follower(at + len(accepted)):
                accepted.append(row)
        emitted = [follower(at + i) for i in range(len(accepted) + 1)]
        proposer.observe(Outcome(draft, accepted, emitted, top=[[0]] * (1 + len(draft.tokens)), hidden={}))
        at, steps = at + len(emitted), steps + 1
    if right:
        assert steps < 1500 / 7
    else:
        assert head.asked < 60


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
    assert "mtp" in sources


def test_a_gguf_file_has_the_same_head(tmp_path: Path) -> None:
    target, block = with_mtp(tmp_path / "folder", "qwen3_5_text", variants("qwen3_5_text")[0])
    layers = target.config.num_hidden_layers
    file = write_gguf(tmp_path / "model.gguf", target, change=add_to_gguf(block, layers))
    one, other = (load(LoadRequest(path, threads=1)).engine for path in (tmp_path / "folder", file))
    tokens, features = text(20), np.random.default_rng(0).standard_normal((20, one.head.width), np.float32)
    mine, theirs = (engine.head.step(engine.head.new_cache(), tokens, features)[0] for engine in (one, other))
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


@pytest.mark.parametrize("memory", [1 << 18, 1 << 26])
def test_a_service_answers_as_without(tmp_path: Path, memory: int) -> None:
    """Several at once, prompts that are found again, and little memory, so that some are preempted."""
    with_mtp(tmp_path / "model", "qwen3_5_text", variants("qwen3_5_text")[0], vocab_size=SIZE)
    chat_tokenizer().save_pretrained(tmp_path / "model")
    model = load_text_model(str(tmp_path / "model"), engine="native", progress=False)
    prompts = [text(70 + seed, seed=seed % 3).tolist() for seed in range(6)]
    params = [SamplingParams(60), SamplingParams(60, temperature=0.8, seed=3)] * 3
    alone = [model.generate(*asked) for asked in zip(prompts, params, strict=True)]
    for strategy in ("mtp", "auto"):
        config = LookaheadConfig(strategy, num_draft_tokens=4, adaptive=False)
        with closing(Service(model, slots=3, cache_memory=memory)) as service:
            found: list[list[int]] = [[] for _ in prompts]

            def listen(at: int, service: Any = service, config: Any = config, found: Any = found) -> None:
                events = list(service.stream(prompts[at], params[at], lookahead=config))
                found[at] += tokens_of(events)

            threads = [threading.Thread(target=listen, args=(at,)) for at in range(len(prompts))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
            assert found == alone


def test_of_a_long_prompt_the_last_states_are_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_group, "MOST_STATES", 16)
    seen: list[int] = []
    begin = Mtp.begin
    monkeypatch.setattr(
        Mtp, "begin", lambda self, *given: (seen.append(len(given[1][FINAL_NORM])), begin(self, *given))[1]
    )
    engine = load(LoadRequest(folder, threads=1)).engine
    tokens = text(50, seed=6)
    plain = run(engine, [Sequence(tokens, 80)], RunOptions())[0].new
    config = LookaheadConfig("mtp", num_draft_tokens=4, adaptive=False, draft_min_prob=0.0)
    assert run(engine, [Sequence(tokens, 80)], RunOptions(config, prefill_rows=8))[0].new == plain
    assert 16 <= seen[0] < 50
