"""Streams that cannot hold every letter, and limits that stand already: an answer goes on."""

from __future__ import annotations

import os
import subprocess
import sys

ECHO = """
import sys, click
from ipex_lookahead.cli.running import run_command
@click.command()
def say():
    sys.stdout.write("l'\u00e9toile, \u2603\\n")
    sys.stderr.write("caf\u00e9\\n")
sys.exit(run_command(say, []))
"""


def test_letters_that_the_encoding_lacks_are_spelled():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", ECHO], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "l'\\xe9toile, \\u2603\n", "caf\\xe9\n")


def test_letters_that_it_has_are_written():
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", ECHO], env=environment, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "l'étoile, ☃\n", "café\n")


def test_a_lower_limit_on_memory_that_stands_already_is_kept_to():
    """``ulimit -Hv``: a hard limit may not be raised, and the template's process asks for 512 MiB."""
    code = """
import resource
from ipex_lookahead.tokenization.chat_template import render_chat
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
said = [{"role": "user", "content": "hello"}]
print(render_chat("{{ messages[0].content }}", said, add_generation_prompt=True, bos_token=None, eos_token=None))
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
