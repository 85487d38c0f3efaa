"""``chat`` on a pseudo-terminal: the prompt, Ctrl-C in an answer and at the prompt, Ctrl-D, the history."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.programs
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background has it ignored
from tests.cli.conftest import ScriptedModel
from tests.support.chat_tokenizer import chat_tokenizer
from ipex_lookahead.cli import loading, main
tokenizer = chat_tokenizer()
model = ScriptedModel(tokenizer, ["one answer", "slow " * 1000])
quick = tokenizer.__class__.decode
def decode(self, *a, **k):
    if len(model.asked) == 2:
        time.sleep(0.05)
    return quick(self, *a, **k)
tokenizer.__class__.decode = decode
loading.load_text = lambda name, **options: model
main.main(["chat"])
"""


class Terminal:
    """A program on a pseudo-terminal, and what it has shown."""

    def __init__(self, environment):
        self.master, slave = pty.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )
        os.close(slave)

    def interrupt_until(self, text: str) -> None:
        """Ctrl-C at the prompt; again where it fell between readline's look for signals and its wait for keys."""
        for _ in range(40):
            self.type("\x03")
            if self._comes(text, 3):
                return
        raise AssertionError(f"{text!r} did not come after 40 interrupts; shown: {self.shown!r}")

    def wait_for(self, text: str) -> None:
        assert self._comes(text, 120), f"{text!r} did not come; shown: {self.shown!r}"

    def _comes(self, text: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while text not in self.shown:
            ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
            if not ready:
                return False
            try:
                self.shown += os.read(self.master, 65536).decode("utf-8", "replace")
            except OSError:  # the program has closed its end
                return text in self.shown
        return True

    def type(self, text: str) -> None:
        self.send(text.encode())

    def send(self, keys: bytes) -> None:
        self.shown = ""
        os.write(self.master, keys)


def environment(tmp_path, **more: str) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "COLUMNS": "100", **more}


def test_a_whole_chat(tmp_path):
    terminal = Terminal(environment(tmp_path, NO_COLOR="1"))
    terminal.wait_for(">>> ")
    assert "/help lists commands, Ctrl-D exits" in terminal.shown
    everything = terminal.shown
    terminal.type("hello\n")
    terminal.wait_for("one answer")
    terminal.wait_for(">>> ")
    assert "tok/s" in terminal.shown
    everything += terminal.shown
    terminal.type("again\n")
    terminal.wait_for("slow slow")
    terminal.type("\x03")
    terminal.wait_for("stopped; the partial answer is kept")
    terminal.wait_for(">>> ")
    terminal.interrupt_until("press Ctrl-D or type /bye to exit")
    terminal.wait_for(">>> ")
    everything += terminal.shown
    terminal.type('"""begun\n')
    terminal.wait_for("... ")
    terminal.interrupt_until("message discarded")
    terminal.wait_for(">>> ")
    everything += terminal.shown
    terminal.type("/stats\n")
    terminal.wait_for("context: ")
    terminal.wait_for(">>> ")
    everything += terminal.shown
    assert "\x1b" not in everything, "NO_COLOR means no escape sequence of any kind"
    terminal.type("\x04")
    assert terminal.process.wait(timeout=200) == 0
    os.close(terminal.master)
    history = tmp_path / "ipex-lookahead" / "chat_history"
    assert history.read_text().split() == ["hello", "again", '"""begun', "/stats"]
    assert history.stat().st_mode & 0o077 == 0


def test_messages_of_several_lines_and_the_history_of_an_earlier_chat(tmp_path):
    there = {key: value for key, value in environment(tmp_path).items() if key != "NO_COLOR"}
    terminal = Terminal(there)
    terminal.wait_for(">>> ")
    terminal.type("\x1b[200~/system pasted\nin \\n two\x1b[201~\r")
    terminal.wait_for("in \\n two\x1b[0m")
    terminal.wait_for(">>> ")
    terminal.type("/system typed\x1b\rin two\r")
    terminal.wait_for("system: typed\x1b[0m\r\n\x1b[2min two")
    terminal.wait_for(">>> ")
    terminal.send(b"\xff\n")
    terminal.wait_for("the message is not valid UTF-8 and was not sent")
    terminal.wait_for(">>> ")
    terminal.type("/bye\n")
    assert terminal.process.wait(timeout=200) == 0
    os.close(terminal.master)
    terminal = Terminal(there)
    terminal.wait_for(">>> ")
    terminal.type("\x1b[A" * 4 + "\r")
    terminal.wait_for("system: pasted\x1b[0m\r\n\x1b[2min \\n two")
    terminal.wait_for(">>> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=200) == 0
    os.close(terminal.master)


def test_a_narrow_terminal_cuts_no_word_off(tmp_path):
    """Of what a chat begins with, and of answers."""
    terminal = Terminal(environment(tmp_path, COLUMNS="18"))
    terminal.wait_for(">>> ")
    begun = re.sub(r"\x1b\[[\d;?]*[a-z]", "", terminal.shown).replace("│", " ")
    assert "/help lists commands, Ctrl-D exits" in " ".join(begun.split())
    terminal.type("hello\n")
    terminal.wait_for(">>> ")
    terminal.type("again\n")
    terminal.wait_for("slow slow slow\r\nslow slow slow\r\n")
    terminal.type("\x03")
    terminal.wait_for(">>> ")
    terminal.type("\x04")
    assert terminal.process.wait(60) == 0
