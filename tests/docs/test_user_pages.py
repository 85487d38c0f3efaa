"""The Python programs of the pages for users run on a tiny model in place of those that they name."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import PAGES
from tests.support.chat_tokenizer import write_chat_llama

MODELS = re.compile(r'"(default|model\.Q4_K_M\.gguf)"')
PROGRAMS = {
    f"{page} {number}": block
    for page in ("docs/tutorial.md", "docs/from_llama_cpp.md", "docs/transformers.md")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL))
    if MODELS.search(block) and "openai" not in block  # programs for a server: tests/serving/test_clients.py
}


def test_each_page_has_its_program():
    assert len(PROGRAMS) == 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run(name, tmp_path, monkeypatch, capsys):
    made = write_chat_llama(tmp_path / "tiny", context=512)
    monkeypatch.setattr("ipex_lookahead.llm.MAX_NEW_TOKENS", 16)  # a tiny model never ends by itself
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path / "cache"))
    exec(compile(MODELS.sub(lambda _: repr(str(made)), PROGRAMS[name]), name, "exec"), {"__name__": "page"})
    assert capsys.readouterr().out
