"""A process without a home folder, as in a container that runs as a number: what can work works, the rest says why."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.chat_tokenizer import write_chat_llama
from tests.support.commands import Done, in_one_process

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
    return write_chat_llama(tmp_path_factory.mktemp("models") / "tiny", context=512)


def homeless(commands: list[list[str]], **variables: str) -> list[Done]:
    """Commands without a home folder."""
    kept = {name: value for name, value in os.environ.items() if name not in (*OF_A_HOME, "IPEX_LOOKAHEAD_COSTS")}
    return in_one_process(commands, {**kept, **variables}, typed="Hi\n", before=NOBODY)


def test_what_needs_no_home_works(model):
    on_it = ["-n", "4", "-m", str(model)]
    commands = [["generate", "-q", "--lookahead", "auto", "Hi", *on_it], ["chat", *on_it], ["info"]]
    for done in homeless([*commands, ["info", "--forget-costs"], ["completion", "bash"]]):
        assert done.returncode == 0, done.stderr
        assert "internal error" not in done.stderr
        assert done.stdout


def test_what_needs_one_says_so_and_what_to_set():
    needing = {
        "IPEX_LOOKAHEAD_CACHE": [["generate", "Hi"], ["list"]],
        "HF_HOME": [["pull", "owner/repo"], ["info", "owner/repo"]],
    }
    variables = [name for name, commands in needing.items() for _ in commands]
    *found, facts = homeless([*(one for commands in needing.values() for one in commands), ["info", "--json"]])
    for done, variable in zip(found, variables, strict=True):
        assert done.returncode == 1
        error, hint = done.stderr.splitlines()
        assert error.startswith(("error: no cache folder: ", "error: no download folder: "))
        assert error.endswith("HOME is not set and the system does not know this user")
        assert hint == f"hint: set {variable} to a writable folder"
    told = json.loads(facts.stdout)
    assert (told["cache_folder"], told["step_costs"]) == (None, [])


def test_a_folder_that_is_named_is_used(tmp_path):
    (done,) = homeless([["list"]], IPEX_LOOKAHEAD_CACHE=str(tmp_path), HF_HOME=str(tmp_path / "hub"))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_in_the_home_that_is_not_there_is_refused(model):
    given = [["--prompt-file", "~/prompt"], ["-o", "~/out", "Hi"], ["--store", "~/s", "Hi"]]
    for done in homeless([["generate", *arguments, "-m", str(model)] for arguments in given]):
        assert done.returncode in (1, 2)
        assert "is not a valid path" in done.stderr
        assert "internal error" not in done.stderr


def test_a_home_that_cannot_be_written_costs_nothing_but_time(model):
    drafting = ["generate", "-q", "-n", "4", "--lookahead", "auto", "-m", str(model), "Hi"]
    done, refused = homeless([drafting, ["generate", "Hi"]], HOME="/proc/nobody")
    assert (done.returncode, done.stderr) == (0, "")
    assert refused.returncode == 1
    assert "the cache folder /proc/nobody/.cache/ipex-lookahead cannot be used" in refused.stderr
    assert "IPEX_LOOKAHEAD_CACHE" in refused.stderr
