"""Conversations on the page: versions of messages, several of them, search, export and import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driving import LAST, act, expect, idle, picture, scripted, set_up, told, write


def answered(page: Any, said: str) -> None:
    told(page, f"{LAST} .markdown", said)
    idle(page)


def test_another_answer_is_a_version(page: Any) -> None:
    asked = scripted(page, {"content": "One"}, seed=1)
    write(page, "first")
    answered(page, "One")
    assert page.locator(".versions").count() == 0
    for number, said in ((2, "Two"), (3, "Three")):
        asked += scripted(page, {"content": said}, seed=number)
        page.click(f"{LAST} [aria-label='Write another answer']")
        answered(page, said)
    told(page, f"{LAST} .versions", "3/3")
    page.click("[aria-label='Previous version']")
    told(page, f"{LAST} .versions", "2/3")
    assert page.inner_text(f"{LAST} .markdown") == "Two"
    page.reload()
    told(page, f"{LAST} .versions", "2/3")
    picture(page, "versions")
    asked = scripted(page, {"content": "Next"})
    write(page, "second")
    answered(page, "Next")
    assert [one["content"] for one in asked[0]["messages"]] == ["first", "Two", "second"]
    page.click("[aria-label='Previous version']")
    expect(page.locator("#talk > li")).to_have_count(2)
    assert page.inner_text(f"{LAST} .markdown") == "One"
    assert page.is_disabled("[aria-label='Previous version']")
    page.click("[aria-label='Next version']")
    expect(page.locator("#talk > li")).to_have_count(4)
    assert page.inner_text(f"{LAST} .markdown") == "Next", "a version comes back with what followed it"


def test_earlier_messages_are_not_drawn_anew(page: Any) -> None:
    scripted(page, {"content": "One"})
    write(page, "first")
    answered(page, "One")
    page.evaluate("window.earlier = [...document.querySelectorAll('#talk > li')]")
    write(page, "second")
    expect(page.locator("#talk > li")).to_have_count(4)
    idle(page)
    page.click(f"{LAST} [aria-label='Write another answer']")
    told(page, f"{LAST} .versions", "2/2")
    idle(page)
    assert page.evaluate("earlier.every((one) => one.isConnected)")


def test_another_answer_is_drawn_with_another_seed(page: Any) -> None:
    asked = scripted(page, {"content": "One"})
    write(page, "first")
    answered(page, "One")
    page.click(f"{LAST} [aria-label='Write another answer']")
    told(page, f"{LAST} .versions", "2/2")
    idle(page)
    assert asked[1]["messages"] == asked[0]["messages"]
    assert ("seed" in asked[0], "seed" in asked[1]) == (False, True)


def test_an_edited_message_is_a_version(page: Any) -> None:
    asked = scripted(page, {"content": "One"})
    set_up(page, system="Be brief.", temperature="0.3")
    for text in ("first", "second"):
        write(page, text)
        told(page, "#talk li:last-child .markdown", "One")
        idle(page)
    system = {"role": "system", "content": "Be brief."}
    assert [m["content"] for m in asked[1]["messages"]] == ["Be brief.", "first", "One", "second"]
    assert (asked[1]["temperature"], asked[1]["messages"][0]) == (0.3, system)
    page.click("#talk li:first-child [aria-label='Edit this message']")
    assert page.input_value("#prompt") == "first"
    page.keyboard.press("Escape")
    assert (page.input_value("#prompt"), page.is_visible("#editing")) == ("", False)
    page.click("#talk li:first-child [aria-label='Edit this message']")
    write(page, "changed")
    expect(page.locator("#talk > li")).to_have_count(2)
    idle(page)
    assert asked[2]["messages"] == [system, {"role": "user", "content": "changed"}]
    told(page, "#talk li.user .versions", "2/2")
    page.click("#talk li.user [aria-label='Previous version']")
    expect(page.locator("#talk > li")).to_have_count(4)


def test_a_version_that_fails_leaves_no_trace(page: Any) -> None:
    scripted(page, {"content": "One"})
    write(page, "first")
    answered(page, "One")
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.click(f"{LAST} [aria-label='Write another answer']")
    told(page, "#notice", "cannot be reached")
    idle(page)
    assert page.inner_text(f"{LAST} .markdown") == "One"
    assert page.locator(".versions").count() == 0
    page.click("#talk li:first-child [aria-label='Edit this message']")
    write(page, "changed")
    told(page, "#notice", "cannot be reached")
    idle(page)
    assert page.inner_text("#talk li.user .said") == "first"
    assert page.input_value("#prompt") == "changed"
    assert page.is_visible("#editing")
    page.click("#cancel")
    assert page.input_value("#prompt") == ""


def several(page: Any) -> None:
    scripted(page, {"content": "It *is*."})
    for text in ("Is it?", "Another\nline"):
        page.click("#new")
        write(page, text)
        told(page, "#talk .markdown em", "is")
        idle(page)


def test_several_conversations_and_their_export(page: Any) -> None:
    several(page)
    assert page.locator("#talks button").all_inner_texts() == ["Another", "Is it?"]
    page.click("#talks >> text=Is it?")
    told(page, "#talk li.user .said", "Is it?")
    page.click("#more")
    page.fill("#title", "Being")
    page.press("#title", "Tab")
    assert page.locator("#talks button").all_inner_texts() == ["Being", "Another"]
    page.reload()
    assert page.locator("#talks button").all_inner_texts() == ["Being", "Another"]
    with page.expect_download() as found:
        act(page, "export-markdown")
    assert found.value.suggested_filename == "Being.md"
    assert Path(found.value.path()).read_text() == "# Being\n\n## You\n\nIs it?\n\n## Model\n\nIt *is*.\n"
    with page.expect_download() as found:
        act(page, "export-json")
    said = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "It *is*."}]
    kept = json.loads(Path(found.value.path()).read_text())
    assert (kept["title"], kept["messages"]) == ("Being", said)


def test_search_finds_titles_and_messages(page: Any) -> None:
    several(page)
    page.fill("#search", "ANOTHER")
    assert page.locator("#talks button").count() == 1
    page.fill("#search", "it *is")
    assert page.locator("#talks .found").all_inner_texts() == ["It *is*.", "It *is*."]
    page.fill("#search", "nowhere to be found")
    assert page.locator("#talks button").count() == 0
    assert page.is_visible("#none")
    page.fill("#search", "")
    assert page.locator("#talks button").count() == 2


def imported(page: Any, path: Path) -> None:
    page.click("#more")
    with page.expect_file_chooser() as chooser:
        page.click("#import")
    chooser.value.set_files(path)


def test_exported_conversations_are_imported_whole(page: Any, tmp_path: Path) -> None:
    several(page)
    set_up(page, system="Be brief.")
    scripted(page, {"reasoning_content": "Hm.", "content": "It is not."}, seed=1)
    page.click(f"{LAST} [aria-label='Write another answer']")
    answered(page, "It is not.")
    with page.expect_download() as found:
        act(page, "export-all")
    found.value.save_as(tmp_path / "all.json")
    page.evaluate("localStorage.clear()")
    page.reload()
    page.evaluate("{ const now = Date.now; let later = 0; Date.now = () => now() + (later += 2); }")  # a slow import
    imported(page, tmp_path / "all.json")
    told(page, "#notice", "Imported 2 conversations")
    assert page.locator("#talks button").all_inner_texts() == ["Another", "Is it?"]
    told(page, f"{LAST} .versions", "2/2")
    told(page, f"{LAST} .thought summary", "Thoughts")
    assert page.input_value("#system") == "Be brief."
    page.click("[aria-label='Previous version']")
    told(page, f"{LAST} .markdown", "It is.")
    imported(page, tmp_path / "all.json")
    expect(page.locator("#talks button")).to_have_count(4)


GOOD = {"messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{not json", "is not valid JSON"),
        ("null", "has no list"),
        ("{}", "has no list"),
        ('{"conversations": []}', "has no conversation"),
        ('{"messages": [{"role": "user", "content": "x", "versions": null}]}', "message 1 of conversation 1 is not"),
        ('{"conversations": [{"messages": []}]}', "has no list"),
        (json.dumps({"messages": [{"role": "user", "content": 1}]}), "message 1 of conversation 1"),
        (json.dumps([GOOD, {"messages": [*GOOD["messages"], {"role": "tool", "content": "b"}]}]), "message 2 of"),
        (json.dumps({"messages": [{**GOOD["messages"][0], "versions": {"at": 5, "tails": []}}]}), "message 1"),
        (json.dumps({"messages": [{"role": "system", "content": []}, *GOOD["messages"]]}), "the system message"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_and_nothing_is_lost(page: Any, tmp_path: Path, given: str, reason: str) -> None:
    scripted(page, {"content": "One"})
    write(page, "first")
    answered(page, "One")
    before = page.evaluate("JSON.stringify(Object.entries(localStorage).sort())")
    (tmp_path / "bad.json").write_text(given)
    imported(page, tmp_path / "bad.json")
    told(page, "#notice", reason)
    assert page.evaluate("JSON.stringify(Object.entries(localStorage).sort())") == before
    assert page.inner_text(f"{LAST} .markdown") == "One"


def test_an_import_without_room_changes_nothing(page: Any, tmp_path: Path) -> None:
    scripted(page, {"content": "One"})
    write(page, "first")
    answered(page, "One")
    before = page.evaluate("Object.keys(localStorage).length")
    large = {"messages": [{"role": "user", "content": "a" * 6_000_000}]}
    (tmp_path / "large.json").write_text(json.dumps([GOOD, large]))
    imported(page, tmp_path / "large.json")
    told(page, "#notice", "has no room")
    assert page.evaluate("Object.keys(localStorage).length") == before
