#!/usr/bin/env python3
"""Run the tests of the server's page in Chromium, in an environment that is kept between runs.

    python3 scripts/test_browser.py [arguments for pytest]

The environment is the .venv of ``make test`` with Playwright, which controls the system's Chromium (``apt install
chromium``) or the one in IPEX_LOOKAHEAD_CHROMIUM. Without one, root installs Debian's; other users get a message, and
the tests are skipped. axe-core, for accessibility, is installed with npm if available. Screenshots are in
build/browser.
Standard library only.
"""

import os
import shutil
import subprocess
import sys

from environments import as_program, kept, overlay
from setup import ROOT, SetupError

PINS = ["playwright==1.65.2"]
NEEDED = 1 << 29
"""Bytes that making the environment takes, with what is unpacked on the way."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
AXE = "axe-core@4.14.1"
TESTS = ["tests/browser"]


def main(arguments):
    python = os.path.join(ROOT, ".venv", "bin", "python")
    if not os.path.exists(python):
        raise SetupError("there is no .venv yet", "make test-browser makes it first")
    browser = os.environ.get("IPEX_LOOKAHEAD_CHROMIUM") or installed() or from_debian()
    if browser is None:
        say("SKIPPED, nothing was tested: no Chromium was found")
        say("apt install chromium, or name one: IPEX_LOOKAHEAD_CHROMIUM=/path/to/chrome")
        return 0
    folder = overlay(python, "browser", PINS, NEEDED, say, "45 MB")
    say("running in {}".format(browser))
    pytest = [os.path.join(folder, "bin", "python"), "-m", "pytest"] + (arguments or TESTS)
    found = dict(os.environ, IPEX_LOOKAHEAD_CHROMIUM=browser, **axe())
    return subprocess.run(pytest, env=found, cwd=ROOT).returncode


def installed():
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def axe():
    """Where axe-core's script is, for the environment; nothing where npm cannot get it."""
    npm = shutil.which("npm")

    def make(folder):
        subprocess.run([npm, "install", "--silent", "--ignore-scripts", "--prefix", folder, AXE], check=True)

    if npm is None:
        say("axe-core is not there without npm: the tests with it are skipped")
        return {}
    folder = kept("axe", AXE.partition("@")[2], 1 << 25, say, make)
    return {"IPEX_LOOKAHEAD_AXE": os.path.join(folder, "node_modules", "axe-core", "axe.min.js")}


def from_debian():
    """Debian's, where it may be installed without asking: by root."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    say("installing Debian's chromium (once; about 110 MB fetched)")
    quiet = {"env": dict(os.environ, DEBIAN_FRONTEND="noninteractive"), "stdout": subprocess.DEVNULL}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        if subprocess.run(["apt-get", "-q"] + command, **quiet).returncode != 0:
            say("apt-get {} has failed".format(command[0]))
            return None
    return installed()


def say(text):
    print("browser: " + text)
    sys.stdout.flush()


if __name__ == "__main__":
    as_program(main)
