"""Every command where torch and transformers are not installed: it works, or says in one sentence what it needs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from ipex_lookahead.cli.bench import COMMANDS as MEASURING
from ipex_lookahead.cli.drafter import COMMANDS as DRAFTERS
from ipex_lookahead.cli.main import COMMANDS, run
from ipex_lookahead.system.extras import installing
from tests.support.chat_tokenizer import write_chat_llama
from tests.support.commands import Done, in_one_process
from tests.support.embedding_folders import qwen3, tokenizer, write_qwen3_embedding
from tests.support.ipex_llm_folder import write_ipex_llm
from tests.support.tiny import write_tiny_gguf

pytestmark = pytest.mark.programs

ROOT = Path(__file__).resolve().parent.parent.parent
ABSENT = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers"), None))  # as where they are not installed
"""
ONE = ("--threads", "1")

WORKS = {
    "drafter cut": ("drafter", "cut", "{model}", "--text", "{text}", "--output", "{new}/words.json"),
    "generate": ("generate", "-m", "{model}", *ONE, "--raw", "-n", "4", "one two"),
    "chat": ("chat", "-m", "{model}", *ONE, "-n", "4"),
    "run": ("run", "{model}", *ONE, "-n", "4", "one two"),
    "quantize": ("quantize", "{model}", "{new}/sym_int4", "--low-bit", "sym_int4", *ONE),
    "quantize of a GGUF file": ("quantize", "{gguf}", "{new}/gguf", "--low-bit", "sym_int4", "--allow-requantize"),
    "convert-ipex-llm": ("convert-ipex-llm", "{theirs}", "{new}/converted"),
    "info": ("info",),
    "info of a model": ("info", "{model}"),
    "pull": ("pull",),
    "list": ("list",),
    "doctor": ("doctor", "--tiny", "--answers", "1", "-n", "8", *ONE),
    "completion": ("completion", "bash"),
    "bench step": ("bench", "step", "--shape", "smollm2-135m", "--rows", "1", *ONE),
    "bench kernels": ("bench", "kernels", "--low-bit", "sym_int4", "--rows", "1", *ONE),
    "bench replay": ("bench", "replay", "--replay", "{recording}", "--strategy", "prompt_lookup"),
    "bench decode": ("bench", "decode", "-m", "{model}", "--limit", "1", "-n", "8", *ONE),
    "bench run": ("bench", "run", "{plan}", "--output", "{new}/results", "--no-pictures"),
    "embed": ("embed", "-m", "{embedder}", *ONE, "one two"),
    "rank": ("rank", "-m", "{embedder}", *ONE, "one two", "three", "four"),
    "bench embed": (  # fmt: skip
        "bench",
        "embed",
        "-m",
        "{embedder}",
        "--lengths",
        "8",
        "--batches",
        "1",
        "--repeat",
        "1",
        *ONE,
    ),
    "bench retrieval": ("bench", "retrieval", "-m", "{embedder}", "--low-bit", "sym_int8", "--queries", "4", *ONE),
    "bench quality": ("bench", "quality", "-m", "{model}", "--low-bit", "sym_int4", *ONE),
}
SERVED = {"serve", "bench serve", "bench agent"}
"""What a test of its own runs, with a server."""
NEEDS_IT = {
    "imatrix": ("imatrix", "-m", "{model}", "--text", "{text}", "--to", "{new}/i.gguf"),
    "compare-engines": ("compare-engines", "-m", "{model}"),
    "bench exact": ("bench", "exact", "-m", "{model}"),
    "bench replay --record": ("bench", "replay", "-m", "{model}", "--record", "{new}/answers.jsonl"),
}
REFUSES = {
    "rm": (("rm", "nothing-of-that-name"), "no model named 'nothing-of-that-name' is stored here"),
    "engine torch": (
        ("generate", "-m", "{model}", "--engine", "torch", "one"),
        "--engine torch (requested) needs torch and transformers, which are not installed",
    ),
    "bench image": (("bench", "image", "-m", "{model}", *ONE), "this model takes no images"),
    "doctor of a device that torch reaches": (
        ("doctor", "--tiny", "--device", "cuda"),
        "--device cuda needs torch and transformers, which are not installed",
    ),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    made = tmp_path_factory.mktemp("places")
    (made / "new").mkdir()
    model = write_chat_llama(made / "model", context=20_000)
    (made / "embedder").mkdir()
    write_qwen3_embedding(made / "embedder", qwen3(tokenizer().get_vocab_size()))
    write_ipex_llm(made / "theirs", "sym_int8")
    write_tiny_gguf(made / "m.gguf", quant="Q4_1")
    (made / "text.txt").write_text("one two three")
    (made / "plan.yaml").write_text(f"repo_id: {model}\nin_out_pairs: 16-8\nnum_trials: 1\nthreads: 1\n")
    recorded = ["bench", "replay", "-m", str(model), "--record", str(made / "recording.jsonl"), *ONE]
    assert run([*recorded, "--limit", "1", "-n", "8"]) == 0
    return {name: str(made / name) for name in ("model", "theirs", "new", "embedder")} | {
        "text": str(made / "text.txt"),
        "gguf": str(made / "m.gguf"),
        "plan": str(made / "plan.yaml"),
        "recording": str(made / "recording.jsonl"),
    }


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """That of a process without torch and transformers, and of those that it starts."""
    folder = tmp_path_factory.mktemp("absent")
    (folder / "sitecustomize.py").write_text(ABSENT)
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}


COMMANDS_HERE = {**WORKS, **NEEDS_IT, **{name: words for name, (words, _) in REFUSES.items()}}


@pytest.fixture(scope="module")
def command(places, environment) -> Callable[..., list[Done]]:
    def run(*commands: tuple[str, ...]) -> list[Done]:
        given = [[word.format(**places) for word in words] for words in commands]
        return in_one_process(given, environment, typed="one two\n")

    return run


@pytest.fixture(scope="module")
def done(command) -> dict[str, Done]:
    return dict(zip(COMMANDS_HERE, command(*COMMANDS_HERE.values()), strict=True))


def test_every_command_is_in_a_table():
    tables = {*WORKS, *NEEDS_IT, *REFUSES, *SERVED}
    assert {name for name in COMMANDS if name not in ("bench", "drafter")} <= tables
    assert {f"drafter {name}" for name in DRAFTERS} <= tables
    assert {f"bench {name}" for name in MEASURING} <= tables


@pytest.mark.parametrize("name", WORKS)
def test_it_works(done, name):
    assert done[name].returncode == 0, done[name].stderr
    assert done[name].stdout
    assert "torch" not in done[name].stderr


@pytest.mark.parametrize("name", NEEDS_IT)
def test_it_says_what_it_needs_and_does_nothing_else(done, name):
    needing = re.sub(" --.*", "", name)
    said = f"`ipex-lookahead {needing}` needs torch and transformers, which are not installed"
    assert done[name] == (1, "", f"error: {said}\nhint: {installing('torch')}\n")


@pytest.mark.parametrize("name", REFUSES)
def test_it_says_why_not(done, name):
    lines = done[name].stderr.splitlines()
    assert (done[name].returncode, lines[0]) == (1, f"error: {REFUSES[name][1]}")
    assert "needs torch" not in lines[0] or lines[1] == f"hint: {installing('torch')}"


@pytest.fixture
def server(places, environment) -> Iterator[str]:
    given = [sys.executable, "-m", "ipex_lookahead", "serve", "-m", places["model"], "--port", "0", *ONE]
    running = subprocess.Popen(given, env=environment, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert running.stderr is not None
    try:
        said = ""
        while "is ready at" not in said:
            line = running.stderr.readline()
            assert line, said
            said += line
        yield re.findall(r"http://127\.0\.0\.1:\d+", said)[0]
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)


def test_the_server_answers_and_is_measured(server, command):
    body = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 4}
    answer = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
    measured = command(
        ("bench", "serve", "--url", server, "--streams", "1", "--limit", "1", "-n", "4"),
        (
            "bench",
            "agent",
            "--url",
            server,
            "--turns",
            "2",
            "--cold",
            "1",
            "--prompt-tokens",
            "7000",
            "--result-tokens",
            "1500",
            "-n",
            "4",
        ),
    )
    for done in measured:
        assert done.returncode == 0, done.stderr
        assert "torch" not in done.stderr
