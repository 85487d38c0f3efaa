"""generate and chat on tiny real models: no torch, no transformers, and the tokens that ``model.generate`` gives."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from ipex_lookahead.cli.main import run
from ipex_lookahead.hf.auto import AutoModelForCausalLM
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.text_model import TextModel
from tests.support.chat_tokenizer import CHAT_TEMPLATE, SIZE, chat_tokenizer, write_chat_llama
from tests.support.tiny import write_tiny_gguf

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_chat_llama(tmp_path_factory.mktemp("models") / "tiny", context=512)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> Path:
    """The same sizes as a GGUF file with its tokenizer inside."""
    plain = write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "plain.gguf", vocab=SIZE + 1, context=512)
    vocabulary = sorted(chat_tokenizer().get_vocab().items(), key=lambda entry: entry[1])
    reader, file = gguf.GGUFReader(plain), plain.with_name("tiny.gguf")
    writer = gguf.GGUFWriter(file, "llama")
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(name, field.contents(), field.types[0])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*(token for token, _ in vocabulary), "he"])
    writer.add_token_types([3] * 4 + [1] * 257)
    writer.add_token_merges(["h e"])
    writer.add_chat_template(CHAT_TEMPLATE)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.programs
def test_neither_torch_nor_transformers_is_imported(folder, gguf_file):
    """Importing them takes longer than all the rest of a short answer."""
    options = ["-n", "4", "--temperature", "1", "--presence-penalty", "1", "--model"]
    generate = [["generate", "--json", "--stop", "zzz", "Hi", *options, str(model)] for model in (folder, gguf_file)]
    code = (
        "import sys; from ipex_lookahead.cli.main import run\n"
        f"assert [run(words) for words in {[*generate, ['chat', *options, str(folder)]]!r}] == [0, 0, 0]\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], input="hello\n", capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.fixture(scope="module")
def both(folder) -> tuple[TextModel, Any]:
    return load_text_model(str(folder), threads=1), AutoModelForCausalLM.from_pretrained(folder, threads=1)


SAMPLED = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": 7}


def test_penalties_and_stop_texts_beside_such_an_option(folder, tmp_path):
    ours = load_text_model(str(with_generation_config(folder, tmp_path, {"begin_suppress_tokens": [300]})), threads=1)
    plain = load_text_model(str(folder), threads=1)
    ids = ours.tokenizer.encode("hello hello hello")
    params = SamplingParams(30, presence_penalty=2.0, frequency_penalty=1.0)
    assert ours.generate(ids, params) == plain.generate(ids, params)
    stop = ours.tokenizer.decode(plain.generate(ids, SamplingParams(30))[10:12])
    params = SamplingParams(30, stop=(stop,))
    assert ours.generate(ids, params) == plain.generate(ids, params)
    assert ours.stats.finish_reasons == plain.stats.finish_reasons


def test_tokens_that_the_model_never_says(folder, tmp_path, monkeypatch):
    """Of its generation config; without transformers' processors, and greedy or sampled as with them."""
    plain = load_text_model(str(folder), threads=1)
    ids = plain.tokenizer.encode("hello hello hello")
    said = sorted(set(plain.generate(ids, SamplingParams(12))))[:2]
    made = with_generation_config(folder, tmp_path, {"suppress_tokens": [*said, 10**6]})
    theirs = AutoModelForCausalLM.from_pretrained(made, threads=1)
    monkeypatch.setattr("ipex_lookahead.runtime.text_model.need_torch", lambda what: pytest.fail(what))
    ours = load_text_model(str(made), threads=1)
    for params, options in ((SamplingParams(12), {}), (SamplingParams(12, **SAMPLED), {"do_sample": True, **SAMPLED})):
        answer = ours.generate(ids, params)
        assert not {*answer} & {*said}
        expected = theirs.generate(torch.tensor([ids]), max_new_tokens=12, **options)[0, len(ids) :]
        assert answer == expected.tolist()


def test_an_option_that_nobody_has_is_refused_by_its_file(folder, tmp_path, capsys):
    made = with_generation_config(folder, tmp_path, {"num_beams": 4})
    assert run(["generate", "-n", "4", "--model", str(made), "Hi"]) == 1
    out, err = capsys.readouterr()
    assert "num_beams=4 is not supported" in err
    assert "change or remove it in generation_config.json" in err
    assert out == ""


def with_generation_config(folder: Path, target: Path, own: dict[str, Any]) -> Path:
    made = Path(shutil.copytree(folder, target / "own"))
    (made / "generation_config.json").write_text(json.dumps(own))
    return made


def test_costs_are_not_measured_for_one_token(folder, monkeypatch):
    from ipex_lookahead.controller import cost

    monkeypatch.setattr(cost, "calibrate", lambda *a, **k: pytest.fail("one token needs no draft"))
    assert run(["generate", "-q", "-n", "1", "--model", str(folder), "Hi"]) == 0


@pytest.mark.parametrize("through", ["text", "transformers"])
def test_costs_are_measured_before_the_clock_runs_and_the_answer_begins(through, folder, tmp_path, monkeypatch):
    from ipex_lookahead.controller import calibration, cost
    from ipex_lookahead.decoding import sequence_group

    monkeypatch.setattr(sequence_group, "perf_counter", lambda: time.perf_counter() + 1000 * happened.count("measured"))
    happened: list[str] = []

    def measure(engine):
        happened.append("measured")
        return calibration.calibrate(engine)

    monkeypatch.setattr(cost, "calibrate", measure)
    monkeypatch.setenv("IPEX_LOOKAHEAD_COSTS", str(tmp_path))
    if through == "text":
        model = load_text_model(str(folder), threads=1, note=lambda said: happened.append("said"))
        told = {"on_prefill": lambda done, total: happened.append("prompt")}
        model.generate(
            [5] * 20, SamplingParams(8), lookahead="auto", on_token=lambda token: happened.append("token"), **told
        )
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, threads=1, progress=False)
        monkeypatch.setattr(model.costs, "_progress", lambda said: happened.append("said"))
        model.generate(torch.full((1, 20), 5), max_new_tokens=8, lookahead="auto")
    assert happened[:2] == ["said", "measured"]
    assert happened.count("measured") == 1
    stats = model.stats
    assert max(stats.prefill_seconds, stats.first_token_seconds, stats.decode_seconds) < 1000


# ---- keys and values from turn to turn -------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("lookahead", [None, 3, "auto", "jacobi"])
@pytest.mark.parametrize("params", [{}, {**SAMPLED, "repetition_penalty": 1.2}], ids=["greedy", "sampled"])
def test_what_is_kept_never_changes_an_answer(params, lookahead, kv_cache, folder):
    model = load_text_model(str(folder), threads=1, kv_cache=kv_cache)
    fresh = load_text_model(str(folder), threads=1, kv_cache=kv_cache)
    cached = []

    def generate(ids: list[int]) -> list[int]:
        found = model.generate(ids, SamplingParams(24, **params), lookahead=lookahead, keep=True)
        cached.append(model.stats.cached_tokens)
        assert found == fresh.generate(ids, SamplingParams(24, **params), lookahead=None)
        assert fresh.stats.cached_tokens == 0
        assert model.stats.prompt_tokens == len(ids)
        return found

    encode = model.tokenizer.encode
    first = encode("hello hello hello")
    second = [*first, *generate(first), *encode(" and then")]
    generate(second)
    generate(second)
    generate([*second[: len(first) + 5], 9, *encode("another way")])
    generate(encode("something else"))
    assert cached[0] == cached[4] == 0
    answered = len(second) - len(encode(" and then"))
    assert cached[1] == answered - 1, "the answer's last token was no row yet"
    assert cached[2] == len(second) - 1, "one row is run, for what follows it"
    assert cached[3] == len(first) + 5


def test_nothing_is_kept_unasked(both):
    model, _ = both
    for _ in range(2):
        model.generate(model.tokenizer.encode("hello hello"), SamplingParams(4))
        assert model.stats.cached_tokens == 0


def test_an_answer_that_was_cancelled_is_kept_as_far_as_it_came(folder):
    model, fresh = (load_text_model(str(folder), threads=1) for _ in range(2))
    prompt = model.tokenizer.encode("hello hello hello")
    seen: list[int] = []
    found = model.generate(
        prompt, SamplingParams(40), lookahead=3, keep=True, on_token=seen.append, cancelled=lambda: len(seen) >= 10
    )
    assert found == seen
    assert 10 <= len(found) < 40
    assert model.stats.finish_reasons == ["cancelled"]
    following = [*prompt, *found, *model.tokenizer.encode(" go on")]
    assert model.generate(following, SamplingParams(20), keep=True) == fresh.generate(following, SamplingParams(20))
    assert model.stats.cached_tokens == len(prompt) + len(found) - 1


def test_a_prompt_that_was_cancelled_goes_on_where_it_stopped(tmp_path):
    made = write_chat_llama(tmp_path / "tiny", context=2048)
    model, fresh = (load_text_model(str(made), threads=1) for _ in range(2))
    prompt = [5, 6, 7, 8, 9] * 300
    seen: list[tuple[int, int]] = []
    told = {"on_prefill": lambda done, total: seen.append((done, total)), "keep": True}
    assert model.generate(prompt, SamplingParams(4), cancelled=lambda: True, **told) == []
    assert model.stats.finish_reasons == ["cancelled"]
    assert model.generate(prompt, SamplingParams(4), **told) == fresh.generate(prompt, SamplingParams(4))
    assert seen == [(0, 1500), (512, 1500), (512, 1500), (1024, 1500), (1500, 1500)]


def test_an_answer_that_an_exception_ended_leaves_nothing(folder):
    """Neither its text nor the memory that it had; earlier texts stay in the prefix cache."""
    model = load_text_model(str(folder), threads=1)
    prompt = model.tokenizer.encode("hello hello hello")
    whole = model.generate(prompt, SamplingParams(20), keep=True)
    used = model._memory.used

    def fail(token: int) -> None:
        raise KeyboardInterrupt

    for ids in (prompt, model.tokenizer.encode("another text")):
        with pytest.raises(KeyboardInterrupt):
            model.generate(ids, SamplingParams(20), keep=True, on_token=fail)
        assert model._memory.used == used
    abandoned = model.stream(prompt, SamplingParams(20), keep=True)
    next(abandoned)
    abandoned.close()
    assert model._memory.available == model._memory.pages
    assert model.generate(prompt, SamplingParams(20), keep=True) == whole
    assert model.stats.cached_tokens == len(prompt) - 1


def test_an_engine_that_rounds_by_the_number_of_rows_keeps_nothing(folder):
    model = load_text_model(str(folder), engine="torch", threads=1)
    for _ in range(2):
        model.generate(model.tokenizer.encode("hello hello"), SamplingParams(4), keep=True)
        assert model.stats.cached_tokens == 0


def test_chat_reads_a_conversation_once(folder, monkeypatch, capsys):
    lines = "".join(f"{line}\n" for line in ("hello", "and then", "/stats", "/undo", "or else")).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert run(["chat", "-n", "8", "--model", str(folder)]) == 0
    said = re.findall(r"prompt (\d+)(?: \((\d+) cached\))?", capsys.readouterr().err)
    first, second, again, third = ((int(read), int(kept or 0)) for read, kept in said)
    assert first[1] == 0
    assert second == again
    assert first[0] <= second[1] < second[0]
    assert third[1] > first[0], "as far as the first turn and its answer"


@pytest.mark.parametrize("lookahead", ["auto", "3"])
def test_chat_marks_what_came_for_free(lookahead, folder, monkeypatch, capsys):
    """Step by step, the very tokens that ``generate`` marks when all is over."""
    asked = ["--lookahead", lookahead, "--no-adaptive", "-n", "60", "--model", str(folder)]
    assert run(["generate", "hello hello hello", "--show-accepted", *asked]) == 0
    whole = capsys.readouterr().out
    assert "[" in whole
    shown = []
    for option in (["--show-accepted"], []):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello hello hello\n")))
        assert run(["chat", *option, *asked]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0].replace("][", "") == whole.replace("][", "")
    assert shown[0].replace("[", "").replace("]", "") == shown[1].replace("[", "").replace("]", "")
