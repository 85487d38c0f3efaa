#!/usr/bin/env python3
"""Run the tests with third-party programs: clients of the server, coding agents, schemathesis, Ray.

    python3 scripts/test_clients.py [arguments for pytest]

Clients are installed in an overlay of the .venv of ``make test``, which is reused, and agents in environments of their
own. With arguments, agents are only installed if one of them names tests/agents. Standard library only.
"""

import json
import os
import subprocess
import sys

import agents
from environments import as_program, overlay
from setup import ROOT, SetupError

PINS = [
    "openai==2.54.0", "anthropic==2.12.0", "langchain-openai==1.7.3", "llama-index-llms-openai-like==0.8.1",
    "lm-eval[api]==0.4.13", "llm==0.32.1", "schemathesis==4.32.5", "ray[serve]==2.60.0",
    "ollama==0.6.3", "cohere==7.3.1", "llama-index-embeddings-openai-like==0.4.0",
]  # fmt: skip
NEEDED = 2 << 30
"""Bytes that making the environment takes, with what is unpacked on the way."""
TESTS = ["tests/serving/test_clients.py", "tests/serving/test_schemathesis.py", "tests/serving/test_ray.py"]
TESTS += ["tests/serving/embedding/test_clients.py", "tests/agents"]
TESTS += ["tests/examples/test_examples.py::test_openai_client_on_a_server"]


def main(arguments):
    python = os.path.join(ROOT, ".venv", "bin", "python")
    if not os.path.exists(python):
        raise SetupError("there is no .venv yet", "make test-clients makes it first")
    folder = overlay(python, "clients", PINS, NEEDED, say, "300 MB")
    # schemathesis brings a plugin for pytest, of which nothing is used; replicas import the package by PYTHONPATH
    command = [os.path.join(folder, "bin", "python"), "-m", "pytest", "-n0", "-p", "no:schemathesis"]
    tests = arguments or TESTS
    environment = dict(os.environ, PYTHONPATH=ROOT)
    if any("tests/agents" in argument for argument in tests):
        environment["IPEX_LOOKAHEAD_AGENTS"] = json.dumps(agents.install(say))
    return subprocess.run(command + tests, env=environment, cwd=ROOT).returncode


def say(text):
    print("clients: " + text)
    sys.stdout.flush()


if __name__ == "__main__":
    as_program(main)
