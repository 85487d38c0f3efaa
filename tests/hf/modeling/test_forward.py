"""``forward`` with caches: a text in pieces has the logits of the whole one, on our engine and beside transformers."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, ContextLengthError, InputError, wrap
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.hf.generation.past import LookaheadCache
from ipex_lookahead.system.compat import CACHE
from tests.support.tiny import write_tiny_llama

TEXT = torch.tensor([[5, 9, 33, 2, 17, 60, 41, 8, 8, 70, 3, 26]])
OTHER = torch.tensor([[7, 7, 90, 4, 4, 4, 12, 51, 29, 30, 31, 6]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "m", seed=5)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit="sym_int8", threads=2, progress=False)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    """The same weights, in float32, in transformers."""
    return LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    """The same weights in float32 on our engine."""
    return AutoModelForCausalLM.from_pretrained(folder, threads=2, progress=False)


@pytest.mark.parametrize("cuts", [[1, 2, 3], [5], [1, 11], list(range(1, 12))])
def test_pieces_have_the_logits_of_the_whole(model: Any, cuts: list[int]) -> None:
    whole = model(TEXT).logits
    past, pieces = None, []
    for start, stop in zip([0, *cuts], [*cuts, 12], strict=True):
        out = model(TEXT[:, start:stop], past_key_values=past, use_cache=True)
        past = out.past_key_values
        assert past.get_seq_length() == stop
        pieces.append(out.logits)
    assert torch.equal(torch.cat(pieces, 1), whole)


def test_a_long_text_after_a_short_one(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        write_tiny_llama(folder.parent / "long", context=700), threads=2, progress=False
    )
    ids = torch.randint(0, 96, (2, 650), generator=torch.manual_seed(1))
    whole = model(ids, use_cache=False)
    assert whole.past_key_values is None
    past = model(ids[:, :7]).past_key_values
    rest = model(ids[:, 7:], past_key_values=past, logits_to_keep=torch.tensor([0, 500, 642])).logits
    assert torch.equal(rest, whole.logits[:, [7, 507, 649]])


def test_a_loop_written_by_hand_is_generate(model: Any, reference: Any, plain: Any) -> None:
    expected = model.generate(TEXT, max_new_tokens=20, eos_token_id=None, lookahead=3)

    def loop(model: Any) -> torch.Tensor:
        ids, past, new = TEXT, None, TEXT
        for _ in range(20):
            out = model(new, past_key_values=past, use_cache=True)
            past, new = out.past_key_values, out.logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, new], 1)
        return ids

    assert torch.equal(loop(model), expected)
    assert torch.equal(loop(plain), loop(reference))


def test_batches_with_padding_go_on_with_their_mask(model: Any, reference: Any, plain: Any) -> None:
    ids = torch.cat([torch.cat([torch.zeros((1, 4), dtype=torch.int64), OTHER[:, :8]], 1), TEXT])
    mask = (torch.arange(12)[None] >= torch.tensor([[4], [0]])).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)

    def pieces(model: Any) -> torch.Tensor:
        first = model(ids[:, :7], attention_mask=mask[:, :7], position_ids=positions[:, :7], use_cache=True)
        later = model(
            ids[:, 7:],
            attention_mask=mask,
            position_ids=positions[:, 7:],
            past_key_values=first.past_key_values,
            use_cache=True,
        )
        return torch.cat([first.logits, later.logits], 1)[mask.bool()]

    ours = pieces(model)
    assert torch.equal(ours, model(ids, attention_mask=mask).logits[mask.bool()])
    assert torch.equal(ours[:8], model(OTHER[:, :8]).logits[0])
    torch.testing.assert_close(pieces(plain), pieces(reference), atol=0.02, rtol=0)  # keys and values in fp16


def test_a_mask_that_is_left_out_remembers_the_padding(model: Any) -> None:
    mask = torch.tensor([[0, 0, 1]])
    past = model(TEXT[:, :3], attention_mask=mask).past_key_values
    assert torch.equal(model(TEXT[:, 3:], past_key_values=past).logits, model(TEXT[:, 2:]).logits[:, 1:])


def test_a_wrapped_model_goes_on_too(reference: Any) -> None:
    ours = wrap(reference)
    ids, mask = torch.cat([TEXT, OTHER]), torch.tensor([[0] * 3 + [1] * 9, [1] * 12])
    expected = reference(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    past = ours(ids[:, :5], attention_mask=mask[:, :5]).past_key_values
    ours(ids[:, 5:9], past_key_values=copy.deepcopy(past))
    past.crop(-1)
    rest = ours(ids[:, 4:], attention_mask=mask, past_key_values=past).logits
    torch.testing.assert_close(rest, expected[:, 4:], atol=1e-3, rtol=0)


def test_crop_takes_back(model: Any) -> None:
    whole = model(TEXT).logits
    past = model(torch.cat([TEXT[:, :6], OTHER], 1)).past_key_values
    past.crop(-10)
    assert past.get_seq_length() == 8
    past.crop(6)
    past.crop(0)
    assert past.get_seq_length() == past.get_mask_sizes(0)[0] == 6
    assert torch.equal(model(TEXT[:, 6:], past_key_values=past).logits, whole[:, 6:])
    past.reset()
    assert torch.equal(model(TEXT, past_key_values=past).logits, whole)
    for wrong in (13, -13):
        with pytest.raises(InputError, match=f"cannot crop by {wrong}: the cache holds 12 columns"):
            past.crop(wrong)


def test_copies_and_rows_of_a_cache(model: Any) -> None:
    both = torch.cat([TEXT, OTHER])
    whole = model(both).logits
    past = model(both[:, :5]).past_key_values
    twin = copy.deepcopy(past)
    assert torch.equal(model(both[:, 5:], past_key_values=past).logits, whole[:, 5:])
    assert (past.get_seq_length(), twin.get_seq_length()) == (12, 5)
    twin.batch_repeat_interleave(2)
    assert twin.batch_size == 4
    twin.reorder_cache(torch.tensor([3, 0, 3]))
    order = [1, 0, 1]
    assert torch.equal(model(both[order][:, 5:], past_key_values=twin).logits, whole[order][:, 5:])
    twin.batch_select_indices(torch.tensor([False, True, False]))
    assert (twin.batch_size, twin.get_seq_length()) == (1, 12)


def test_the_output_is_transformers(model: Any) -> None:
    out = model(TEXT, labels=TEXT)
    assert list(out) == ["loss", "logits", CACHE]
    assert isinstance(out.past_key_values, LookaheadCache)
    assert [type(part) for part in model(TEXT, return_dict=False)] == [torch.Tensor, LookaheadCache]
    assert CACHE not in model(TEXT, use_cache=False)
    past = None
    for length in (4, 7, 12):
        mask = torch.ones((1, length), dtype=torch.int64)
        words = model.prepare_inputs_for_generation(TEXT[:, :length], past_key_values=past, attention_mask=mask)
        last = model(**words)
        past = last.past_key_values
    assert torch.equal(last.logits, out.logits[:, 7:])


def test_a_cache_has_two_names(model: Any) -> None:
    """transformers 5.24 renames ``past_key_values`` to ``cache``: each release takes and gives both."""
    whole = model(TEXT).logits[:, 5:]
    for name in ("past_key_values", "cache"):
        out = model(TEXT[:, :5])
        past = getattr(out, name)
        assert past is out[name] is out.cache is out.past_key_values
        assert model.prepare_inputs_for_generation(TEXT, **{name: past})[CACHE] is past
        assert torch.equal(model(TEXT[:, 5:], **{name: past}).logits, whole)
        again = model.generate(TEXT, max_new_tokens=2, return_dict_in_generate=True, **{name: past})
        assert again.stats.cached_tokens == 11
        assert again.cache is again[name] is past
    with pytest.raises(AttributeError, match="no attribute 'cach'"):
        _ = out.cach
    both = {"past_key_values": past, "cache": past}
    for call in (model, model.generate, model.prepare_inputs_for_generation):
        with pytest.raises(InputError, match="past_key_values and cache are both given"):
            call(TEXT, **both)


def test_hidden_states_of_padded_batches_and_of_pieces(model: Any, reference: Any, plain: Any) -> None:
    ids = torch.cat([torch.cat([torch.zeros((1, 4), dtype=torch.int64), OTHER[:, :8]], 1), TEXT])
    mask = (torch.arange(12)[None] >= torch.tensor([[4], [0]])).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    words = {"attention_mask": mask, "position_ids": positions, "output_hidden_states": True}
    expected = reference(ids, **words).hidden_states
    for one, other in zip(plain(ids, **words).hidden_states, expected, strict=True):
        assert one.shape == other.shape
        assert (one[~mask.bool()] == 0).all(), "padding"
        torch.testing.assert_close(one[mask.bool()], other[mask.bool()], atol=0.02, rtol=0)  # keys, values in fp16
    whole = model(ids, **words).hidden_states
    first = model(ids[:, :7], attention_mask=mask[:, :7], output_hidden_states=True)
    later = model(ids[:, 7:], attention_mask=mask, past_key_values=first.past_key_values, output_hidden_states=True)
    for one, *pieces in zip(whole, first.hidden_states, later.hidden_states, strict=True):
        assert torch.equal(torch.cat(pieces, 1), one)


def test_hidden_states_come_where_they_are_asked_for(folder: Path, reference: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, threads=1, progress=False)
    assert model(TEXT).hidden_states is None
    assert len(model(TEXT, use_cache=False, return_dict=False)) == 1
    model.config.output_hidden_states = True
    found = model(TEXT, use_cache=False, return_dict=False)[1]
    assert len(found) == 1 + model.config.num_hidden_layers
    assert model(TEXT, output_hidden_states=False).hidden_states is None
    model.config.tie_last_hidden_states = False
    assert not torch.equal(model(TEXT).hidden_states[-1], found[-1]), "before the final norm"
    wrapped = wrap(reference)(TEXT, output_hidden_states=True).hidden_states
    for one, other in zip(wrapped, reference(TEXT, output_hidden_states=True).hidden_states, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"past_key_values": DynamicCache()}, "past_key_values is a DynamicCache; leave it out of the first call"),
        ({"past_key_values": None, "cache": DynamicCache()}, "^cache is a DynamicCache"),
        ({"past_key_values": ((1, 2),)}, "past_key_values is a tuple"),
        ({"attention_mask": torch.ones(1, 6)}, r"after 5 columns.*attention_mask must be \(1, 11\)"),
        ({"attention_mask": torch.tensor([[0] + [1] * 10])}, "differs in the columns of past_key_values"),
        ({"attention_mask": torch.tensor([[1] * 5 + [0] + [1] * 5])}, "one run of ones"),
        ({"position_ids": torch.arange(6)[None]}, r"position_ids of row 0 are \[0, 1.*here \[5, 6"),
        ({"position_ids": torch.arange(6)}, r"position_ids has shape \(6,\); it must be \(1, 6\)"),
        ({"cache_position": torch.arange(6)}, r"cache_position is \[0.*5 to 10"),
        ({"input_ids": torch.tensor([[1], [2]])}, "hold 1 rows and input_ids 2"),
        ({"input_ids": torch.tensor([[1, 96]])}, "holds 96"),
    ],
)
def test_what_is_refused_leaves_the_cache_as_it_was(model: Any, kwargs: dict[str, Any], message: str) -> None:
    past = model(TEXT[:, :5]).past_key_values
    with pytest.raises(InputError, match=message):
        model(**{"input_ids": TEXT[:, 5:11], "past_key_values": past, **kwargs})
    assert past.get_seq_length() == 5
    right = {"position_ids": torch.arange(5, 12)[None], "cache_position": torch.arange(5, 12)}
    assert torch.equal(model(TEXT[:, 5:], past_key_values=past, **right).logits, model(TEXT).logits[:, 5:])


def test_a_forward_that_fails_half_way_leaves_the_cache_as_it_was(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    past = model(TEXT[:, :5]).past_key_values
    forward, calls = model.engine.forward, []

    def fails(batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return forward(batch)

    in_threes = partial(prefill, rows=3)
    monkeypatch.setattr("ipex_lookahead.hf.modeling.forward.prefill", in_threes)
    monkeypatch.setattr(model.engine, "forward", fails)
    with pytest.raises(KeyboardInterrupt):
        model(TEXT[:, 5:], past_key_values=past)
    assert torch.equal(model(TEXT[:, 5:], past_key_values=past).logits, model(TEXT).logits[:, 5:])


def test_the_context_counts_what_came_before(model: Any) -> None:
    past = model(TEXT.repeat(1, 21)).past_key_values  # 252 of 256
    with pytest.raises(ContextLengthError, match="264 positions; the model has 256"):
        model(TEXT, past_key_values=past)


def test_another_models_cache_is_refused(model: Any, plain: Any) -> None:
    with pytest.raises(InputError, match="come from another model"):
        model(TEXT, past_key_values=plain(TEXT).past_key_values)


def test_a_cache_shows_no_tensors(model: Any) -> None:
    past = model(TEXT).past_key_values
    assert past
    assert "rows=1, columns=12" in repr(past)
    for look in (lambda: past[0], lambda: list(past), past.to_legacy_cache, lambda: past.update(1, 2, 0)):
        with pytest.raises(InputError, match="the engine owns keys and values"):
            look()
