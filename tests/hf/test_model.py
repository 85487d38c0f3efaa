from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, TextStreamer, pipeline

from ipex_lookahead.checkpoints.low_bit import LowBitCheckpoint
from ipex_lookahead.errors import ContextLengthError, InputError
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.hf.model import LookaheadModelForCausalLM
from tests.support.byte_tokenizer import BOS, EOS, PAD, VOCAB, byte_tokenizer
from tests.support.cache_walk import Plain
from tests.support.numpy_engine import NumpyEngine
from tests.support.scripted_engine import markov, scripted
from tests.support.tiny import TinyLlama

TINY = TinyLlama(vocab=VOCAB, hidden=32, layers=1, heads=2, kv_heads=1, intermediate=32, tie=False, context=700)


class WritableEngine(NumpyEngine):
    """An engine that gives its weights back, as the native one does."""

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        for name, values in self._weights.items():
            yield name, PackedWeight("fp32", values.shape, values)


def build(engine: Any = None, **kwargs: Any) -> LookaheadModelForCausalLM:
    engine = engine or WritableEngine(TINY.config("float32"), TINY.weights())
    return LookaheadModelForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=32,
            max_position_embeddings=700,
        ),
        engine,
        generation_config=GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD),
        low_bit="fp32",
        **kwargs,
    )


@pytest.fixture(scope="module")
def model() -> LookaheadModelForCausalLM:
    return build()


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """What transformers logs as a warning or worse (its loggers do not propagate, so caplog would not see it)."""
    from transformers.utils import logging as hf_logging

    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Handler(logging.WARNING)
    hf_logging.get_logger("transformers").addHandler(handler)
    yield messages
    hf_logging.get_logger("transformers").removeHandler(handler)


@pytest.fixture(scope="module")
def plain(model: LookaheadModelForCausalLM) -> Plain:
    return Plain(model.engine)


# ---- logits ----


def test_logits_at_every_position(model: LookaheadModelForCausalLM, plain: Plain) -> None:
    ids = torch.tensor([[5, 6, 7, 8], [9, 5, 1, 2]])
    out = model(ids)
    assert out.logits.shape == (2, 4, VOCAB)
    assert out.logits.dtype == torch.float32
    assert out.loss is None
    for row in range(2):
        for at in range(4):
            assert np.array_equal(out.logits[row, at].numpy(), plain.logits(ids[row, : at + 1].tolist()))


@pytest.mark.parametrize("padding", ["left", "right"])
def test_padding_is_invisible(model: LookaheadModelForCausalLM, padding: str) -> None:
    alone = model(torch.tensor([[6, 7, 8]])).logits[0]
    padded, mask = ([PAD, PAD, 6, 7, 8], [0, 0, 1, 1, 1]) if padding == "left" else ([6, 7, 8, 0, 0], [1, 1, 1, 0, 0])
    logits = model(torch.tensor([padded, [1, 2, 3, 4, 5]]), attention_mask=torch.tensor([mask, [1] * 5])).logits
    real = torch.tensor(mask, dtype=torch.bool)
    assert torch.equal(logits[0][real], alone)
    assert not logits[0][~real].any()


def test_logits_to_keep(model: LookaheadModelForCausalLM) -> None:
    ids = torch.tensor([[5, 6, 7, 8], [9, 5, 1, 2]])
    whole = model(ids).logits
    assert torch.equal(model(ids, logits_to_keep=2).logits, whole[:, -2:])
    assert torch.equal(model(ids, logits_to_keep=torch.tensor([3, 0])).logits, whole[:, [3, 0]])


def test_a_long_input_goes_through_in_chunks() -> None:
    engine = markov(vocab_size=16, order=3)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 16, (1, 1100)))
    logits = build(engine)(ids, logits_to_keep=torch.tensor([0, 511, 512, 1099])).logits
    assert [counts for counts, _, _ in engine.batches] == [[512], [512], [76]]
    assert [wanted for _, wanted, _ in engine.batches] == [2, 1, 1]
    for place, at in enumerate([0, 511, 512, 1099]):
        assert np.array_equal(logits[0, place].numpy(), engine._logits_of(ids[0, : at + 1].tolist()))


def test_labels_give_the_loss_of_transformers(model: LookaheadModelForCausalLM) -> None:
    ids = torch.tensor([[5, 6, 7, 8], [9, 5, 1, 2]])
    labels = ids.clone()
    labels[0, :2] = -100
    out = model(ids, labels=labels)
    kept = [(row, at) for row in range(2) for at in range(1, 4) if labels[row, at] != -100]
    expected = -torch.stack([out.logits[row, at - 1].log_softmax(-1)[labels[row, at]] for row, at in kept]).mean()
    assert torch.allclose(out.loss, expected)
    assert torch.equal(model(ids, labels=labels, return_dict=False)[1], out.logits)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({}, InputError, "input_ids has shape None"),
        ({"input_ids": torch.zeros((1, 0), dtype=torch.int64)}, InputError, r"shape \(1, 0\)"),
        ({"input_ids": torch.tensor([1, 2])}, InputError, r"shape \(2,\)"),
        ({"input_ids": torch.tensor([[VOCAB]])}, InputError, "holds 259; ids range from 0 to 258"),
        ({"input_ids": torch.tensor([[-1]])}, InputError, "holds -1"),
        (
            {"input_ids": torch.tensor([[1, 2]]), "attention_mask": torch.ones(1, 3)},
            InputError,
            "attention_mask has shape",
        ),
        (
            {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.tensor([[1, 0, 1]])},
            InputError,
            "one run of ones",
        ),
        ({"input_ids": torch.tensor([[1, 2]]), "attention_mask": torch.zeros(1, 2)}, InputError, "one run of ones"),
        (
            {"input_ids": torch.tensor([[1, 2]]), "inputs_embeds": torch.zeros(1)},
            InputError,
            "inputs_embeds is not supported",
        ),
        (
            {"input_ids": torch.tensor([[1, 2]]), "output_attentions": True},
            InputError,
            "output_attentions is not supported",
        ),
        (
            {"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[1, 2]]), "logits_to_keep": 1},
            InputError,
            "labels need the logits of all",
        ),
        (
            {"input_ids": torch.ones((1, 701), dtype=torch.int64)},
            ContextLengthError,
            "701 positions; the model has 700",
        ),
    ],
)
def test_bad_calls(model: LookaheadModelForCausalLM, kwargs: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        model(**kwargs)


# ---- generation ----


def test_generate_is_greedy_over_the_logits(model: LookaheadModelForCausalLM, plain: Plain) -> None:
    ids = [1, 2, 3]
    for _ in range(6):
        ids.append(int(plain.logits(ids).argmax()))
    for lookahead in (None, 0, 3, "auto"):
        out = model.generate(torch.tensor([ids[:3]]), max_new_tokens=6, eos_token_id=None, lookahead=lookahead)
        assert out.tolist() == [ids]


def test_ordinary_calls_say_nothing(complaints: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build(tokenizer=byte_tokenizer())
        ids = torch.tensor([[1, 2, 3]])
        model.generate(ids)
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, lookahead=2, do_sample=True, top_p=0.9
        )
        model.generate(input_ids=ids, generation_config=GenerationConfig(max_new_tokens=3), stop_strings="zq")
        model(ids)
    assert complaints == []
    assert capsys.readouterr() == ("", "")


def test_the_models_tokenizer_serves_stop_strings() -> None:
    text = list(b"one two three")
    model = build(scripted([*text, EOS], VOCAB, 1), tokenizer=byte_tokenizer())
    out = model.generate(torch.tensor([[65]]), stop_strings=["two"], max_new_tokens=40, lookahead=3)
    assert bytes(out[0, 1:].tolist()) == b"one two"


def test_streamer_by_position_as_in_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    model = build(scripted([*b"hi", EOS], VOCAB, 1))
    streamer = TextStreamer(byte_tokenizer(), skip_prompt=True, skip_special_tokens=True)
    model.generate(torch.tensor([[65]]), None, None, None, None, None, None, streamer, max_new_tokens=5)
    assert capsys.readouterr().out == "hi\n"


def test_statistics_under_the_names_of_ipex_llm() -> None:
    model = build(markov(vocab_size=VOCAB, order=1))
    assert (model.stats.tokens, model.first_token_time, model.n_token_generated) == (0, 0.0, 0)
    assert model.n_drafted == model.n_matched == model.e2e_time_without_first == 0
    for name in ("accept_num", "draft_num", "accept_rate", "generate_time", "verify_time", "draft_time"):
        assert getattr(model, name) == []
    model.generate([1, 2, 1, 2], max_new_tokens=60, eos_token_id=None, lookahead=3)
    stats = model.stats
    assert stats is not None
    assert model.n_token_generated == stats.tokens == 60
    assert model.first_token_time == stats.first_token_seconds > 0
    assert model.e2e_time_without_first == stats.decode_seconds > 0
    assert model.n_drafted == sum(model.draft_num) > 0
    assert model.n_matched == sum(model.accept_num) > 0
    assert (
        len(model.accept_rate)
        == len(model.verify_time)
        == len(model.draft_time)
        == len(model.generate_time)
        == stats.steps
    )
    assert model.accept_rate[0] == (model.accept_num[0] / model.draft_num[0] if model.draft_num[0] else 0)
    assert all(
        g == pytest.approx(v + d)
        for g, v, d in zip(model.generate_time, model.verify_time, model.draft_time, strict=True)
    )


def test_statistics_of_a_failed_call_are_its_own() -> None:
    model = build(markov(vocab_size=VOCAB))
    model.generate([1, 2], max_new_tokens=3)
    with pytest.raises(InputError):
        model.generate([1, 2], lookahead=-1)
    assert model.n_token_generated == 0


@pytest.mark.parametrize("batch_size", [1, 2])
def test_pipeline(batch_size: int, complaints: list[str]) -> None:
    tokenizer = byte_tokenizer()
    engine = scripted([*b" and so on", EOS], VOCAB, 3)
    model = build(engine, tokenizer=tokenizer)
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    out = pipe(["abc", "xyz"], do_sample=False, max_new_tokens=30, batch_size=batch_size, lookahead=4)
    assert [o[0]["generated_text"] for o in out] == ["abc and so on", "xyz and so on"]
    assert pipe("abc", do_sample=False, max_new_tokens=4, return_full_text=False)[0]["generated_text"] == " and"
    several = pipe("abc", max_new_tokens=4, do_sample=True, num_return_sequences=2, temperature=0.01)
    assert [o["generated_text"] for o in several] == ["abc and"] * 2
    assert complaints == []


# ---- what torch and transformers ask of a model ----


def test_what_kind_of_model_it_is(model: LookaheadModelForCausalLM) -> None:
    assert model.device == torch.device("cpu")
    assert model.dtype == torch.float32
    assert not model.training
    assert model.can_generate()
    assert "engine=numpy, low_bit=fp32" in repr(model)


@pytest.mark.parametrize(
    "move",
    [
        lambda m: m.to("cpu"),
        lambda m: m.to(torch.device("cpu")),
        lambda m: m.to(torch.float16),
        lambda m: m.to(device="cpu", dtype=torch.bfloat16),
        lambda m: m.to(torch.zeros(1)),
        lambda m: m.half(),
        lambda m: m.float(),
        lambda m: m.bfloat16(),
        lambda m: m.cpu(),
        lambda m: m.eval(),
    ],
)
def test_harmless_conversions(model: LookaheadModelForCausalLM, move: Any) -> None:
    assert move(model) is model
    assert model.dtype == torch.float32
    assert not model.training


@pytest.mark.parametrize("move", [lambda m: m.to("mps"), lambda m: m.to(device="cuda:0"), lambda m: m.cuda()])
def test_other_devices_are_refused(model: LookaheadModelForCausalLM, move: Any) -> None:
    with pytest.raises(InputError, match=r"runs on the CPU and cannot move to (mps|cuda)"):
        move(model)


def test_save_low_bit_writes_what_the_engine_holds(tmp_path: Path) -> None:
    model = build(tokenizer=byte_tokenizer())
    folder = model.save_low_bit(tmp_path / "saved")
    checkpoint = LowBitCheckpoint(folder)
    weights = TINY.weights()
    assert set(checkpoint.names()) == set(weights)
    for name, values in weights.items():
        assert np.array_equal(checkpoint.read(name).codes, values)
    assert checkpoint.low_bit["low_bit"] == "fp32"
    assert checkpoint.generation_config["eos_token_id"] == EOS
    assert checkpoint.config["vocab_size"] == VOCAB
    checkpoint.close()


def test_saving_is_refused_where_it_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"by model.save_low_bit\(folder\)"):
        build().save_pretrained(tmp_path / "x")
    with pytest.raises(InputError, match="the scripted engine cannot return its weights"):
        build(markov()).save_low_bit(tmp_path / "y")
    assert list(tmp_path.iterdir()) == []
