#!/usr/bin/env python3
"""Run the tests that compare with llama.cpp: logits, tokens and mixtures of formats of the same files.

    python3 scripts/test_peers.py [arguments for pytest]

llama-cpp-python is built in an environment of its own, which is kept between runs. The programs llama-tokenize and
llama-quantize are not in that package: tests that need them run where the programs are on the path. Standard library
only.
"""

import os
import subprocess
import sys

from environments import as_program, overlay
from setup import ROOT, SetupError

PINS = ["llama-cpp-python==0.3.36"]
NEEDED = 2 << 30
"""Bytes that making the environment takes, temporary files included."""
TESTS = ["tests/architectures/test_llama_cpp.py", "tests/tokenization/test_against_llama_cpp.py"]
TESTS += ["tests/formats/test_against_llama_quantize.py", "tests/engines/test_llama_quantize.py"]


def main(arguments):
    python = os.path.join(ROOT, ".venv", "bin", "python")
    if not os.path.exists(python):
        raise SetupError("there is no .venv yet", "make test-peers makes it first")
    folder = overlay(python, "peers", PINS, NEEDED, say, "60 MB")
    variables = dict(os.environ, IPEX_LOOKAHEAD_LLAMA_CPP=os.path.join(folder, "bin", "python"))
    command = [python, "-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "loadgroup"]
    return subprocess.run(command + (arguments or TESTS), env=variables, cwd=ROOT).returncode


def say(text):
    print("peers: " + text)
    sys.stdout.flush()


if __name__ == "__main__":
    as_program(main)
