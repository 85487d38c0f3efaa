"""Every block of Python in the guide runs, in the order of the page, with a tiny model in place of those it names."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.pages import PAGES, ROOT
from tests.support.chat_tokenizer import write_chat_llama

BLOCKS = re.findall(r"```python\n(.*?)```", PAGES["docs/python_guide.md"], re.DOTALL)
MODELS = re.compile(r'"(default|path/to/model)"')


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    made = write_chat_llama(tmp_path / "tiny", context=4096)
    monkeypatch.setattr("ipex_lookahead.llm.MAX_NEW_TOKENS", 256)  # a tiny model never ends by itself
    names = {"__name__": "guide"}
    for number, block in enumerate(BLOCKS):
        code = MODELS.sub(lambda _: repr(str(made)), block)
        exec(compile(code, f"block {number} of python_guide.md", "exec", dont_inherit=True), names)
    printed = capsys.readouterr().out
    assert "error: unknown low-bit format 'int4'" in printed
    assert "hint: for example low_bit='sym_int4'" in printed
    assert len(BLOCKS) > 15


@pytest.mark.programs
def test_the_examples_are_typed(tmp_path):
    """As strict as mypy is, all blocks as one program."""
    (tmp_path / "guide.py").write_text("\n".join(BLOCKS), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "guide.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
