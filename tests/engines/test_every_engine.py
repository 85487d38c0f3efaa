"""One suite for every engine that is installed: load, generate, look ahead, stream, stop, sample, save, refuse.

Where an engine promises equal text (the native one, and torch with ``deterministic=True``), equality is asserted.
Elsewhere the check is teacher-forced: every emitted token is the argmax of the engine's own logits over the whole text,
or within ``MARGIN`` of it, and the share of equal texts is printed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from ipex_lookahead import (
    AutoModelForCausalLM,
    ContextLengthError,
    InputError,
    LookaheadConfig,
    LowBitFormatError,
)
from ipex_lookahead.controller.calibration import calibrate
from ipex_lookahead.drafting import PROPOSERS
from ipex_lookahead.engines.identity import identity
from ipex_lookahead.engines.native.core import core_missing
from tests.support.byte_tokenizer import PAD, VOCAB, byte_tokenizer
from tests.support.families import shortfall
from tests.support.tiny import write_tiny_llama

MARGIN = 0.1
"""Largest shortfall of an emitted token's logit, in standard deviations of the logits."""

CASES = {
    "native": {"engine": "native"},
    "torch": {"engine": "torch"},
    "torch deterministic": {"engine": "torch", "deterministic": True},
    "ipex-llm": {"engine": "ipex-llm"},
    "opencl": {"engine": "opencl"},
    "opencl and CPU": {"engine": "opencl", "gpu_layers": 1},
}
SIZES = {"vocab": VOCAB, "hidden": 64, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 128, "context": 512}
GREEDY: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD}
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_k": 40, "seed": 7, "eos_token_id": None}
TEXTS = [
    "one two three one two three one two",
    "a b a b a b a",
    "def f(x):\n    return x\n\ndef g(x):\n    return",
    "the cat sat on the mat and the cat sat",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), seed=11, tie=False, **SIZES)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, folder: Path) -> Any:
    if request.param == "native" and core_missing():
        pytest.skip(f"the native core is not built: {core_missing()}")
    if request.param == "ipex-llm" and importlib.util.find_spec("ipex_llm") is None:
        pytest.skip("ipex-llm is not installed (make test-ipex-llm runs this suite on its own stack)")
    if request.param.startswith("opencl") and importlib.util.find_spec("pyopencl") is None:
        pytest.skip("pyopencl is not installed (make test-opencl runs this suite on Intel's runtime for CPUs)")
    return load(folder, **CASES[request.param])


def load(folder: Path, low_bit: str | None = "sym_int4", **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit=low_bit, threads=1, progress=False, **kwargs)


def prompt(text: str) -> torch.Tensor:
    return torch.tensor([list(text.encode())])


def exact(model: Any) -> bool:
    facts = model.engine.describe()
    return bool(model.engine.row_invariant or facts.get("deterministic"))


def assert_greedy(model: Any, ids: torch.Tensor, start: int) -> None:
    logits = model(ids).logits
    assert shortfall(lambda _: logits, ids, start) < MARGIN * float(logits.std())


def test_it_says_what_it_is(model: Any, folder: Path) -> None:
    facts = model.engine.describe()
    assert facts["engine"] == model.engine.name
    assert facts["chosen"] == f"{model.engine.name}: requested"
    assert facts["low_bit"] == model.low_bit == "sym_int4"
    assert model.engine.vocab_size == VOCAB
    assert model.engine.max_context == facts["max_context"] == SIZES["context"]
    for number in ("weight_bytes", "kv_bytes_per_token", "threads"):
        assert facts[number] > 0, number
    assert facts["weight_bytes"] < (folder / "model.safetensors").stat().st_size


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.rotating(12)
def test_greedy_text_is_what_its_logits_say(model: Any, text: str) -> None:
    ids = prompt(text)
    out = model.generate(ids, max_new_tokens=40, **GREEDY)
    assert out.shape == (1, ids.shape[1] + 40)
    assert_greedy(model, out, ids.shape[1])
    assert torch.equal(model.generate(ids, max_new_tokens=40, **GREEDY), out)


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("strategy", PROPOSERS)
@pytest.mark.rotating(18)
def test_lookahead_with_every_proposer(model: Any, strategy: str, adaptive: bool) -> None:
    config = LookaheadConfig(strategy=strategy, num_draft_tokens=40, window=4, ngram=4, guesses=4, adaptive=adaptive)
    equal = drafted = 0
    for text in TEXTS:
        ids = prompt(text)
        plain = model.generate(ids, max_new_tokens=48, **GREEDY)
        if strategy == "jacobi" and not model.engine.supports_tree:
            if not adaptive:
                with pytest.raises(InputError, match="scratch rows"):
                    model.generate(ids, max_new_tokens=100, lookahead=config, **GREEDY)
            continue
        out = model.generate(ids, max_new_tokens=48, lookahead=config, **GREEDY)
        assert_greedy(model, out, ids.shape[1])
        equal += torch.equal(out, plain)
        drafted += model.stats.drafted
    if strategy != "jacobi" or model.engine.supports_tree:
        print(f"{model.engine.name}, {strategy}: {equal} of {len(TEXTS)} texts equal")
        assert equal == len(TEXTS) or not exact(model)
        assert drafted > 0 or adaptive


def test_lookahead_with_a_draft_model(model: Any, tmp_path: Path) -> None:
    smaller = write_tiny_llama(tmp_path / "draft", seed=11, tie=False, **{**SIZES, "layers": 1})
    draft = load(smaller, **options_of(model))
    for text in TEXTS[:2]:
        ids = prompt(text)
        plain = model.generate(ids, max_new_tokens=40, **GREEDY)
        out = model.generate(ids, max_new_tokens=40, draft_model=draft, adaptive=False, **GREEDY)
        assert_greedy(model, out, ids.shape[1])
        assert torch.equal(out, plain) or not exact(model)
        assert model.stats.drafted > 0


def options_of(model: Any) -> dict[str, Any]:
    return next(
        options
        for options in CASES.values()
        if options["engine"] == model.engine.name
        and bool(options.get("deterministic")) == bool(model.engine.describe().get("deterministic"))
    )


def test_self_speculation_runs_or_is_refused(model: Any, folder: Path) -> None:
    if model.engine.name != "native":
        with pytest.raises(InputError, match="speculative=True needs the native"):
            load(folder, "sym_int8", speculative=True, **options_of(model))
        return
    own = load(folder, "sym_int8", speculative=True, engine="native")
    ids = prompt(TEXTS[0])
    plain = own.generate(ids, max_new_tokens=40, lookahead=0, **GREEDY)
    assert torch.equal(own.generate(ids, max_new_tokens=40, adaptive=False, **GREEDY), plain)


@pytest.mark.parametrize("strategy", ["prompt_lookup", "auto", "recycling"])
@pytest.mark.rotating(9)
def test_sampling_is_repeatable_and_lookahead_keeps_it(model: Any, strategy: str) -> None:
    ids = prompt(TEXTS[3])
    config = LookaheadConfig(strategy=strategy, num_draft_tokens=6, adaptive=False)
    plain = model.generate(ids, max_new_tokens=40, **SAMPLED)
    assert torch.equal(model.generate(ids, max_new_tokens=40, **SAMPLED), plain)
    assert not torch.equal(model.generate(ids, max_new_tokens=40, **{**SAMPLED, "seed": 8}), plain)
    out = model.generate(ids, max_new_tokens=40, lookahead=config, **SAMPLED)
    assert out.shape == plain.shape
    assert torch.equal(out, plain) or not exact(model)


def test_the_rows_of_a_batch_are_those_of_one_alone(model: Any) -> None:
    length = max(len(text) for text in TEXTS)
    ids = torch.full((len(TEXTS), length), PAD)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(TEXTS):
        ids[row, length - len(text) :] = prompt(text)[0]
        mask[row, length - len(text) :] = 1
    for lookahead in (None, 5):
        together = model.generate(
            ids, attention_mask=mask, max_new_tokens=24, lookahead=lookahead, adaptive=False if lookahead else None,
            **GREEDY,
        )  # fmt: skip
        for row, text in enumerate(TEXTS):
            alone = model.generate(prompt(text), max_new_tokens=24, **GREEDY)[0, len(text) :]
            if exact(model):
                assert torch.equal(together[row, length:], alone)
            assert_greedy(model, torch.cat([prompt(text)[0], together[row, length:]])[None], len(text))


def test_a_call_gives_logits(model: Any) -> None:
    ids = prompt(TEXTS[1])
    every = model(ids).logits
    assert every.shape == (1, ids.shape[1], VOCAB)
    assert every.dtype == torch.float32
    last = model(ids, logits_to_keep=1).logits
    assert (last[0, 0] - every[0, -1]).abs().max() < MARGIN * every.std()


def test_saved_and_loaded_again(model: Any, tmp_path: Path) -> None:
    if model.engine.name == "ipex-llm":
        with pytest.raises(InputError, match="cannot return its weights"):
            model.save_low_bit(tmp_path / "saved")
        return
    model.save_low_bit(tmp_path / "saved")
    again = AutoModelForCausalLM.load_low_bit(tmp_path / "saved", threads=1, progress=False, **options_of(model))
    ids = prompt(TEXTS[2])
    assert again.low_bit == "sym_int4"
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert again.tokenizer.decode([104, 105]) == "hi"


def test_a_calibration_knows_where_it_was_made(model: Any) -> None:
    found, _ = calibrate(model.engine, patience=0.0)
    assert found.rows[0] == 1
    assert all(seconds > 0 for seconds in found.seconds)
    if model.engine.name == "torch":
        assert identity(model.engine)["device"] == "cpu"
    assert identity(model.engine)["engine"] == model.engine.name


def test_bad_input_is_refused_with_a_sentence(model: Any, folder: Path) -> None:
    ids = prompt("abc")
    for wrong, error, said in (
        ({"inputs": torch.tensor([[VOCAB]])}, InputError, str(VOCAB)),
        ({"inputs": torch.tensor([[-1]])}, InputError, "-1"),
        ({"inputs": torch.zeros((1, 600), dtype=torch.int64)}, ContextLengthError, "512"),
        ({"inputs": ids, "max_new_tokens": -1}, InputError, "max_new_tokens"),
        ({"inputs": ids, "lookahead": 500}, InputError, "128"),
        ({"inputs": ids, "num_beams": 4}, InputError, "beam"),
    ):
        with pytest.raises(error, match=said):
            model.generate(**{**GREEDY, "max_new_tokens": 4, **wrong})
    with pytest.raises(LowBitFormatError, match="sym_int9"):
        load(folder, "sym_int9", **options_of(model))
    with pytest.raises(InputError, match="cannot move to cuda"):
        model.to("cuda")
    assert model.to("cpu") is model


def test_text_goes_on_to_the_end_of_the_context(model: Any) -> None:
    ids = torch.tensor([[(7 * i) % 250 for i in range(490)]])
    out = model.generate(ids, max_new_tokens=100, lookahead=8, adaptive=False, **GREEDY)
    assert out.shape == (1, SIZES["context"])
    assert model.stats.finish_reasons == ["context"]
    plain = model.generate(ids, max_new_tokens=100, **GREEDY)
    assert torch.equal(out, plain) or not exact(model)
