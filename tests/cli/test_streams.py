"""Streams that cannot hold every letter, and limits that stand already: an answer goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from tests.support.chat_tokenizer import write_chat_llama

ECHO = """
import sys, click
from ipex_lookahead.cli.running import run_command
@click.command()
def say():
    sys.stdout.write("l'\u00e9toile, \u2603\\n")
    sys.stderr.write("caf\u00e9\\n")
sys.exit(run_command(say, []))
"""


@pytest.mark.programs
@pytest.mark.parametrize(
    ("encoding", "out", "err"),
    [("ascii", "l'\\xe9toile, \\u2603\n", "caf\\xe9\n"), ("utf-8", "l'étoile, ☃\n", "café\n")],
)
def test_letters_that_an_encoding_lacks_are_spelled(encoding, out, err):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", ECHO], env=environment, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr) == (0, out, err)


def limited(code: str, mebibytes: int, **more: str) -> subprocess.CompletedProcess[str]:
    """A process under ``ulimit -v``, whose arithmetic takes one thread's memory."""
    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({mebibytes} << 20, {mebibytes} << 20))\n"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **more}
    return subprocess.run([sys.executable, "-c", limit + code], env=environment, capture_output=True, text=True)


@pytest.mark.programs
def test_a_lower_limit_on_memory_that_stands_already_is_kept_to():
    """``ulimit -Hv``: a hard limit may not be raised, and the template's process asks for 512 MiB."""
    code = """
from ipex_lookahead.tokenization.chat_template import render_chats
said = [{"role": "user", "content": "hello"}]
print(render_chats("{{ messages[0].content }}", [said], {})[0])
"""
    done = limited(code, 400)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


@pytest.mark.programs
def test_a_template_that_takes_more_than_that_says_which_limit_it_was():
    code = """
from ipex_lookahead.tokenization.chat_template import render_chats
print(render_chats("{{ 'x' * 3000000000 }}", [[]], {})[0])
"""
    done = limited(code, 400)
    assert done.returncode == 1
    assert "it needs too much memory" in done.stderr


@pytest.mark.programs
def test_the_tokenizers_own_process_keeps_to_it_too(tmp_path):
    """It asks for 1 GiB and more. What it is stopped by is the limit that stands."""
    core = Tokenizer(
        models.BPE({letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    split = pre_tokenizers.Split(Regex("(a|b)+|c"), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    core.decoder = decoders.ByteLevel()
    core.save(str(tmp_path / "tokenizer.json"))
    code = f"""
from pathlib import Path
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.isolated import IsolatedText
made = text_from_folder(Path({str(tmp_path)!r}), {{}})
assert isinstance(made, IsolatedText)
print(made.decode(made.encode("abc hello")))
try:
    made.encode("abc " * (4 << 20))
except ModelFormatError as error:
    print(error)
"""
    done = limited(code, 400)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "abc hello"
    assert re.search(r"its process was stopped.*: it takes more than .* or the 400 MiB that ulimit -v leaves", second)


def test_what_is_short_under_a_limit_is_said():
    raised = [
        "MemoryError()",
        "OSError(12, 'Cannot allocate memory')",
        "ImportError('x.so: failed to map segment from shared object')",
        'RuntimeError("can\'t start new thread")',
    ]
    code = f"""
import click
from ipex_lookahead.cli.running import run_command
for error in ({", ".join(raised)}):
    @click.command()
    def take():
        raise error
    assert run_command(take, []) == 1
"""
    done = limited(code, 1000)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == 2 * len(raised)
    assert set(said[::2]) == {"error: out of memory: the address space is limited to 1.05 GB (ulimit -v 1024000)"}
    assert all(
        one.startswith("hint: raise ulimit -v, or use a smaller model or format, such as ") for one in said[1::2]
    )


@pytest.mark.programs
def test_a_model_that_does_not_fit_the_limit(tmp_path):
    """200 MB of weights under 400 MiB, of which Python and its packages take most."""
    model = write_chat_llama(tmp_path / "model", hidden=1024, intermediate=4096, layers=3)
    words = ["generate", "-m", str(model), "--threads", "1", "--raw", "-n", "2", "one"]
    done = limited(f"from ipex_lookahead.cli.main import main\nmain({words})", 400)
    assert done.returncode == 1
    said = "error: out of memory: the address space is limited to 0.42 GB (ulimit -v 409600)"
    assert done.stderr.splitlines()[-2] == said
