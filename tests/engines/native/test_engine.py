"""The native engine: right (against transformers in float32), and exact (by bytes) however its rows are served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.api import FINAL_NORM, Batch, OutputRequest, StepOutput
from ipex_lookahead.engines.native.core import available_isas, chosen_isa
from ipex_lookahead.errors import EngineError, InputError, ModelFormatError
from ipex_lookahead.formats import FORMATS, dequantize
from tests.support.native import chain, ids_of, load, one_by_one, run
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

ISAS = available_isas()


@pytest.mark.parametrize("low_bit", [name for name in FORMATS if name != "fp32"])
@pytest.mark.rotating(12)
def test_low_bit_weights_agree_with_transformers_on_the_same_weights(tmp_path: Path, low_bit: str) -> None:
    """int8 activations cost a little; the logits stay within two hundredths of their spread on average."""
    import torch
    from transformers import LlamaForCausalLM

    path = write_tiny_llama(tmp_path, seed=12, hidden=128, intermediate=256)
    engine = load(path, low_bit)
    reference = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    state = {name: torch.from_numpy(dequantize(w).copy()) for name, w in engine.weights()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    reference.load_state_dict(state)
    tokens = ids_of(engine, 100)
    with torch.no_grad():
        expected = reference(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()
    got = run(engine, engine.new_cache(), tokens)
    assert np.abs(got - expected).mean() < 0.02 * expected.std()


def test_an_int8_cache_is_half_as_large_and_nearly_as_good(folder: Path) -> None:
    engines = [load(folder, kv_cache=kv) for kv in ("fp16", "int8")]
    halves, ints = (run(e, e.new_cache(), ids_of(e, 200)) for e in engines)
    assert 0 < np.abs(halves - ints).mean() < 0.02 * halves.std()
    sizes = [e.describe()["kv_bytes_per_token"] for e in engines]
    assert sizes[1] < 0.6 * sizes[0]
    with pytest.raises(InputError, match="kv_cache is 'int3'.*int8"):
        load(folder, kv_cache="int3")


def test_only_the_wanted_rows_come_back(folder: Path) -> None:
    engine = load(folder)
    tokens = ids_of(engine, 20)
    every = run(engine, engine.new_cache(), tokens)
    want = np.array([0, 7, 19], dtype=np.int32)
    some = engine.forward(Batch([engine.new_cache()], [20], tokens, chain(20), OutputRequest(want, logits=True)))
    assert some.logits is not None
    assert some.logits.tobytes() == every[want].tobytes()
    none = engine.forward(
        Batch([engine.new_cache()], [20], tokens, chain(20), OutputRequest(np.zeros(0, dtype=np.int32)))
    )
    assert none.argmax.shape == (0,)
    assert none.logits is None


def test_only_the_wanted_hidden_states_come_back(folder: Path) -> None:
    """Whatever rows get logits; in any order of layers; and the argmax is that of a forward without them."""
    engine = load(folder, "sym_int4", threads=2)
    tokens, layers = ids_of(engine, 20), len(engine.spec.layers)

    def states(wants: OutputRequest) -> StepOutput:
        return engine.forward(Batch([engine.new_cache()], [20], tokens, chain(20), wants))

    every = states(OutputRequest(hidden=tuple(range(-1, layers + 1)))).hidden
    assert every is not None
    assert [one.shape for one in every.values()] == [(20, engine.spec.hidden)] * (layers + 2)
    assert not (every[layers] == every[FINAL_NORM]).all()
    none, rows = np.zeros(0, np.int32), np.array([0, 7, 19], np.int32)
    some = states(OutputRequest(none, hidden=(1, FINAL_NORM), hidden_rows=rows))
    assert some.argmax.shape == (0,)
    assert some.hidden is not None
    assert list(some.hidden) == [FINAL_NORM, 1]
    for layer, found in some.hidden.items():
        assert found.tobytes() == every[layer][rows].tobytes()
    nothing = states(OutputRequest(hidden=(0,), hidden_rows=none)).hidden
    assert nothing is not None
    assert nothing[0].shape == (0, engine.spec.hidden)
    last = np.array([19], np.int32)
    beside = states(OutputRequest(last, hidden=(2,), hidden_rows=rows[:2]))
    assert beside.argmax.tolist() == states(OutputRequest(last)).argmax.tolist()
    for wants in (
        OutputRequest(hidden=(layers + 1,)),
        OutputRequest(hidden=(-2,)),
        OutputRequest(hidden=(1, 1)),
        OutputRequest(hidden=(1,), hidden_rows=np.array([20], np.int32)),
        OutputRequest(hidden=(1,), hidden_rows=np.array([3, 2], np.int32)),
        OutputRequest(hidden=(1,), hidden_rows=np.arange(21, dtype=np.int32)),
        OutputRequest(hidden=(*range(layers + 1), *range(layers + 1))),
    ):
        with pytest.raises(InputError):
            states(wants)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.rotating(8)
def test_the_top_ids_are_those_of_a_stable_sort(
    folder: Path, isa: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", isa)
    engine = load(folder, "sym_int4", threads)
    tokens = ids_of(engine, 12)
    for top in (1, 2, 8, 64):
        out = engine.forward(Batch([engine.new_cache()], [12], tokens, chain(12), OutputRequest(logits=True, top=top)))
        assert out.logits is not None
        assert out.top is not None
        assert (out.top == np.argsort(-out.logits, axis=1, kind="stable")[:, :top]).all()
    with pytest.raises(InputError, match="top"):
        engine.forward(Batch([engine.new_cache()], [12], tokens, chain(12), OutputRequest(logits=True, top=65)))


def test_equal_logits_go_by_the_lowest_id(tmp_path: Path) -> None:
    """Every row of the head is the same, so every logit is: the top is 0, 1, 2, ... on any number of threads."""
    import safetensors.numpy

    path = write_tiny_llama(tmp_path, tie=False, vocab=100)
    tensors = dict(safetensors.numpy.load_file(path / "model.safetensors"))
    tensors["lm_head.weight"][:] = tensors["lm_head.weight"][:1]
    safetensors.numpy.save_file(tensors, path / "model.safetensors")
    for threads in (1, 2, 3):
        engine = load(path, threads=threads)
        out = engine.forward(Batch([engine.new_cache()], [2], ids_of(engine, 2), chain(2), OutputRequest(top=5)))
        assert out.top is not None
        assert out.top.tolist() == [[0, 1, 2, 3, 4]] * 2
        assert out.argmax.tolist() == [0, 0]


def test_weights_come_back_as_they_went_in(folder: Path, tmp_path: Path) -> None:
    """Prepacking loses nothing: the exported tensors are the file's own bits."""
    for path in (
        folder,
        write_tiny_gguf(tmp_path / "m.gguf", quant="Q4_1", seed=4),
        write_tiny_gguf(tmp_path / "8.gguf", quant="Q8_0"),
        *(
            write_tiny_gguf(tmp_path / f"{k}.gguf", quant=k, hidden=256, seed=7)
            for k in ("Q3_K", "Q4_K", "Q6_K", "MXFP4")
        ),
    ):
        checkpoint = open_checkpoint(path)
        engine = load(path)
        for name, weight in engine.weights():
            original = checkpoint.read(name)
            if len(original.shape) == 1:
                assert (dequantize(original) == weight.codes).all()
                continue
            assert (original.format, original.shape) == (weight.format, weight.shape)
            assert original.codes.tobytes() == weight.codes.tobytes()
            for a, b in ((original.scales, weight.scales), (original.minimums, weight.minimums)):
                assert (a is None) == (b is None)
                assert a is None or a.tobytes() == b.tobytes()


def test_mixed_precision_and_modules_to_not_convert(folder: Path) -> None:
    engine = load(folder, "sym_int4", mixed_precision=True, not_converted=("down_proj",))
    formats = {name: w.format for name, w in engine.weights() if len(w.shape) == 2}
    assert formats["model.embed_tokens.weight"] == "sym_int8"
    assert formats["model.layers.0.mlp.down_proj.weight"] == "fp32"
    assert formats["model.layers.1.self_attn.q_proj.weight"] == "sym_int4"


def test_a_forced_isa_is_used_or_refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    from ipex_lookahead import _native

    monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", "scalar")
    assert chosen_isa() == "scalar"
    monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", "mmx")
    with pytest.raises(EngineError, match="mmx.*scalar"):
        load(folder)
    for absent in set(_native.known_isas()) - set(ISAS):
        monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", absent)
        with pytest.raises(EngineError, match="not available"):
            load(folder)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.input_layernorm.weight"])
def test_norms_whose_products_would_overflow_are_named_at_load(tmp_path: Path, name: str) -> None:
    import safetensors.numpy

    file = write_tiny_llama(tmp_path) / "model.safetensors"
    tensors = dict(safetensors.numpy.load_file(file))
    for sign in (1, -1):
        tensors[name][5] = sign * 3e38
        safetensors.numpy.save_file(tensors, file)
        with pytest.raises(ModelFormatError, match="value 5 is -?3e.38; values of vectors are at most 65504") as caught:
            load(tmp_path)
        assert caught.value.field == name


def test_every_tensor_is_looked_for_before_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.numpy

    from ipex_lookahead.checkpoints import SafetensorsCheckpoint

    file = write_tiny_llama(tmp_path) / "model.safetensors"
    tensors = dict(safetensors.numpy.load_file(file))
    del tensors["model.norm.weight"]
    safetensors.numpy.save_file(tensors, file)
    monkeypatch.setattr(SafetensorsCheckpoint, "read", lambda self, name: pytest.fail(f"{name} was read"))
    with pytest.raises(ModelFormatError, match=r"model\.norm\.weight: no tensor has this name"):
        load(tmp_path)


def test_a_second_thread_of_the_caller_waits_its_turn(folder: Path) -> None:
    """Two generations at once on one engine: steps are serialised, results are those of each alone."""
    from concurrent.futures import ThreadPoolExecutor

    engine = load(folder, "sym_int4", threads=2)
    prompts = [ids_of(engine, 30, seed=s) for s in range(4)]
    expected = [one_by_one(engine, p).tobytes() for p in prompts]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda p: one_by_one(engine, p).tobytes(), prompts))
    assert got == expected


def test_a_forward_that_is_timed_is_like_any_other(folder: Path) -> None:
    engine = load(folder)
    cache = engine.new_cache(blank=200)
    batch = Batch([cache], [3], np.array([3, 4, 5], np.int32), chain(3))
    expected = engine.forward(batch).argmax
    assert engine.forward(batch).timings is None
    batch.wants = OutputRequest(timings=True)
    for _ in range(2):  # each by itself
        timed = engine.forward(batch)
        np.testing.assert_array_equal(timed.argmax, expected)
        counts = {phase.name: phase.count for phase in timed.timings or ()}
        assert counts["attention"] == len(engine.spec.layers)
        assert counts["embedding"] == counts["head"] == 1
        assert all(0.0 <= phase.busy <= phase.seconds < 5.0 for phase in timed.timings or ())
