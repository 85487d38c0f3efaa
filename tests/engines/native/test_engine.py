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
LOW_BITS = [None, "sym_int4", "sym_int8", "asym_int4", "q4_k", "q6_k", "q2_k", "mxfp4", "bf16", "fp16"]


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"tie": False, "attention_bias": True, "mlp_bias": True},
        {"head_dim": 8, "heads": 8, "kv_heads": 4, "intermediate": 172},
        {"head_dim": 40, "heads": 2, "kv_heads": 2, "hidden": 72},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ],
    ids=lambda s: "-".join(s) or "default",
)
def test_float_weights_agree_with_transformers(tmp_path: Path, shape: dict[str, object]) -> None:
    import torch
    from transformers import LlamaForCausalLM

    path = write_tiny_llama(tmp_path, seed=11, **shape)  # type: ignore[arg-type]
    engine = load(path)
    assert engine.describe()["low_bit"] == ""
    reference = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokens = ids_of(engine, 120)
    with torch.no_grad():
        expected = reference(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()
    got = run(engine, engine.new_cache(), tokens)
    # Keys and values are float16 here, so each logit may differ by a part in about a thousand of their spread.
    assert np.abs(got - expected).max() < 4e-3 * expected.std()


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


BOUNDS = {"Q4_0": 0.35, "Q4_1": 0.35, "Q8_0": 0.03, "Q4_K": 0.35, "Q5_K": 0.2, "Q6_K": 0.1, "Q5_0": 0.2, "IQ4_NL": 0.35,
          "MXFP4": 0.6, "F16": 2e-3, "BF16": 0.02, "F32": 1e-6}  # fmt: skip


@pytest.mark.parametrize("quant", BOUNDS)
def test_a_gguf_file_runs_as_the_folder_with_the_same_weights(tmp_path: Path, quant: str) -> None:
    """The file's permuted rows come back in order: logits as from the float folder, up to the format's own error."""
    sizes = {"hidden": 256, "intermediate": 256} if quant.endswith("_K") else {}
    file = write_tiny_gguf(tmp_path / "m.gguf", quant=quant, seed=4, **sizes)
    plain = load(write_tiny_llama(tmp_path / "folder", seed=4, **sizes))
    engine = load(file)
    tokens = ids_of(engine, 64)
    got, expected = run(engine, engine.new_cache(), tokens), run(plain, plain.new_cache(), tokens)
    error = np.abs(got - expected).mean() / expected.std()
    assert error < BOUNDS[quant]


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("low_bit", LOW_BITS)
@pytest.mark.rotating(10)
def test_every_isa_and_thread_count_gives_the_same_logits(
    folder: Path, low_bit: str | None, kv_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {}
    for isa in ISAS:
        monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", isa)
        for threads in (1, 2, 3, 5):
            engine = load(folder, low_bit, threads, kv_cache)
            assert engine.describe()["isa"] == isa
            results[isa, threads] = run(engine, engine.new_cache(), ids_of(engine, 40)).tobytes()
    assert len(set(results.values())) == 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("low_bit", "kv_cache"), [(None, "fp16"), ("sym_int4", "fp16"), ("sym_int4", "int8"), ("bf16", "fp16")]
)
@pytest.mark.rotating(10)
def test_a_prompt_gives_the_same_logits_whole_in_chunks_and_token_by_token(
    folder: Path, isa: str, low_bit: str | None, kv_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the edges of a page (64) and of a block of positions (256)."""
    monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", isa)
    engine = load(folder, low_bit, threads=2, kv_cache=kv_cache)
    tokens = ids_of(engine, 300 if isa != "scalar" else 270)
    whole = run(engine, engine.new_cache(), tokens)
    for sizes in ([100, 1, 7, 150, 500], [16] * 40, [17] * 40, [256, 44]):
        cache, rows, at = engine.new_cache(), [], 0
        for size in sizes:
            chunk = tokens[at : at + size]
            if not len(chunk):
                break
            rows.append(run(engine, cache, chunk))
            cache.keep(range(len(chunk)))
            at += len(chunk)
        assert np.concatenate(rows).tobytes() == whole.tobytes()
    assert one_by_one(engine, tokens).tobytes() == whole.tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("prefix", [0, 5, 60, 250, 256, 300])
@pytest.mark.rotating(20)
def test_a_row_of_a_tree_equals_its_path_decoded_alone(
    folder: Path, isa: str, prefix: int, kv_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", isa)
    engine = load(folder, "sym_int4", threads=2, kv_cache=kv_cache)
    prompt = ids_of(engine, prefix, seed=1)
    base = engine.new_cache()
    if prefix:
        run(engine, base, prompt)
        base.keep(range(prefix))
    rng = np.random.default_rng(prefix)
    for rows in (2, 7, 16, 17, 40):
        tokens = ids_of(engine, rows, seed=rows)
        parents = np.array([rng.integers(-1, r) if r else -1 for r in range(rows)], dtype=np.int32)
        got = run(engine, base.fork(), tokens, parents)
        for row in range(rows):
            path = [row]
            while parents[path[0]] >= 0:
                path.insert(0, int(parents[path[0]]))
            alone = base.fork()
            for at in path:
                expected = run(engine, alone, tokens[at][None])
                alone.keep([0])
            assert got[row].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_keeping_a_path_of_a_tree_leaves_the_cache_that_decoding_it_would(folder: Path, kv_cache: str) -> None:
    engine = load(folder, "sym_int4", threads=2, kv_cache=kv_cache)
    prompt, tokens = ids_of(engine, 61, seed=1), ids_of(engine, 8, seed=2)
    parents = np.array([-1, 0, 0, 2, 2, 4, 5, 3], dtype=np.int32)
    path = [0, 2, 4, 5, 6]
    tree = engine.new_cache()
    run(engine, tree, prompt)
    tree.keep(range(61))
    run(engine, tree, tokens, parents)
    tree.keep(path)
    assert tree.length == 66
    follow = ids_of(engine, 5, seed=3)
    straight = one_by_one(engine, np.concatenate([prompt, tokens[path], follow]))
    assert run(engine, tree, follow).tobytes() == straight[66:].tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_sequences_of_a_batch_do_not_see_each_other(folder: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", isa)
    engine = load(folder, "sym_int4", threads=2)
    prompts = [ids_of(engine, n, seed=n) for n in (3, 64, 1, 290, 17)]
    alone = [run(engine, engine.new_cache(), p) for p in prompts]
    caches = [engine.new_cache() for _ in prompts]
    batch = Batch(
        caches,
        [len(p) for p in prompts],
        np.concatenate(prompts),
        np.concatenate([chain(len(p)) for p in prompts]),
        OutputRequest(logits=True),
    )
    together = engine.forward(batch)
    assert together.logits is not None
    assert together.logits.tobytes() == np.concatenate(alone).tobytes()
    for cache, prompt in zip(caches, prompts, strict=True):
        cache.keep(range(len(prompt)))
    trees = [np.array([-1, 0, 0], dtype=np.int32), chain(2), chain(1), np.array([-1, -1], dtype=np.int32), chain(4)]
    tokens = [ids_of(engine, len(t), seed=40 + i) for i, t in enumerate(trees)]
    apart = [run(engine, c.fork(), t, p) for c, t, p in zip(caches, tokens, trees, strict=True)]
    step = engine.forward(
        Batch(
            caches, [len(t) for t in trees], np.concatenate(tokens), np.concatenate(trees), OutputRequest(logits=True)
        )
    )
    assert step.logits is not None
    assert step.logits.tobytes() == np.concatenate(apart).tobytes()


def test_an_int8_cache_is_half_as_large_and_nearly_as_good(folder: Path) -> None:
    engines = [load(folder, kv_cache=kv) for kv in ("fp16", "int8")]
    halves, ints = (run(e, e.new_cache(), ids_of(e, 200)) for e in engines)
    assert 0 < np.abs(halves - ints).mean() < 0.02 * halves.std()
    sizes = [e.describe()["kv_bytes_per_token"] for e in engines]
    assert sizes[1] < 0.6 * sizes[0]
    with pytest.raises(InputError, match="kv_cache is 'int3'.*int8"):
        load(folder, kv_cache="int3")


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_whole_generations_are_the_same_on_every_isa(
    folder: Path, kv_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from ipex_lookahead import AutoModelForCausalLM

    prompt, results = torch.tensor([[5, 80, 33, 9]]), set()
    sampled = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "seed": 3}
    for isa in ISAS:
        monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", isa)
        for threads in (1, 2, 5):
            model = AutoModelForCausalLM.from_pretrained(
                folder, load_in_low_bit="sym_int4", threads=threads, kv_cache=kv_cache, progress=False
            )
            for lookahead in (None, 5):
                greedy = model.generate(prompt, max_new_tokens=60, do_sample=False, lookahead=lookahead)
                drawn = model.generate(prompt, max_new_tokens=60, lookahead=lookahead, **sampled)
                results.add((tuple(greedy[0].tolist()), tuple(drawn[0].tolist())))
    assert len(results) == 1


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


def test_a_forked_process_computes_with_threads_of_its_own(folder: Path) -> None:
    import os

    engine = load(folder, "sym_int4", threads=2)
    expected = run(engine, engine.new_cache(), ids_of(engine, 9)).tobytes()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        got = run(engine, engine.new_cache(), ids_of(engine, 9)).tobytes()
        os.write(write, b"same" if got == expected else b"diff")
        os._exit(0)
    os.close(write)
    assert os.read(read, 4) == b"same"
    assert os.waitpid(child, 0)[1] == 0


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
