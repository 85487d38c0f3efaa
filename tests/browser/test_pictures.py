"""The page at the widths of a phone, a tablet and a desktop, light and dark; the pictures go to build/browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.driving import MARKDOWN, PATIENCE, expect, idle, picture, scripted, told, with_meta, write

LONG = [
    "Merge sort splits the list, sorts both halves and **merges** them. It takes `O(n log n)` comparisons.\n\n",
    "```python\ndef merge(a, b):\n    result = []\n    while a and b:  # take the smaller head\n",
    "        result.append((a if a[0] <= b[0] else b).pop(0))\n    return result + a + b\n```\n\n",
    "### When to use it\n\n1. The input is *large*.\n2. Order of equal items matters:\n   - records\n   - log lines\n",
    "\n| method | average | worst case | stable | memory |\n|:--|--:|--:|:-:|--:|\n",
    "| merge sort | n log n | n log n | yes | n |\n| quicksort | n log n | n² | no | log n |\n",
    "| heapsort | n log n | n log n | no | 1 |\n\n> Measure before you choose.\n",
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_pictures(browser: Any, address: str, width: int, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 844 if width < 800 else 800}, color_scheme=scheme, has_touch=width == 390
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    with_meta(page, id="Qwen3-4B-Instruct-Q4_K_M", meta={"thinking_switch": True})
    page.goto(address)
    told(page, "#model", "Qwen3")
    picture(page, f"{width}-{scheme}-empty")
    scripted(page, {"content": "Hello! How can I help you today?"}, predicted_n=9)
    write(page, "Hello")
    told(page, "#talk .markdown", "today")
    idle(page)
    picture(page, f"{width}-{scheme}-short")
    thought = {"reasoning_content": "The user wants a sort. Merge sort is stable."}
    said = [{"content": one, "ids": [i]} for i, one in enumerate(LONG)]
    scripted(page, thought, *said, reason="length", predicted_n=1024)
    write(page, "How does merge sort work, and when should I use it rather than quicksort? Show code and a table.")
    told(page, "#talk li:last-child .code-comment", "# take")
    idle(page)
    page.click("#talk .thought summary >> visible=true")
    picture(page, f"{width}-{scheme}-long")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("document.all.main.scrollTop -= 420")
    picture(page, f"{width}-{scheme}-long-above")
    page.click("#about")
    picture(page, f"{width}-{scheme}-model")
    page.keyboard.press("Escape")
    page.click("#more")
    picture(page, f"{width}-{scheme}-menu")
    page.keyboard.press("Escape")
    if page.is_visible("#menu"):
        page.click("#menu")
    page.click("#settings > summary")
    expect(page.locator("#temperature")).to_be_visible()
    picture(page, f"{width}-{scheme}-settings")
    page.keyboard.press("Escape")
    scripted(page, *({"content": one} for one in MARKDOWN), reason=None)
    write(page, "Again, please")
    told(page, "#notice", "broken off")
    picture(page, f"{width}-{scheme}-error")
    context.close()
