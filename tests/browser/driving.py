"""What the tests of the page do to it, and how they wait for what it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; make test-browser has it")
expect = playwright.expect

PICTURES = Path(__file__).resolve().parents[2] / "build" / "browser"
PATIENCE = 60_000
WIDTH, HEIGHT = 1280, 800
CODE = "def f(x):\n    return sorted(x)  # why\n"
MARKDOWN = ["# Sort", "ing\n\nSee [it](https://x.y), not <b>b</b> or [this](javascript:alert(1)).\n\n",
            f"```python\n{CODE}```\n\n", "| a | b |\n|:--|--:|\n| 1 | 2 |\n\n> So be it.\n"]  # fmt: skip
LAST = "#talk li.assistant:last-child"


def told(page: Any, place: str, text: Any) -> None:
    """Wait for text at a place. (wait_for_function evaluates strings, which the page's policy forbids.)"""
    expect(page.locator(place)).to_contain_text(text, timeout=PATIENCE)


def picture(page: Any, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(PICTURES / f"{name}.png"))


def idle(page: Any) -> None:
    expect(page.locator("#send")).to_be_visible(timeout=PATIENCE)


def write(page: Any, text: str) -> None:
    """Send a message."""
    page.fill("#prompt", text)
    page.keyboard.press("Enter")


def ask(page: Any, text: str, most: int = 60) -> None:
    """Send a message for a greedy answer of a few tokens, and wait for the end."""
    set_up(page, temperature="0", most=str(most))
    write(page, text)
    page.wait_for_selector(f"{LAST}:not([aria-busy]) .figures summary")
    idle(page)


def set_up(page: Any, **values: str) -> None:
    """Set fields of the settings, which are opened for it."""
    if page.get_attribute("#settings", "open") is None:
        page.click("#settings > summary")
    for name, value in values.items():
        page.fill(f"#{name}", value)
        page.press(f"#{name}", "Tab")


def act(page: Any, name: str) -> None:
    """Click an entry of the conversation's menu."""
    page.click("#more")
    page.click(f"#{name}")


def timings(**fields: Any) -> dict[str, Any]:
    """Statistics as the server sends them."""
    return {
        "cache_n": 0, "prompt_n": 10, "predicted_n": 20, "predicted_per_second": 40.0, "tokens_per_step": 2.0,
        "draft_n": 8, "draft_n_accepted": 4, "seed": None, "repeats_itself": False, **fields,
    }  # fmt: skip


def scripted(page: Any, *deltas: dict[str, Any], reason: str | None = "stop", **stats: Any) -> list[dict[str, Any]]:
    """Answer the next requests with these deltas; return the list of the requests' bodies.

    A delta's ``ids`` are its token ids, a delta ``{"comment": text}`` is a comment. Without a reason, the answer breaks
    off; with ``stats`` it has statistics.
    """
    asked: list[dict[str, Any]] = []
    lines = []
    for one in deltas:
        if "comment" in one:
            lines.append(f": {one['comment']}\n\n")
            continue
        said = {name: value for name, value in one.items() if name != "ids"}
        choice = {"delta": said, "finish_reason": None, "token_ids": one.get("ids", [])}
        trace = [{"text": one.get("reasoning_content", "") + one.get("content", ""), "source": None}]
        lines.append(f"data: {json.dumps({'choices': [choice], 'draft_trace': trace})}\n\n")
    if reason is not None:
        last: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": reason}]}
        lines.append(f"data: {json.dumps(last | ({'timings': timings(**stats)} if stats else {}))}\n\n")

    def answer(route: Any) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(status=200, content_type="text/event-stream", body="".join(lines))

    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", answer)
    return asked


def dripping(page: Any, lines: int) -> None:
    """Answer the next request with this number of lines, one every 30 ms."""
    page.evaluate(
        """(lines) => {
          const real = window.fetch;
          const event = (delta, reason, ids) => new TextEncoder().encode(
            "data: " + JSON.stringify({ choices: [{ delta, finish_reason: reason, token_ids: ids }] }) + "\\n\\n");
          window.fetch = (path, init) => {
            if (!path.includes("chat/completions")) return real(path, init);
            let line = 0;
            const body = new ReadableStream({
              start: (to) => init.signal.addEventListener("abort", () => to.error(init.signal.reason)),
              pull: async (to) => {
                await new Promise((done) => setTimeout(done, 30));
                if (init.signal.aborted) return;
                const next = { content: `- line ${line}\\n` };
                to.enqueue(line < lines ? event(next, null, [line]) : event({}, "stop", []));
                if (line++ === lines) to.close();
              },
            });
            return Promise.resolve(new Response(body));
          };
        }""",
        lines,
    )


def with_meta(page: Any, **fields: Any) -> None:
    """Change what ``/v1/models`` reports of the model, for pages that are opened from now on."""

    def answer(route: Any) -> None:
        found = route.fetch().json()
        found["data"][0]["meta"] |= fields.get("meta", {})
        found["data"][0] |= {name: value for name, value in fields.items() if name != "meta"}
        route.fulfill(json=found)

    page.route("**/v1/models", answer)


def from_end(page: Any) -> float:
    """Pixels between the visible part of the conversation and its end."""
    found = page.evaluate("(({scrollHeight: h, clientHeight: c, scrollTop: t}) => h - c - t)(document.all.main)")
    return float(found)
