"""A process without a home folder, as in a container that runs as a number: what can work works, the rest says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.tiny import write_tiny_llama

pytestmark = pytest.mark.programs

ROOT = Path(__file__).resolve().parent.parent.parent

NOBODY = """
import pwd
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
"""
"""Before anything else: the system does not list this user."""
OF_A_HOME = ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME", "HF_HUB_CACHE", "IPEX_LOOKAHEAD_CACHE")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", vocab=SIZE, context=512)
    chat_tokenizer().save_pretrained(folder)
    return folder


def homeless(arguments: list[str], typed: str = "", before: str = "", **variables: str):
    """A command without a home folder."""
    kept = {name: value for name, value in os.environ.items() if name not in (*OF_A_HOME, "IPEX_LOOKAHEAD_COSTS")}
    code = f"{NOBODY}\n{before}\nfrom ipex_lookahead.cli.main import main\nmain({arguments!r})"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**kept, **variables},
        input=typed,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "-q", "-n", "4", "--lookahead", "auto", "Hi", "-m"],
        ["chat", "-n", "4", "-m"],
        ["info"],
        ["info", "--forget-costs"],
        ["completion", "bash"],
    ],
    ids=" ".join,
)
def test_what_needs_no_home_works(arguments, model):
    given = [*arguments, str(model)] if arguments[-1] == "-m" else arguments
    done = homeless(given, typed="Hi\n")
    assert done.returncode == 0, done.stderr
    assert "internal error" not in done.stderr
    assert done.stdout


def test_info_says_that_there_is_no_cache_folder():
    done = homeless(["info", "--json"])
    facts = json.loads(done.stdout)
    assert (facts["cache_folder"], facts["step_costs"]) == (None, [])


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        (["generate", "Hi"], "IPEX_LOOKAHEAD_CACHE"),
        (["list"], "IPEX_LOOKAHEAD_CACHE"),
        (["pull", "owner/repo"], "HF_HOME"),
        (["info", "owner/repo"], "HF_HOME"),
    ],
    ids=lambda found: " ".join(found) if isinstance(found, list) else found,
)
def test_what_needs_one_says_so_and_what_to_set(arguments, variable):
    done = homeless(arguments)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: there is no place to keep")
    assert error.endswith("HOME is not set, and the system does not list this user")
    assert hint == f"hint: set {variable} to a folder that you may write"


def test_a_folder_that_is_named_is_used(tmp_path):
    done = homeless(["list"], IPEX_LOOKAHEAD_CACHE=str(tmp_path), HF_HOME=str(tmp_path / "hub"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompt-file", "~/prompt"],
        ["-o", "~/out", "Hi"],
        ["--store", "~/s", "Hi"],
    ],
    ids=lambda found: found[0],
)
def test_a_path_in_the_home_that_is_not_there_is_refused(arguments, model):
    done = homeless(["generate", *arguments, "-m", str(model)])
    assert done.returncode in (1, 2)
    assert "is no path" in done.stderr
    assert "internal error" not in done.stderr


def test_a_home_that_cannot_be_written_costs_nothing_but_time(model):
    done = homeless(["generate", "-q", "-n", "4", "--lookahead", "auto", "-m", str(model), "Hi"], HOME="/proc/nobody")
    assert (done.returncode, done.stderr) == (0, "")
    done = homeless(["generate", "Hi"], HOME="/proc/nobody")
    assert done.returncode == 1
    assert "the cache folder /proc/nobody/.cache/ipex-lookahead cannot be used" in done.stderr
    assert "IPEX_LOOKAHEAD_CACHE" in done.stderr
