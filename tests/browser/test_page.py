"""The page in a real browser (make test-browser), over the embedded model; its pictures go to build/browser."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.run import bind, url
from ipex_lookahead.serving.server import Server, Settings

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; make test-browser has it")

PICTURES = Path(__file__).resolve().parents[2] / "build" / "browser"
PATIENCE = 60_000
KEY = "a-key-of-sixteen-characters"
SAID = "Write <b>HTML</b> for a list of five fruits & <img src=x onerror=alert(1)>"
WIDTH, HEIGHT = 1200, 800
CODE = "def f(x):\n    return sorted(x)  # why\n"
MARKDOWN = ["# Sort", "ing\n\nSee [it](https://x.y), not <b>b</b> or [this](javascript:alert(1)).\n\n",
            f"```python\n{CODE}```\n\n", "| a | b |\n|:--|--:|\n| 1 | 2 |\n\n> So be it.\n"]  # fmt: skip
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
).split()


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
            executable_path=os.environ.get("IPEX_LOOKAHEAD_CHROMIUM", "/usr/bin/chromium"), args=FLAGS
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
    playwright.expect(page.locator("#send")).to_be_visible(timeout=PATIENCE)


def ask(page: Any, text: str, most: int = 60) -> None:
    """Ask with greedy answers of few tokens, and wait for the end."""
    set_up(page, "0", most)
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    page.wait_for_selector("#talk li.assistant:last-child:not([aria-busy]) .figures")
    idle(page)


def set_up(page: Any, temperature: str, most: int) -> None:
    page.fill("#temperature", temperature)
    page.fill("#most", str(most))


def scripted(page: Any, *deltas: dict[str, str], end: bool = True) -> list[dict[str, Any]]:
    """What is asked next is answered so; gives the requests' bodies."""
    asked: list[dict[str, Any]] = []
    events = [{"choices": [{"delta": one, "finish_reason": None}]} for one in deltas]
    events += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}] if end else []
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in events)

    def answer(route: Any) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", answer)
    return asked


def dripping(page: Any, lines: int) -> None:
    """What is asked next is answered with so many lines, one every 30 ms."""
    page.evaluate(
        """(lines) => {
          const real = window.fetch;
          const event = (delta, reason) => new TextEncoder().encode(
            "data: " + JSON.stringify({ choices: [{ delta, finish_reason: reason }] }) + "\\n\\n");
          window.fetch = (path, init) => {
            if (!path.includes("chat/completions")) return real(path, init);
            let line = 0;
            const body = new ReadableStream({
              start: (to) => init.signal.addEventListener("abort", () => to.error(init.signal.reason)),
              pull: async (to) => {
                await new Promise((done) => setTimeout(done, 30));
                if (init.signal.aborted) return;
                to.enqueue(line < lines ? event({ content: `- line ${line}\\n` }, null) : event({}, "stop"));
                if (line++ === lines) to.close();
              },
            });
            return Promise.resolve(new Response(body));
          };
        }""",
        lines,
    )


def from_end(page: Any) -> float:
    """Pixels between what is seen of the talk and its end."""
    found = page.evaluate("(({scrollHeight: h, clientHeight: c, scrollTop: t}) => h - c - t)(document.all.main)")
    return float(found)


def test_a_talk_is_kept_and_coloured(page):
    ask(page, SAID, 120)
    assert "tokens a step" in page.text_content("#talk li.assistant .figures")
    assert page.locator("#talk > li").count() == 2
    assert page.locator("#talk b, #talk img").count() == 0, "what is said is text, not HTML"
    assert page.text_content("#talk li.user .said") == SAID
    page.check("#colour")
    assert page.is_visible("#legend")
    assert page.is_visible("#talk li.assistant .written")
    assert not page.is_visible("#talk li.assistant .markdown")
    picture(page, "coloured")
    page.uncheck("#colour")
    before = page.inner_text("#talk")
    page.reload()
    playwright.expect(page.locator("#talk")).to_have_text(re.compile(".{40}", re.DOTALL))
    playwright.expect(page.locator("#talk .markdown .said")).to_have_count(0)
    assert page.inner_text("#talk") == before
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#delete")
    assert page.locator("#talk > li").count() == 0
    page.reload()
    assert page.locator("#talk > li").count() == 0


def test_it_follows_the_answer_until_the_reader_scrolls_up(page):
    dripping(page, 1000)
    page.fill("#prompt", "Count")
    page.keyboard.press("Enter")
    scrolled = "() => document.all.main.scrollTop"
    deadline = time.monotonic() + 60
    while page.evaluate(scrolled) < 200:
        assert time.monotonic() < deadline, "nothing has scrolled"
        page.wait_for_timeout(50)
    for _ in range(5):
        page.wait_for_timeout(100)
        assert from_end(page) < 100, "it follows"
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
    playwright.expect(page.locator("#down")).to_be_hidden()
    assert from_end(page) < 100
    page.click("#stop")
    told(page, "#notice", "Stopped")
    idle(page)


def test_what_has_come_outlives_a_reload(page):
    dripping(page, 1000)
    page.fill("#prompt", "Count")
    page.keyboard.press("Enter")
    told(page, "#talk li.assistant .markdown", "line 9")
    page.reload()
    told(page, "#talk li.assistant .markdown", "line 9")
    idle(page)


def test_markdown_code_and_thoughts(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    scripted(page, {"reasoning_content": "They want *code*."}, *({"content": one} for one in MARKDOWN))
    page.fill("#prompt", "Sort, please")
    page.keyboard.press("Enter")
    said = "#talk li.assistant .markdown"
    told(page, f"{said} .code-comment", "# why")
    assert page.locator(f"{said} h3").inner_text() == "Sorting"
    assert page.locator(f"{said} td").all_inner_texts() == ["1", "2"]
    assert page.get_attribute(f"{said} a", "rel") == "noopener noreferrer"
    assert page.locator(f"{said} a").count() == 1, "an address that runs something is no link"
    assert page.locator(f"{said} :is(img, script, b)").count() == 0
    page.click(f"{said} .bar button")
    told(page, f"{said} .bar button", "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == CODE
    assert not page.is_visible("#talk .thought .said")
    page.click("#talk .thought summary")
    assert page.inner_text("#talk .thought .said") == "They want *code*."
    picture(page, "markdown")


def test_it_streams_without_flicker(page):
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


def test_the_race_ends_in_identical(page):
    assert "the same request twice" in page.inner_text("#race-what")
    set_up(page, "0.7", 120)
    page.fill("#prompt", "Write a Python function that adds two numbers, then call it three times.")
    page.click("#race-it")
    told(page, "#verdict", re.compile("."))
    assert page.is_visible("#race-what")
    picture(page, "race")
    assert page.text_content("#verdict").startswith("identical ✓ · sha256 ")
    assert page.text_content("#plain-said") == page.text_content("#ahead-said")
    assert page.text_content("#plain-said")


def test_it_stops_and_says_so(page, server):
    page.fill("#most", "1900")
    page.fill("#prompt", "Count from 1 to 500.")
    page.click("#send")
    page.click("#stop")
    told(page, "#notice", "Stopped")
    idle(page)


def test_errors_are_told_above_the_message(page):
    page.fill("#prompt", "x x" * 12_000)
    page.click("#send")
    told(page, "#notice", "the model holds")
    assert page.input_value("#prompt") == "x x" * 12_000, "it is given back"
    assert page.locator("#talk > li").count() == 0
    error, message = (page.locator(one).bounding_box() for one in ("#notice", "#prompt"))
    assert 0 <= message["y"] - error["y"] - error["height"] < 30
    assert page.get_attribute("#notice", "role") == "alert"
    picture(page, "error")


def test_a_failed_request_is_tried_again(page):
    page.route("**/v1/chat/completions", lambda route: route.abort())
    set_up(page, "0", 20)
    page.fill("#prompt", "Say hello.")
    page.keyboard.press("Enter")
    told(page, "#notice", "the server cannot be reached")
    assert page.input_value("#prompt") == "Say hello."
    page.unroute("**/v1/chat/completions")
    page.click("#notice button")
    told(page, "#talk li.assistant .figures", "tokens a step")
    assert page.input_value("#prompt") == ""
    assert page.inner_text("#notice") == ""


def test_an_answer_that_breaks_off_is_kept(page):
    scripted(page, {"content": "The first half"}, end=False)
    page.fill("#prompt", "Go on")
    page.keyboard.press("Enter")
    told(page, "#notice", "broken off")
    told(page, "#talk li.assistant .markdown", "The first half")
    scripted(page, {"content": "Whole"})
    page.click("#notice button")
    told(page, "#talk li.assistant .markdown", "Whole")
    assert page.locator("#talk > li").count() == 2, "in place of the other"


def test_edit_and_ask_again(page):
    asked = scripted(page, {"content": "One"})
    page.fill("#system", "Be brief.")
    page.fill("#temperature", "0.3")
    for text in ("first", "second"):
        page.fill("#prompt", text)
        page.keyboard.press("Enter")
        told(page, "#talk li:last-child .markdown", "One")
        idle(page)
    system = {"role": "system", "content": "Be brief."}
    assert [m["content"] for m in asked[1]["messages"]] == ["Be brief.", "first", "One", "second"]
    assert (asked[1]["temperature"], asked[1]["messages"][0]) == (0.3, system)
    page.click("#talk li:first-child >> text=Edit")
    assert page.input_value("#prompt") == "first"
    page.keyboard.press("Escape")
    assert (page.input_value("#prompt"), page.is_visible("#editing")) == ("", False)
    page.click("#talk li:first-child >> text=Edit")
    page.fill("#prompt", "changed")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#talk > li")).to_have_count(2)
    idle(page)
    assert asked[2]["messages"] == [system, {"role": "user", "content": "changed"}]
    page.click("text=Ask again")
    playwright.expect(page.locator("#talk > li")).to_have_count(2)
    idle(page)
    assert asked[3]["messages"] == asked[2]["messages"]
    assert "seed" in asked[3], "another answer is wanted"


def test_several_conversations_and_their_export(page):
    scripted(page, {"content": "It *is*."})
    for text in ("Is it?", "Another\nline"):
        page.click("#new")
        page.fill("#prompt", text)
        page.keyboard.press("Enter")
        told(page, "#talk .markdown em", "is")
        idle(page)
    assert page.locator("#talks button").all_inner_texts() == ["Another", "Is it?"]
    page.click("#talks >> text=Is it?")
    told(page, "#talk li.user .said", "Is it?")
    page.fill("#title", "Being")
    page.press("#title", "Tab")
    assert page.locator("#talks button").all_inner_texts() == ["Being", "Another"]
    page.reload()
    assert page.locator("#talks button").all_inner_texts() == ["Being", "Another"]
    with page.expect_download() as found:
        page.click("#export-markdown")
    assert found.value.suggested_filename == "Being.md"
    assert Path(found.value.path()).read_text() == "# Being\n\n## You\n\nIs it?\n\n## Model\n\nIt *is*.\n"
    with page.expect_download() as found:
        page.click("#export-json")
    said = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "It *is*."}]
    kept = json.loads(Path(found.value.path()).read_text())
    assert (kept["title"], kept["messages"]) == ("Being", said)


def test_by_keyboard_alone(page):
    page.focus(".skip")
    seen = []
    for _ in range(16):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
    wanted = ["new", "title", "system", "temperature", "most", "colour", "prompt", "send", "race-it"]
    assert [one for one in seen if one in wanted][: len(wanted)] == wanted
    nameless = page.evaluate(
        "[...document.querySelectorAll('input,textarea,button')].filter("
        "e => !(e.labels && e.labels.length) && !e.textContent.trim()).map(e => e.id)"
    )
    assert nameless == []
    assert page.evaluate("[...document.querySelectorAll('[role=status]')].length") >= 3


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing(browser, address, width, scheme):
    if "IPEX_LOOKAHEAD_AXE" not in os.environ:
        pytest.skip("axe-core is not there; make test-browser gets it where there is npm")
    axe = Path(os.environ["IPEX_LOOKAHEAD_AXE"]).read_text()
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    told(page, "#model", "default")
    scripted(page, {"reasoning_content": "Hm."}, *({"content": one} for one in MARKDOWN))
    page.fill("#prompt", "Sort, please")
    page.keyboard.press("Enter")
    told(page, "#talk li.assistant .code-comment", "# why")
    idle(page)
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.fill("#prompt", "This fails")
    page.keyboard.press("Enter")
    told(page, "#notice", "the server cannot be reached")
    page.evaluate(axe)
    found = page.evaluate("axe.run(document).then((r) => r.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]))")
    assert found == []
    if width == 390:
        page.click("#menu")
        assert page.is_visible("#new")
        again = page.evaluate(
            "axe.run(document).then((r) => r.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]))"
        )
        assert again == []
    picture(page, f"axe-{width}-{scheme}")
    context.close()


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


def test_on_a_phone(browser, address):
    context = browser.new_context(
        viewport={"width": 390, "height": 700}, color_scheme="dark", has_touch=True, is_mobile=True
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    told(page, "#model", "default")
    assert page.evaluate("document.querySelector('form').offsetHeight <= innerHeight / 5")
    scripted(page, *({"content": one} for one in MARKDOWN))
    page.fill("#prompt", "Sort, please\n" * 20)
    assert page.evaluate("document.querySelector('form').offsetHeight <= innerHeight / 5"), "nor when much is written"
    page.tap("#send")
    told(page, "#talk li.assistant .code-comment", "# why")
    picture(page, "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "only the talk scrolls"
    page.tap("#menu")
    assert page.is_visible("#talks")
    picture(page, "phone-menu")
    page.tap("#talks button")
    assert not page.is_visible("#talks")
    context.close()
