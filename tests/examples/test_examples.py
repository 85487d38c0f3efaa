"""Every example runs on a tiny model, in this process: each program of its own would import torch for seconds."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipex_lookahead.cli.main import run as command
from ipex_lookahead.hf.model import LookaheadModelForCausalLM
from ipex_lookahead.hub.recommended import recommended_models
from tests.support.chat_tokenizer import write_chat_llama

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made = write_chat_llama(tmp_path_factory.mktemp("models") / "tiny", context=4096)
    return str(made)


def run(name: str, *arguments: str) -> SimpleNamespace:
    """Run an example as ``python examples/NAME ARGUMENTS`` does."""
    out, err, code = io.StringIO(), io.StringIO(), None
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", [name, *arguments])
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as end:
            code = end.code
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def test_lookahead_compares(model):
    done = run("lookahead.py", "--repo-id-or-model-path", model, "--n-predict", "24", "--n-lookahead-tokens", "3")
    assert done.returncode == 0, done.stderr
    counts = re.findall(r"^Tokens generated (\d+)$", done.stdout, re.MULTILINE)
    assert len(counts) == 2
    assert counts[0] == counts[1]
    assert len(re.findall(r"^E2E Generation time \d+\.\d{4}s$", done.stdout, re.MULTILINE)) == 2
    assert len(re.findall(r"^First token latency \d+\.\d{4}s$", done.stdout, re.MULTILINE)) == 2
    assert re.search(r"with lookahead .*\byes", done.stdout)


def test_lookahead_with_every_option(model):
    arguments = ["--prompt", "ab ab ab", "--n-predict", "8", "--low-bit", "sym_int4", "--threads", "1"]
    done = run("lookahead.py", "--repo-id-or-model-path", model, *arguments)
    assert done.returncode == 0, done.stderr
    assert "sym_int4" in done.stdout
    assert "· 1 thread ·" in done.stdout


def functions_in(answer: str) -> dict[str, Any]:
    """What the first block of Python in an answer defines."""
    defined: dict[str, Any] = {}
    exec(answer.split("```python\n")[1].split("```")[0], {"__builtins__": {}}, defined)  # arithmetic without names
    return defined


def are_right(functions: dict[str, Any]) -> bool:
    """Whether they are sum, difference, product and quotient, in that order."""
    return [function(6, 3) for function in functions.values()] == [9, 3, 18, 2]


def test_the_demo_answers_rightly_and_ends_with_a_model_to_try():
    """As ``make demo`` runs it, with the embedded model: a right answer, that ends by itself, twice the same."""
    done = run("lookahead.py")
    assert done.returncode == 0, done.stderr
    plain, ahead = done.stdout.split("--- with lookahead")
    assert are_right(functions_in(plain))
    assert are_right(functions_in(ahead))
    assert int(re.search(r"Tokens generated (\d+)", plain)[1]) < 192
    assert re.search(r"with lookahead .*\byes", done.stdout)
    _, _, suggested = done.stdout.partition("\nLarger models for this machine:\n")
    names = re.findall(r"^  ipex-lookahead run (\S+)  \(\d+\.\d GB, about \d+ tok/s\)$", suggested, re.M)
    assert names
    assert {*names} <= recommended_models().keys()


FIRST_PROMPTS = {
    re.search(r'ipex-lookahead generate "([^"]+)"', (ROOT / page).read_text(encoding="utf-8"))[1]
    for page in ("docs/start.md", "docs/tutorial.md")
}


@pytest.mark.parametrize("prompt", sorted(FIRST_PROMPTS))
def test_the_first_prompt_is_answered_rightly_and_drafted(prompt, capsys, monkeypatch):
    """As the first pages have it, with the model's own sampling; a third of the answer is drafted."""
    monkeypatch.setattr(sys, "stdin", None)  # nothing is piped in
    assert command(["generate", "--json", "--no-adaptive", prompt]) == 0
    found = json.loads(capsys.readouterr().out)
    assert are_right(functions_in(found["text"]))
    assert (found["finish_reason"], found["repeats_itself"]) == ("stop", False)
    assert found["drafted_share"] > 0.3


def test_lookahead_fails_where_outputs_differ(model, monkeypatch):
    """The comparison is real: with a model that answers otherwise under lookahead, the example ends with code 1."""
    right = LookaheadModelForCausalLM.generate

    def wrong(self, ids, *, lookahead=0, **options):
        out = right(self, ids, lookahead=lookahead, **options)
        out[0, -1] += lookahead
        return out

    monkeypatch.setattr(LookaheadModelForCausalLM, "generate", wrong)
    done = run("lookahead.py", "--repo-id-or-model-path", model, "--n-predict", "8")
    assert done.returncode == 1
    assert "the two outputs differ" in done.stderr


def test_errors_are_printed_as_the_command_prints_them():
    options = {
        "batch.py": ["--model"],
        "compare_formats.py": ["--model"],
        "custom_proposer.py": ["--model"],
        "generate.py": ["--model"],
        "jacobi_lookahead.py": ["--model"],
        "speculative.py": ["--model"],
        "chat.py": ["hello", "--model"],
        "stream.py": ["--model"],
        "pipeline.py": ["--model"],
        "lookahead.py": ["--repo-id-or-model-path"],
        "migrate_from_ipex_llm.py": ["--repo-id-or-model-path"],
        "optimize_model.py": ["--model"],
        "plot_lookahead.py": ["--output", "never-made.svg", "--repo-id-or-model-path"],
        "save_and_load_low_bit.py": ["--out", "never-made", "--model"],
    }
    without_a_model = {"openai_client.py", "ray_serve.py"}
    of_other_libraries = {"langchain_embeddings.py", "llama_index_embeddings.py"}  # see test_embeddings.py
    assert set(options) | without_a_model | of_other_libraries == {file.name for file in EXAMPLES.glob("*.py")}
    for name, given in options.items():
        done = run(name, *given, "./absent")
        assert (done.returncode, done.stdout) == (1, ""), name
        assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"], done.stderr


def test_an_error_in_the_thread_that_streams_is_one_too(model):
    done = run("stream.py", "--model", model, "long " * 2000)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the prompt has ")


def test_every_example_prints_errors_so():
    for file in EXAMPLES.glob("*.py"):
        assert file.read_text(encoding="utf-8").endswith("sys.exit(run_command(main))\n"), file.name


def test_stream_and_generate_print_the_same(model):
    streamed, whole = (
        run(name, "--model", model, "--max-new-tokens", "8", "hello") for name in ("stream.py", "generate.py")
    )
    assert streamed.returncode == 0, streamed.stderr
    assert whole.returncode == 0, whole.stderr
    assert streamed.stdout == whole.stdout
    assert len(whole.stdout) > 1


def test_pipeline(model):
    done = run("pipeline.py", "--model", model, "--max-new-tokens", "8", "hello")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hello")


def test_save_and_load_low_bit(model, tmp_path):
    done = run("save_and_load_low_bit.py", "--model", model, "--low-bit", "sym_int4", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "before and after: yes" in done.stdout
    assert (tmp_path / "out").is_dir()


def test_migrate_from_ipex_llm(model):
    done = run("migrate_from_ipex_llm.py", "--repo-id-or-model-path", model, "--n-predict", "12")
    assert done.returncode == 0, done.stderr
    assert "lookahead=2: " in done.stdout
    assert "equal to plain decoding: yes" in done.stdout


def test_migrate_names_what_ipex_llm_needs(model):
    if importlib.util.find_spec("ipex_llm") is not None:
        pytest.skip("ipex-llm is installed here")
    done = run("migrate_from_ipex_llm.py", "--repo-id-or-model-path", model, "--engine", "ipex-llm")
    assert done.returncode == 1
    assert "pip install ipex-llm==2.2.0" in done.stderr
    assert "Traceback" not in done.stderr


def test_optimize_model(model):
    done = run("optimize_model.py", "--model", model)
    assert done.returncode == 0, done.stderr
    assert re.search(r"weights: [\d,]+ bytes before, [\d,]+ in sym_int4", done.stdout)
    assert "generate: yes" in done.stdout


def test_plot_lookahead(model, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "ab ab", "category": "code"}\n', encoding="utf-8")
    picture = tmp_path / "p.svg"
    arguments = ["--n-lookahead-tokens", "2", "--n-predict", "8", "--prompts", str(prompts), "--output", str(picture)]
    done = run("plot_lookahead.py", "--repo-id-or-model-path", model, *arguments)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "lookahead 0", "lookahead 2", "lookahead auto cold", "lookahead auto warm", f"saved {picture}"
    ]  # fmt: skip
    assert done.stdout.count("identical 1/1") == 4
    assert "n_lookahead_tokens" in picture.read_text(encoding="utf-8")


def test_every_example_is_short_and_run_here():
    tested = Path(__file__).read_text(encoding="utf-8")
    for file in EXAMPLES.glob("*.py"):
        assert f'"{file.name}"' in tested, f"{file.name} is not run by a test"
        assert len(file.read_text(encoding="utf-8").splitlines()) < 80, file.name


def shown(name: str, model: str, *arguments: str) -> str:
    """What an example prints that ends well."""
    done = run(name, "--model", model, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_batch(model):
    last = shown("batch.py", model, "--max-new-tokens", "12").splitlines()[-1]
    assert re.fullmatch(r"4 prompts, \d+ tokens: together [\d.]+ s, one by one [\d.]+ s; the same answers: yes", last)


def test_compare_formats(model):
    printed = shown("compare_formats.py", model, "--low-bit", "fp16", "--low-bit", "sym_int4", "--max-new-tokens", "8")
    rows = dict(re.findall(r"^(fp16|sym_int4) .* (\d+ of \d+)$", printed, re.MULTILINE))
    assert set(rows) == {"fp16", "sym_int4"}
    alike, length = rows["fp16"].split(" of ")
    assert alike == length, "it is compared with itself"


def test_custom_proposer(model):
    printed = shown("custom_proposer.py", model, "--max-new-tokens", "16")
    assert re.search(r"tokens a step, \d+ of \d+ drafted were right", printed)
    assert "equal to plain decoding: yes" in printed


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("jacobi_lookahead.py", ("--window", "3", "--ngram", "3", "--guesses", "3")),
        ("speculative.py", ("--max-step-draft", "4", "--th-stop-draft", "0")),
    ],
)
def test_ways_to_draft(name, options, model):
    rows = [line.split() for line in shown(name, model, "--max-new-tokens", "16", *options).splitlines()[-3:]]
    assert [row[-1] for row in rows] == ["yes"] * 3
    assert rows[0][:1] == ["off"]


def test_chat_reads_only_what_is_new(model):
    printed = shown("chat.py", model, "--max-new-tokens", "8", "hello", "and now")
    kept = re.findall(r", (\d+) of (\d+) prompt tokens cached\)", printed)
    (first, before), (second, after) = ((int(a), int(b)) for a, b in kept)
    assert first == 0
    assert 0 < second < after
    assert second >= before


@pytest.mark.programs
def test_openai_client_on_a_server(model):
    """With OpenAI's client where it is installed; where it is not, the sentence that says so."""
    serve = [sys.executable, "-m", "ipex_lookahead.cli.main", "serve", "--port", "0", "--threads", "1", "-m", model]
    with subprocess.Popen(serve, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = re.findall(r"http://[\d.:]+", server.stderr.readline())[0]
            assert "is ready" in server.stderr.readline()
            done = run("openai_client.py", "--url", url, "--max-new-tokens", "4", "Hi")
        finally:
            server.terminate()
    if importlib.util.find_spec("openai") is None:
        assert "pip install openai" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d tokens$", done.stdout, re.MULTILINE)
    gone = run("openai_client.py", "--url", url)
    assert gone.returncode == 1
    assert gone.stderr.startswith(f"error: {url} lists no models: ")
    assert "ipex-lookahead serve" in gone.stderr


def test_the_readme_of_examples_has_each_of_them():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+\.py)\)", text)) == {file.name for file in EXAMPLES.glob("*.py")}
    for name, options in re.findall(r"`python examples/(\w+\.py)([^`]*)`", text):
        source = (EXAMPLES / name).read_text(encoding="utf-8")
        for option in re.findall(r"--[\w-]+", options):
            assert f'"{option}"' in source, f"{name} {option}"
