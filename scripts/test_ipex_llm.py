#!/usr/bin/env python3
"""Run the tests that need the real ipex-llm, in an environment of its own that is kept between runs.

    python3 scripts/test_ipex_llm.py [arguments for pytest]

The environment has 5 GB: torch 2.1.2 and the libraries it requires, in the user's cache folder under a hash of the
pinned versions. It is created under another name and renamed when it is complete. The native core is built for it in
``build/ipex-llm``, and tested there on a copy of the package. Standard library only.
"""

import hashlib
import os
import shutil
import subprocess
import sys

import setup
from environments import as_program, cache_folder, kept, pip
from setup import ROOT, TORCH_CPU_INDEX, SetupError, output

STACK = os.path.join(ROOT, "scripts", "ipex-llm-stack.txt")
TOOLS = [
    "click>=8.1", "rich>=13.7", "jinja2>=3.1.6", "pyyaml>=6.0", "safetensors>=0.5",
    "pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "gguf>=0.17",
    "nanobind>=2.4", "cmake>=3.18,<4", "ninja>=1.10",
]  # fmt: skip
PYTHONS = ((3, 11), (3, 10))
"""torch 2.1.2 has no build for later ones."""
NEEDED = 8 << 30
"""Bytes that making the environment takes, with what is unpacked on the way."""
TESTS = [  # the other rooms compare with a newer transformers
    "tests/ipex_llm", "tests/system/test_compat.py", "tests/engines/ipex_llm", "tests/engines/test_every_engine.py",
    "tests/engines/native/test_cache.py", "tests/engines/native/test_kernels.py", "tests/controller",
    "tests/decoding", "tests/runtime", "tests/hf/generation", "tests/drafting", "tests/formats", "tests/hf/modeling",
    "tests/hf/test_model.py", "tests/hf/test_auto.py",
]  # fmt: skip


def main(arguments):
    python = legacy_python()
    folder = environment(python)
    build(folder)
    return run(folder, arguments)


def say(text):
    print("ipex-llm: " + text)
    sys.stdout.flush()


# --- the environment ----------------------------------------------------------------------------------------------


def legacy_python():
    """An interpreter that torch 2.1.2 was built for."""
    names = [sys.executable] + ["python{}.{}".format(*version) for version in PYTHONS]
    for name in names:
        found = shutil.which(name)
        if not found:
            continue
        try:
            answer = output([found, "-c", "import sys, venv; print(sys.version_info[:2])"])
        except (OSError, subprocess.CalledProcessError):
            continue
        if answer in [str(version) for version in PYTHONS]:
            return found
    raise SetupError(
        "ipex-llm 2.2.0 needs torch 2.1.2, which runs on Python 3.10 and 3.11; neither was found",
        "install one, or name it: make test-ipex-llm PYTHON=/path/to/python3.11",
    )


def environment(python):
    """The folder of the environment; created if missing."""
    version = output([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    with open(STACK) as pins:
        key = hashlib.sha256("\n".join([version, pins.read()] + TOOLS).encode()).hexdigest()[:12]
    return kept("ipex-llm", key, NEEDED, say, lambda half: make(python, half))


def make(python, folder):
    say("making its environment (once; several minutes, about 3 GB fetched)")
    subprocess.run([python, "-m", "venv", folder], check=True)
    inside = os.path.join(folder, "bin", "python")
    with open(STACK) as pins:
        torch = next(line.strip() for line in pins if line.startswith("torch=="))
    try:
        pip(inside, "--no-deps", "--index-url", TORCH_CPU_INDEX, "--timeout", "10", "--retries", "1", torch, quiet=True)
    except SetupError:
        say("{} did not answer; pip's configured sources have torch with CUDA, which is larger".format(TORCH_CPU_INDEX))
    pip(inside, "-r", STACK, *TOOLS)


# --- the core and the tests ---------------------------------------------------------------------------------------


def site():
    return os.path.join(ROOT, "build", "ipex-llm", "site")


def build(folder):
    """Build the native core for that Python, next to a copy of the package."""
    setup.PYTHON = os.path.join(folder, "bin", "python")
    setup.check_compiler()
    tree = os.path.join(ROOT, "build", "ipex-llm", "core")
    os.makedirs(tree, exist_ok=True)
    tools = os.path.join(folder, "bin")
    python = os.path.join(tools, "python")
    cmake = output([python, "-c", "import cmake, os; print(os.path.join(cmake.CMAKE_BIN_DIR, 'cmake'))"])
    ninja = output([python, "-c", "import ninja, os; print(os.path.join(ninja.BIN_DIR, 'ninja'))"])
    say("building the native core for it")
    quietly([cmake, "-S", ROOT, "-B", tree, "-G", "Ninja", "-DPython_EXECUTABLE=" + python,
             "-DCMAKE_MAKE_PROGRAM=" + ninja])  # fmt: skip
    quietly([cmake, "--build", tree, "--parallel", str(setup.jobs())])
    shutil.rmtree(site(), ignore_errors=True)
    package = os.path.join(site(), "ipex_lookahead")
    shutil.copytree(
        os.path.join(ROOT, "ipex_lookahead"), package, ignore=shutil.ignore_patterns("*.so", "__pycache__", ".new*")
    )
    for name in os.listdir(tree):
        if name.startswith("_native") and name.endswith(".so"):
            shutil.copy2(os.path.join(tree, name), package)


def quietly(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode != 0:
        sys.stderr.write(done.stdout)
        raise SetupError("the native core did not build for ipex-llm's Python; the message is above")


def run(folder, arguments):
    """The tests, on the copy of the package: the folder of the sources is left out of Python's path."""
    python = os.path.join(folder, "bin", "python")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([site(), ROOT]), PYTHONNOUSERSITE="1")
    environment.setdefault("IPEX_LOOKAHEAD_CACHE", cache_folder())
    environment.setdefault("OMP_NUM_THREADS", "1")  # the models are small: more threads only wait for each other
    say("fetching the embedded model, if it is missing")
    fetch = "import sys; sys.path.pop(0); from ipex_lookahead.hub import resolve_model; resolve_model('default')"
    subprocess.run([python, "-c", fetch], check=True, env=environment, cwd=ROOT)
    start = "import sys; sys.path.pop(0); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    tests = arguments or TESTS
    options = ["-o", "pythonpath=", "-o", "filterwarnings="]
    say("running {}".format(" ".join(tests)))
    return subprocess.run([python, "-c", start, *options, *tests], env=environment, cwd=ROOT).returncode


if __name__ == "__main__":
    as_program(main)
