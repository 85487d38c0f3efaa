"""The page in a real browser (make test-browser), over the embedded model; its pictures go to build/browser."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from ipex_lookahead.auto import load_text_model
from ipex_lookahead.generation.service import Service
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.run import bind, url
from ipex_lookahead.serving.server import Server, Settings

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; make test-browser has it")

PICTURES = Path(__file__).resolve().parents[2] / "build" / "browser"
PATIENCE = 60_000
KEY = "a-key-of-sixteen-characters"
SAID = "Write <b>HTML</b> for a list of five fruits & <img src=x onerror=alert(1)>"
WIDTH, HEIGHT = 1100, 800


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    model = load_text_model("default", progress=False)
    made = Server(Settings(names=("default",), drafting={"lookahead": "auto"}))
    made.ready(model, lambda one: Service(one, slots=4))
    yield made
    made.close(0.0)


@pytest.fixture
def address(server) -> Iterator[str]:
    bound = bind("127.0.0.1", 0)
    running = uvicorn.Server(
        uvicorn.Config(make_app(server), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=running.run, args=([bound],), daemon=True)
    thread.start()
    yield url(bound)
    running.should_exit = True
    thread.join(60)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(
            executable_path=os.environ.get("IPEX_LOOKAHEAD_CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        yield made
        made.close()


@pytest.fixture
def page(browser, address) -> Iterator[Any]:
    """The page, connected; the test fails where it asked anybody else for anything, or broke its policy."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    made = context.new_page()
    made.set_default_timeout(PATIENCE)
    said, asked = [], []
    refusals = "Failed to load resource"  # the browser's word for every status of 400 and above
    made.on("console", lambda m: said.append(m.text) if m.type == "error" and refusals not in m.text else None)
    made.on("pageerror", lambda error: said.append(str(error)))
    made.on("request", lambda request: asked.append(request.url))
    made.goto(address)
    told(made, "#model", "default")
    yield made
    context.close()
    assert all(one.startswith(address) for one in asked), asked
    assert not said, said


def told(page: Any, place: str, text: Any) -> None:
    """Wait until that is said there. (wait_for_function evaluates strings, which the page's policy forbids.)"""
    playwright.expect(page.locator(place)).to_contain_text(text, timeout=PATIENCE)


def picture(page: Any, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(PICTURES / f"{name}.png"), full_page=True)


def idle(page: Any) -> None:
    playwright.expect(page.locator("#send")).to_be_enabled(timeout=PATIENCE)


def test_a_talk_is_kept_and_coloured(page, server):
    page.fill("#temperature", "0")
    page.fill("#most", "120")
    page.fill("#prompt", SAID)
    page.keyboard.press("Enter")
    page.wait_for_selector("#talk li.assistant .said span")
    idle(page)
    assert "tokens a step" in page.text_content("#figures")
    assert page.locator("#talk li").count() == 2
    assert page.locator("#talk b, #talk img").count() == 0, "what is said is text, not HTML"
    assert page.text_content("#talk li.user .said") == SAID
    page.check("#colour")
    assert page.is_visible("#legend")
    picture(page, "talk")
    before = page.inner_text("#talk")
    page.reload()
    page.wait_for_selector("#talk li.assistant")
    assert page.inner_text("#talk") == before
    page.click("#clear")
    assert page.locator("#talk li").count() == 0
    page.reload()
    assert page.locator("#talk li").count() == 0


def test_the_race_ends_in_identical(page):
    page.fill("#temperature", "0.7")
    page.fill("#most", "200")
    page.fill("#prompt", "Write a Python function that adds two numbers, then call it three times.")
    page.click("#race-it")
    told(page, "#verdict", re.compile("."))
    picture(page, "race")
    assert page.text_content("#verdict").startswith("identical ✓ · sha256 ")
    assert page.text_content("#plain-said") == page.text_content("#ahead-said")
    assert page.text_content("#plain-said")


def test_it_stops_and_says_so(page, server):
    page.fill("#most", "1900")
    page.fill("#prompt", "Count from 1 to 500.")
    page.click("#send")
    page.click("#stop")
    told(page, "#told", "stopped")
    idle(page)


def test_errors_are_told(page):
    page.fill("#prompt", "x x" * 12_000)
    page.click("#send")
    told(page, "#told", "the model holds")
    assert page.input_value("#prompt") == "x x" * 12_000, "it is given back"
    picture(page, "error")


def test_by_keyboard_alone(page):
    page.focus(".skip")
    seen = []
    for _ in range(8):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
    wanted = ["colour", "clear", "prompt", "send", "race-it", "temperature", "most"]
    assert [one for one in seen if one in wanted] == wanted
    nameless = page.evaluate(
        "[...document.querySelectorAll('input,textarea,button')].filter("
        "e => !(e.labels && e.labels.length) && !e.textContent.trim()).map(e => e.id)"
    )
    assert nameless == []
    assert page.evaluate("[...document.querySelectorAll('[role=status]')].length") >= 3


def test_keys_are_asked_for(browser, address, server):
    object.__setattr__(server.settings, "keys", Keys([KEY]))
    try:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        page.wait_for_selector("#key", state="visible")
        page.fill("#key", KEY)
        page.press("#key", "Tab")
        told(page, "#model", "default")
        assert KEY not in json.dumps(context.storage_state())
        context.close()
    finally:
        object.__setattr__(server.settings, "keys", Keys())


def test_on_a_small_and_dark_screen(browser, address):
    context = browser.new_context(viewport={"width": 390, "height": 700}, color_scheme="dark")
    page = context.new_page()
    page.goto(address)
    told(page, "#model", "default")
    picture(page, "small")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    context.close()
