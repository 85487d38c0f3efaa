#!/usr/bin/env python3
"""Run the tests that need other people's programs: clients of the server, schemathesis, Ray.

    python3 scripts/test_clients.py [arguments for pytest]

They go into an environment beside the .venv that ``make test`` uses, which is kept between runs. Standard library only.
"""

import hashlib
import os
import subprocess
import sys

from environments import as_program, kept, pip
from setup import ROOT, SetupError, output

PINS = [
    "openai==2.54.0", "anthropic==2.12.0", "langchain-openai==1.7.3", "llama-index-llms-openai-like==0.8.1",
    "lm-eval[api]==0.4.13", "llm==0.32.1", "schemathesis==4.32.5", "ray[serve]==2.60.0",
]  # fmt: skip
NEEDED = 2 << 30
"""Bytes that making the environment takes, with what is unpacked on the way."""
TESTS = ["tests/serving/test_clients.py", "tests/serving/test_schemathesis.py", "tests/serving/test_ray.py"]


def main(arguments):
    python = os.path.join(ROOT, ".venv", "bin", "python")
    if not os.path.exists(python):
        raise SetupError("there is no .venv yet", "make test-clients makes it first")
    packages = output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    key = hashlib.sha256("\n".join([packages] + PINS).encode()).hexdigest()[:12]
    folder = kept("clients", key, NEEDED, say, lambda half: make(python, packages, half))
    # schemathesis brings a plugin for pytest, of which nothing is used; replicas import the package by PYTHONPATH
    command = [os.path.join(folder, "bin", "python"), "-m", "pytest", "-n0", "-p", "no:schemathesis"]
    return subprocess.run(command + (arguments or TESTS), env=dict(os.environ, PYTHONPATH=ROOT), cwd=ROOT).returncode


def say(text):
    print("clients: " + text)
    sys.stdout.flush()


def make(python, packages, folder):
    say("making its environment (once; about 300 MB fetched)")
    subprocess.run([python, "-m", "venv", folder], check=True)
    inside = os.path.join(folder, "bin", "python")
    own = output([inside, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    with open(os.path.join(own, "beside.pth"), "w") as beside:  # a line of code: .pth files there are read too
        beside.write("import site; site.addsitedir({!r})\n".format(packages))
    pip(inside, *PINS)


if __name__ == "__main__":
    as_program(main)
