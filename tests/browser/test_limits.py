"""Answers that end before they are complete: at the limit, in a loop, stopped, and at the end of the context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.driving import (
    LAST,
    ask,
    dripping,
    expect,
    idle,
    picture,
    scripted,
    set_up,
    timings,
    told,
    with_meta,
    write,
)

REST = f"{LAST} .rest"


@pytest.mark.parametrize("temperature", ["0", "1.2"])
def test_a_continued_answer_is_the_one_without_the_limit(page: Any, temperature: str) -> None:
    set_up(page, temperature=temperature, seed="7", most="60")
    question = "Write a story about a café, with a table and code."
    write(page, question)
    told(page, REST, "60 tokens")
    idle(page)
    page.reload()
    told(page, REST, "60 tokens")
    set_up(page, most="70")
    page.click(f"{REST} >> text=Continue")
    told(page, f"{LAST} .figures", "130 tokens")
    idle(page)
    continued = page.evaluate("JSON.parse(Object.values(localStorage).find((one) => one.includes('messages')))")
    page.click("#new")
    set_up(page, most="130")
    write(page, question)
    told(page, f"{LAST} .figures", "130 tokens")
    idle(page)
    talks = "Object.values(localStorage).filter((one) => one.includes('messages')).map((one) => JSON.parse(one))"
    stored = page.evaluate(f"{talks}.map((one) => one.messages[1])")
    assert len(stored) == 2
    assert stored[0]["content"] == stored[1]["content"]
    assert stored[0]["ids"] == stored[1]["ids"]
    for one in stored:
        assert "".join(text for _, text in one["trace"]) == one["content"]
    assert continued["messages"][1]["limit"] == 70


def test_a_stopped_answer_is_continued_with_its_tokens(page: Any) -> None:
    dripping(page, 1000)
    write(page, "Count")
    told(page, f"{LAST} .markdown", "line 9")
    page.click("#stop")
    told(page, REST, "Stopped")
    page.reload()
    told(page, REST, "Stopped")
    whole = {"content": "- line 0\n- line 1\n- and more\n", "ids": [0, 1, 7]}
    asked = scripted(page, whole, {"content": "- end", "ids": [8]})
    page.click(f"{REST} >> text=Continue")
    told(page, f"{LAST} .markdown", "end")
    idle(page)
    assert "line 2" not in page.inner_text(f"{LAST} .markdown"), "the server returns the whole answer"
    assert not page.is_visible(REST)
    body = asked[0]
    assert (body["continue_final_message"], body["echo"]) == (True, True)
    said = body["messages"][-1]
    assert said["token_ids"][:10] == list(range(10))
    assert said["role"] == "assistant"


def test_a_failed_continuation_keeps_the_answer(page: Any) -> None:
    scripted(page, {"content": "The first half", "ids": [1, 2]}, reason="length", predicted_n=1024)
    write(page, "Go on")
    told(page, REST, "limit of 1,024 tokens")
    idle(page)
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.click(f"{REST} >> text=Continue")
    told(page, "#notice", "cannot be reached")
    told(page, f"{LAST} .markdown", "The first half")
    idle(page)
    scripted(page, {"content": "The first half and the second", "ids": [1, 2, 3]})
    page.click("#notice >> text=Try again")
    told(page, f"{LAST} .markdown", "and the second")
    idle(page)


def looping(page: Any) -> Callable[[], list[dict[str, Any]]]:
    """Force the model's answers into a loop; return a function that returns the bodies of the page's requests."""
    page.evaluate(
        """() => {
          const real = window.fetch;
          window.bodies = [];
          window.fetch = (path, init) => {
            if (!path.includes("chat/completions")) return real(path, init);
            window.bodies.push(JSON.parse(init.body));
            return real(path, { ...init, body: JSON.stringify({ ...JSON.parse(init.body), ignore_eos: true,
              logit_bias: { 28: 100 } }) });
          };
        }"""
    )
    return lambda: page.evaluate("() => window.bodies")


def test_repetition_is_shown_with_a_button_that_stops(page: Any) -> None:
    """The server's own report of a loop: with the model's answer forced into one."""
    looping(page)
    set_up(page, most="")
    page.uncheck("#stop_loops")
    write(page, "Loop")
    told(page, REST, "repeats itself")
    page.click(f"{REST} >> text=Stop")
    told(page, REST, "Stopped")
    idle(page)
    set_up(page, most="200")
    page.click(f"{REST} >> text=Continue")
    told(page, REST, "Try another temperature")
    picture(page, "repeats")
    assert "tok/s" not in page.inner_text(f"{LAST} .figures"), "the speed of a loop means nothing"
    idle(page)


def test_a_repetition_is_stopped_by_default(page: Any) -> None:
    """Continue goes on with it; the setting is kept."""
    bodies = looping(page)
    set_up(page, most="")
    write(page, "Loop")
    told(page, REST, "stopped because it repeats itself")
    idle(page)
    assert bodies()[0]["stop_loops"] is True
    set_up(page, most="20")
    page.click(f"{REST} >> text=Continue")
    told(page, REST, "limit of 20 tokens")
    assert bodies()[1]["stop_loops"] is False
    page.uncheck("#stop_loops")
    page.reload()
    page.click("#settings > summary")
    assert not page.is_checked("#stop_loops")


def test_a_full_context_offers_to_drop_the_oldest_turns(page: Any) -> None:
    with_meta(page, max_model_len=8192)
    page.reload()
    told(page, "#model", "default")
    ask(page, "Say one.", 10)
    ask(page, "Say two.", 10)
    long = "word " * 4100
    scripted(page, {"content": long, "ids": [1]})
    write(page, long)
    told(page, f"{LAST} .markdown", "word word")
    idle(page)
    page.unroute("**/v1/chat/completions")
    write(page, "Say three.")
    told(page, "#notice", "no longer fits the model's context (8,192 tokens)")
    told(page, "#notice", "Start a new one, or edit an earlier message")
    assert page.input_value("#prompt") == "Say three."
    picture(page, "full")
    page.click("#notice >> text=Drop the oldest turns")
    told(page, "#talk .boundary", "does not see the messages above")
    page.wait_for_selector(f"{LAST}:not([aria-busy]) .figures summary")
    idle(page)
    assert page.input_value("#prompt") == ""
    assert page.locator("#talk li.user").count() == 4, "the dropped turns stay on the screen"
    assert page.inner_text("#talk > .boundary + li.user .said") == "Say three."
    page.reload()
    told(page, "#talk .boundary", "does not see")
    page.click("#talk .boundary button")
    expect(page.locator("#talk .boundary")).to_have_count(0)


def test_an_answer_that_fills_the_context_can_be_continued(page: Any) -> None:
    scripted(page, {"content": "One"})
    write(page, "first")
    idle(page)
    scripted(page, {"content": "Two", "ids": [5, 6]}, reason="length", prompt_n=8000, predicted_n=192)
    write(page, "second")
    told(page, REST, "fills the model's context (8,192 tokens)")
    idle(page)
    asked = scripted(page, {"content": "Two and three", "ids": [5, 6, 7]})
    page.click(f"{REST} >> text=Drop the oldest turns")
    told(page, f"{LAST} .markdown", "and three")
    idle(page)
    sent = [(one["role"], one["content"]) for one in asked[0]["messages"]]
    assert sent == [("user", "second"), ("assistant", "Two")]
    assert timings()["predicted_n"] == 20


def test_one_message_that_is_too_long_is_named(page: Any) -> None:
    write(page, "x x" * 12_000)
    told(page, "#notice", "does not fit the model's context (8,192 tokens). Shorten it.")
    assert page.input_value("#prompt") == "x x" * 12_000
    assert page.locator("#notice button").count() == 0
    idle(page)


def test_new_conversation_is_offered(page: Any) -> None:
    scripted(page, {"content": "One", "ids": [5]}, reason="length", prompt_n=8000, predicted_n=192)
    write(page, "first")
    told(page, REST, "fills")
    idle(page)
    page.click(f"{REST} >> text=New conversation")
    expect(page.locator("#talk > li")).to_have_count(0)
