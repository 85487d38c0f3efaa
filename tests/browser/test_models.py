"""The choice between several models on the page, over a server with two of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driving import HEIGHT, LAST, PATIENCE, WIDTH, ask, expect, picture, told
from tests.support.chat_tokenizer import write_chat_llama


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the models ``one`` and ``two``, and ``broken``, whose weights are damaged."""
    folder: Path = tmp_path_factory.mktemp("several")
    names = ("one", "two", "broken")
    for name in names:
        write_chat_llama(folder / name, context=2048)
    weights = folder / "broken" / "model.safetensors"
    options = [part for name in names for part in ("-m", str(folder / name))]
    command = [sys.executable, "-m", "ipex_lookahead", "serve", *options, "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        line = running.stderr.readline()
        found = re.search(r" at (http://[\d.:]+)", line)
        assert found, line
        weights.write_bytes(weights.read_bytes()[:1000])  # damaged after it was listed
        yield found[1]
        running.terminate()
        running.wait(60)


@pytest.fixture
def page(browser: Any, several: str) -> Iterator[Any]:
    """The page of that server."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    made = context.new_page()
    made.set_default_timeout(PATIENCE)
    faults = list[str]()
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.goto(several)
    told(made, "#model", "one")
    yield made
    context.close()
    assert not faults


def pick(page: Any, name: str) -> None:
    if page.is_hidden("#facts"):
        page.click("#about")
    page.click(f'#models [data-model="{name}"]')


def test_a_conversation_continues_with_another_model(page: Any) -> None:
    told(page, "#summary", "not loaded")
    ask(page, "Hello", 20)  # loads the first
    told(page, "#summary", "2,048 tokens")
    pick(page, "two")
    told(page, "#model", "two")
    expect(page.locator('#models [data-model="two"]')).to_have_attribute("aria-current", "true")
    told(page, '#models [data-model="two"]', "loaded")
    page.keyboard.press("Escape")
    sent = []
    page.on("request", lambda one: sent.append(one.post_data_json) if "chat/completions" in one.url else None)
    ask(page, "And now", 20)
    assert (sent[-1]["model"], [one["role"] for one in sent[-1]["messages"]]) == ("two", ["user", "assistant", "user"])
    expect(page.locator("#talk > li")).to_have_count(4)
    assert page.text_content(f"{LAST} .figures").startswith("two · ")
    page.click("#about")
    for name in ("one", "two"):
        told(page, f'#models [data-model="{name}"]', re.compile(r"loaded · 1 answer · [\d.]+ tok/s"))
    picture(page, "models")
    page.reload()
    told(page, "#model", "two")


def test_a_model_that_cannot_be_loaded_leaves_the_other(page: Any) -> None:
    pick(page, "broken")
    told(page, "#notice", "Broken cannot be used: ")
    told(page, "#model", "one")
    told(page, '#models [data-model="broken"]', "could not be loaded")
    page.keyboard.press("Escape")
    ask(page, "Hello", 20)
    assert page.text_content(f"{LAST} .figures").startswith("one · ")


def test_a_model_is_not_changed_during_an_answer(page: Any) -> None:
    page.fill("#prompt", "Hello")
    page.route("**/v1/chat/completions", lambda route: None)  # never answers
    page.keyboard.press("Enter")
    expect(page.locator("#stop")).to_be_visible()
    pick(page, "two")
    told(page, "#notice", "Stop the answer")
    told(page, "#model", "one")
