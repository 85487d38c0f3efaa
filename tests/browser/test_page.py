"""Answers on the page: as they come, as Markdown, stopped, failed, and from the keyboard."""

from __future__ import annotations

import re
import time
from typing import Any

from tests.browser.driving import (
    CODE,
    HEIGHT,
    LAST,
    MARKDOWN,
    WIDTH,
    act,
    ask,
    dripping,
    expect,
    from_end,
    idle,
    picture,
    scripted,
    set_up,
    told,
    write,
)

SAID = "Write <b>HTML</b> for a list of five fruits & <img src=x onerror=alert(1)>"


def test_a_conversation_is_stored_and_colored(page: Any) -> None:
    ask(page, SAID, 120)
    assert "tokens per step" in page.text_content("#talk li.assistant .figures")
    assert page.locator("#talk > li").count() == 2
    assert page.locator("#talk b, #talk img").count() == 0, "what is said is text, not HTML"
    assert page.text_content("#talk li.user .said") == SAID
    page.check("#color")
    assert page.is_visible("#legend")
    assert page.is_visible("#talk li.assistant .written")
    assert not page.is_visible("#talk li.assistant .markdown")
    picture(page, "colored")
    page.uncheck("#color")
    before = page.inner_text("#talk")
    page.reload()
    expect(page.locator("#talk")).to_have_text(re.compile(".{40}", re.DOTALL))
    expect(page.locator("#talk .markdown .said")).to_have_count(0)
    expect(page.locator("#talk")).to_have_text(re.compile(re.escape(before.split()[0])))
    assert page.inner_text("#talk") == before
    page.on("dialog", lambda dialog: dialog.accept())
    act(page, "delete")
    assert page.locator("#talk > li").count() == 0
    page.reload()
    assert page.locator("#talk > li").count() == 0


def test_it_follows_the_answer_until_the_reader_scrolls_up(page: Any) -> None:
    dripping(page, 1000)
    write(page, "Count")
    scrolled = "() => document.all.main.scrollTop"
    deadline = time.monotonic() + 60
    while page.evaluate(scrolled) < 200:
        assert time.monotonic() < deadline, "nothing has scrolled"
        page.wait_for_timeout(50)
    end = "({scrollHeight: h, clientHeight: c, scrollTop: t}) => h - c - t"
    for _ in range(5):
        tall = page.evaluate("document.all.main.scrollHeight")
        page.wait_for_function(
            f"(tall) => document.all.main.scrollHeight > tall && ({end})(document.all.main) < 100", arg=tall
        )  # it follows
    assert not page.is_visible("#down")
    page.mouse.move(WIDTH / 2, HEIGHT / 2)
    page.mouse.wheel(0, -150)
    page.wait_for_selector("#down", state="visible")
    stayed = page.evaluate(scrolled)
    tall = page.evaluate("document.all.main.scrollHeight")
    while page.evaluate("document.all.main.scrollHeight") < tall + 40:
        assert time.monotonic() < deadline, "the answer has ended too early"
        page.wait_for_timeout(50)
    assert page.evaluate(scrolled) == stayed, "who has scrolled up is left there"
    page.click("#down")
    expect(page.locator("#down")).to_be_hidden()
    assert from_end(page) < 100
    page.click("#stop")
    told(page, f"{LAST} .rest", "Stopped")
    idle(page)


def test_what_has_come_outlives_a_reload(page: Any) -> None:
    dripping(page, 1000)
    write(page, "Count")
    told(page, "#talk li.assistant .markdown", "line 9")
    page.reload()
    told(page, "#talk li.assistant .markdown", "line 9")
    idle(page)


def test_markdown_code_and_thoughts(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    scripted(page, {"reasoning_content": "They want *code*."}, *({"content": one} for one in MARKDOWN))
    write(page, "Sort, please")
    said = "#talk li.assistant .markdown"
    told(page, f"{said} .code-comment", "# why")
    assert page.locator(f"{said} h3").inner_text() == "Sorting"
    assert page.locator(f"{said} td").all_inner_texts() == ["1", "2"]
    assert page.get_attribute(f"{said} a", "rel") == "noopener noreferrer"
    assert page.locator(f"{said} a").count() == 1, "an address that runs something is no link"
    assert page.locator(f"{said} :is(img, script, b)").count() == 0
    page.click(f"{said} .bar button")
    told(page, "#status", "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == CODE
    assert not page.is_visible("#talk .thought .said")
    page.click("#talk .thought summary")
    assert page.inner_text("#talk .thought .said") == "They want *code*."
    picture(page, "markdown")


def test_it_streams_without_flicker(page: Any) -> None:
    """Blocks that stand are not made anew while the last one grows; nor is what is selected in them lost."""
    page.evaluate(
        """async () => {
          const { Markdown } = await import("./page/markdown.js");
          const place = document.createElement("div");
          document.getElementById("main").append(place);
          const shown = new Markdown(place);
          shown.put("# One\\n\\n```python\\nx = 1\\n");
          await shown.working;
          window.stood = [place.firstChild, place.querySelector("pre"), place.querySelector(".code-number")];
          shown.put("# One\\n\\n```python\\nx = 1\\ny = 2\\n```\\nTwo [a]\\n\\n");
          await shown.working;
          await shown.end("# One\\n\\n```python\\nx = 1\\ny = 2\\n```\\nTwo [a]\\n\\n[a]: https://x.y\\n");
          window.place = place;
        }"""
    )
    assert page.evaluate("stood.every((one) => place.contains(one))")
    assert page.evaluate("[...place.children].map((one) => one.tagName)") == ["H3", "DIV", "P"]
    assert page.inner_text("pre") == "x = 1\ny = 2\n"
    assert page.get_attribute("p a", "href") == "https://x.y", "a definition that comes late is heeded"


def test_the_race_ends_in_identical(page: Any) -> None:
    set_up(page, temperature="0.7", most="120")
    page.fill("#prompt", "Write a Python function that adds two numbers, then call it three times.")
    act(page, "race-it")
    assert not page.is_visible("#actions")
    told(page, "#verdict", re.compile("."))
    assert "the same request twice" in page.inner_text("#race-what")
    picture(page, "race")
    assert page.text_content("#verdict").startswith("identical ✓ · sha256 ")
    assert page.text_content("#plain-said") == page.text_content("#ahead-said")
    assert page.text_content("#plain-said")
    idle(page)


def test_a_race_takes_the_last_question(page: Any) -> None:
    act(page, "race-it")
    told(page, "#notice", "Write a message first")
    asked = scripted(page, {"content": "One"}, seed=3)
    write(page, "first")
    told(page, f"{LAST} .markdown", "One")
    idle(page)
    act(page, "race-it")
    told(page, "#verdict", "identical")
    assert [one["messages"] for one in asked[1:]] == [[{"role": "user", "content": "first"}]] * 2
    assert asked[1]["seed"] == asked[2]["seed"]
    assert asked[1]["lookahead"] == 0


def test_errors_are_shown_above_the_message(page: Any) -> None:
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=500, json={"error": {"message": "no luck"}})
    )
    write(page, "x\nx")
    told(page, "#notice", "No luck")
    assert page.input_value("#prompt") == "x\nx", "it is given back"
    assert page.locator("#talk > li").count() == 0
    error, message = (page.locator(one).bounding_box() for one in ("#notice", ".composer"))
    assert 0 <= message["y"] - error["y"] - error["height"] < 30
    assert page.get_attribute("#notice", "role") == "alert"
    picture(page, "error")


def test_a_failed_request_is_tried_again(page: Any) -> None:
    page.route("**/v1/chat/completions", lambda route: route.abort())
    set_up(page, temperature="0", most="20")
    write(page, "Say hello.")
    told(page, "#notice", "The server cannot be reached")
    assert page.input_value("#prompt") == "Say hello."
    page.unroute("**/v1/chat/completions")
    page.click("#notice button")
    told(page, "#talk li.assistant .figures", "tokens per step")
    assert page.input_value("#prompt") == ""
    assert page.inner_text("#notice") == ""


def test_an_answer_that_breaks_off_is_kept(page: Any) -> None:
    scripted(page, {"content": "The first half"}, reason=None)
    write(page, "Go on")
    told(page, "#notice", "broken off")
    idle(page)
    told(page, "#talk li.assistant .markdown", "The first half")
    scripted(page, {"content": "Whole"})
    page.click("#notice button")
    told(page, "#talk li.assistant .markdown", "Whole")
    assert page.locator("#talk > li").count() == 2, "in place of the other"
