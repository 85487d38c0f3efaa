"""The page by keyboard, by touch, for screen readers, with an API key; what it shows of the model; the settings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.serving.keys import Keys
from tests.browser.driving import (
    LAST,
    MARKDOWN,
    PATIENCE,
    expect,
    idle,
    picture,
    scripted,
    set_up,
    told,
    with_meta,
    write,
)

KEY = "a-key-of-sixteen-characters"


def test_by_keyboard_alone(page: Any) -> None:
    page.click("#settings > summary")
    page.focus(".skip")
    seen = []
    for _ in range(24):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
    wanted = [
        "new",
        "search",
        "system",
        "most",
        "temperature",
        "top_p",
        "seed",
        "color",
        "about",
        "more",
        "prompt",
        "send",
    ]
    assert [one for one in seen if one in wanted][: len(wanted)] == wanted
    nameless = page.evaluate(
        "[...document.querySelectorAll('input,textarea,select,button')].filter(e => !(e.labels && e.labels.length)"
        " && !e.ariaLabel && !e.textContent.trim()).map(e => e.id)"
    )
    assert nameless == []
    page.focus("#more")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "title"
    page.keyboard.press("Escape")
    assert (page.is_visible("#actions"), page.evaluate("document.activeElement.id")) == (False, "more")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing(browser: Any, address: str, width: int, scheme: str) -> None:
    if "IPEX_LOOKAHEAD_AXE" not in os.environ:
        pytest.skip("axe-core is not there; make test-browser gets it where there is npm")
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    with_meta(page, meta={"thinking_switch": True, "chat_template": False})
    page.goto(address)
    told(page, "#model", "default")
    page.evaluate(Path(os.environ["IPEX_LOOKAHEAD_AXE"]).read_text())

    def check(where: str = "document") -> None:
        found = page.evaluate(
            f"axe.run({where}).then((r) => r.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]))"
        )
        assert found == []

    check()
    said = ({"content": one, "ids": [i]} for i, one in enumerate(MARKDOWN))
    scripted(page, {"reasoning_content": "Hm."}, *said, reason="length", predicted_n=1024)
    for _ in range(2):
        write(page, "Sort, please")
        told(page, f"{LAST} .code-comment", "# why")
        idle(page)
    page.click(f"{LAST} [aria-label='Write another answer']")
    told(page, f"{LAST} .versions", "2/2")
    told(page, f"{LAST} .rest", "limit")
    idle(page)
    check()
    page.route("**/v1/chat/completions", lambda route: route.abort())
    write(page, "This fails")
    told(page, "#notice", "The server cannot be reached")
    for opener in ("#about", "#more"):
        page.click(opener)
        check()
        page.keyboard.press("Escape")
    if width == 390:
        page.click("#menu")
        assert page.is_visible("#new")
    page.click("#settings > summary")
    page.check("#color")
    check("document.all.side" if width == 390 else "document")  # an open sidebar makes the rest of a phone's page inert
    context.close()


def test_the_key_is_requested(browser: Any, address: str, server: Any) -> None:
    object.__setattr__(server.settings, "keys", Keys([KEY]))
    try:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        told(page, "#model", "API key required")
        page.wait_for_selector("#key", state="visible")
        page.fill("#key", KEY)
        page.press("#key", "Tab")
        told(page, "#model", "default")
        assert KEY not in json.dumps(context.storage_state())
        context.close()
    finally:
        object.__setattr__(server.settings, "keys", Keys())


def test_on_a_phone(browser: Any, address: str) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 700}, color_scheme="dark", has_touch=True, is_mobile=True
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    with_meta(page, id="Qwen3-4B-Instruct-Q4_K_M")
    page.goto(address)
    told(page, "#model", "Qwen3-4B-Instruct-Q4_K_M")
    name = "(({scrollWidth: s, clientWidth: c}) => s <= c)(document.all.model)"
    assert page.evaluate(name), "the whole name is readable"
    assert page.evaluate("document.querySelector('form').offsetHeight <= innerHeight / 5")
    scripted(page, *({"content": one} for one in MARKDOWN))
    page.fill("#prompt", "Sort, please\n" * 20)
    assert page.evaluate("document.querySelector('form').offsetHeight <= innerHeight / 5"), "nor with a long message"
    page.tap("#send")
    told(page, "#talk li.assistant .code-comment", "# why")
    picture(page, "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "only the conversation scrolls"
    page.tap("#menu")
    assert page.is_visible("#talks")
    assert page.evaluate("document.activeElement.id") == "close"
    picture(page, "phone-menu")
    page.tap("#talks button")
    assert not page.is_visible("#talks")
    page.tap("#menu")
    page.touchscreen.tap(380, 400)
    assert not page.is_visible("#talks"), "a tap next to the sidebar closes it"
    context.close()


def test_the_model_and_the_address_are_copied(page: Any, address: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    assert page.inner_text("#address") == f"{address.rstrip('/')}/v1"
    page.click("#address-row button")
    told(page, "#status", "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"{address.rstrip('/')}/v1"
    page.click("#about")
    assert "8,192 tokens" in page.inner_text("#facts")
    page.click('#facts [aria-label="Copy the model\'s name"]')
    told(page, "#facts-list", "default")
    page.wait_for_timeout(100)
    assert page.evaluate("navigator.clipboard.readText()") == "default"
    page.click("#main")
    assert not page.is_visible("#facts")


def test_a_suggestion_is_sent(page: Any) -> None:
    asked = scripted(page, {"content": "Rayleigh"})
    page.click("#suggestions >> text=Explain a concept")
    told(page, "#talk .markdown", "Rayleigh")
    assert "sky" in asked[0]["messages"][0]["content"]
    assert not page.is_visible("#empty")
    idle(page)


def test_the_settings_are_sent_and_stored(page: Any) -> None:
    asked = scripted(page, {"content": "One"})
    write(page, "first")
    idle(page)
    assert asked[0]["max_tokens"] == 1024
    assert not {"temperature", "top_p", "seed", "enable_thinking"} & asked[0].keys(), "the model's own values"
    assert page.get_attribute("#most", "placeholder") == "no limit"
    set_up(page, temperature="0.5", top_p="0.8", seed="7", most="")
    page.reload()
    told(page, "#model", "default")
    write(page, "second")
    expect(page.locator("#talk > li")).to_have_count(4)
    idle(page)
    found = {name: asked[1].get(name) for name in ("temperature", "top_p", "seed", "max_tokens")}
    assert found == {"temperature": 0.5, "top_p": 0.8, "seed": 7, "max_tokens": None}
    assert not page.is_visible("#temperature"), "the settings are folded"


def test_thinking_can_be_switched_where_the_template_knows_it(page: Any) -> None:
    assert not page.is_visible("#thinking")
    with_meta(page, meta={"thinking_switch": True})
    page.reload()
    page.select_option("#thinking", "off")
    asked = scripted(page, {"content": "One"})
    write(page, "first")
    idle(page)
    assert asked[0]["enable_thinking"] is False


def test_a_model_without_a_chat_template_is_named(page: Any) -> None:
    assert not page.is_visible("#no-template")
    with_meta(page, meta={"chat_template": False})
    page.reload()
    page.wait_for_selector("#no-template", state="visible")
    told(page, "#no-template", "no chat template")
