"""Pictures on the page: attached, sent, stored, exported and refused, in a real browser (make test-browser)."""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.browser.driving import LAST, PATIENCE, act, expect, idle, picture, scripted, set_up, told, with_meta, write
from tests.browser.test_attach_math import SAID, attach, file

LIMITS = {"count": 64, "bytes": 100_000, "pixels": 1_000_000, "body_bytes": 1 << 26}
STORED = """async () => {
  const opened = await new Promise((done) => {
    const opening = indexedDB.open("ipex-lookahead.images", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("images");
    opening.onsuccess = () => done(opening.result);
  });
  const keys = opened.transaction("images").objectStore("images").getAllKeys();
  return new Promise((done) => { keys.onsuccess = () => done(keys.result.length); });
}"""


def drawn(width: int = 60, height: int = 40, kind: str = "PNG", **options: Any) -> bytes:
    made = io.BytesIO()
    rows, columns = np.indices((height, width))
    values = np.stack([rows * 6 % 256, columns * 4 % 256, (rows + columns) * 3 % 256], axis=-1).astype(np.uint8)
    Image.fromarray(values).save(made, kind, **options)
    return made.getvalue()


def url(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def sent(text: str, *urls: str) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": one}} for one in urls]
    return {"role": "user", "content": [*parts, *([{"type": "text", "text": text}] if text else [])]}


def shown(page: Any, place: str) -> Any:
    """The picture at a place, once it is drawn."""
    found = page.locator(place)
    expect(found).to_have_js_property("complete", True, timeout=PATIENCE)
    expect(found).not_to_have_js_property("naturalWidth", 0, timeout=PATIENCE)
    return found


def stored(page: Any, count: int) -> None:
    """Wait until the browser's database has this number of pictures."""
    for _ in range(100):
        if page.evaluate(STORED) == count:
            return
        page.wait_for_timeout(50)
    assert page.evaluate(STORED) == count


@pytest.fixture
def page(page: Any) -> Any:
    """The page with a model that takes pictures."""
    with_meta(page, meta={"images": LIMITS})
    page.reload()
    told(page, "#model", "default")
    return page


def test_a_picture_is_sent_stored_and_sent_again(page):
    bodies = scripted(page, {"content": "Seen"})
    content = drawn()
    attach(page, file("cat.png", content), file("photo.jpeg", drawn(kind="JPEG")), file("a.txt", b"words"))
    chips = page.locator("#attached .chip")
    expect(chips).to_have_count(3)
    expect(chips.nth(0)).to_contain_text(re.compile(r"cat.png\s*60 × 40 · \d+ B|cat.png\s*60 × 40 · [\d.]+ kB"))
    assert shown(page, "#attached img >> nth=0").get_attribute("alt") == "cat.png"
    picture(page, "images-attached")
    page.focus("[aria-label='Remove photo.jpeg']")
    page.keyboard.press("Enter")
    expect(chips).to_have_count(2)
    write(page, "What is it?")
    told(page, SAID, "Seen")
    first = sent("File: a.txt\n```\nwords\n```\n\nWhat is it?", url(content))
    assert bodies[0]["messages"] == [first]
    assert page.inner_text("#talk li.user > .said") == "What is it?"
    assert shown(page, "#talk .files summary img").get_attribute("alt") == "cat.png"
    page.focus("#talk .picture summary")
    page.keyboard.press("Enter")
    big = shown(page, "#talk .picture > img")
    assert (big.get_attribute("alt"), big.evaluate("(one) => one.naturalWidth")) == ("cat.png", 60)
    picture(page, "images-sent")
    stored(page, 1)
    page.reload()
    shown(page, "#talk .files summary img")
    scripted(page, {"content": "Again"})
    bodies = scripted(page, {"content": "Again"})
    write(page, "And then?")
    told(page, "#talk li:last-child .markdown", "Again")
    assert bodies[0]["messages"][0] == first, "the same bytes"
    idle(page)
    page.click("#talk li.user >> nth=0 >> [aria-label='Edit this message']")
    assert shown(page, "#attached img").get_attribute("alt") == "cat.png"
    write(page, "Which color?")
    expect(page.locator("#talk .versions")).to_contain_text("2/2")
    idle(page)
    assert bodies[1]["messages"] == [sent("File: a.txt\n```\nwords\n```\n\nWhich color?", url(content))]
    page.click("[aria-label='Write another answer']")
    expect(page.locator("#talk li.assistant .versions")).to_contain_text("2/2")
    idle(page)
    assert bodies[2]["messages"] == bodies[1]["messages"]
    stored(page, 1)


def test_pictures_alone_are_a_message(page):
    bodies = scripted(page, {"content": "Seen"})
    attach(page, file("one.png", drawn()), file("two.webp", drawn(20, 20, "WEBP", lossless=True)))
    page.click("#send")
    told(page, SAID, "Seen")
    (message,) = bodies[0]["messages"]
    assert [part["image_url"]["url"].partition(";")[0] for part in message["content"]] == [
        "data:image/png",
        "data:image/webp",
    ]
    assert page.inner_text("#talks li:first-child") == "one.png"


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_pictures_are_dropped_and_pasted(page, how):
    page.evaluate(
        """async ([content, how]) => {
          const data = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([data], "image.png", { type: "image/png" }));
          const place = document.getElementById("prompt");
          const event = { bubbles: true, cancelable: true };
          if (how === "paste") place.dispatchEvent(new ClipboardEvent("paste", { ...event, clipboardData: transfer }));
          else place.dispatchEvent(new DragEvent("drop", { ...event, dataTransfer: transfer }));
        }""",
        [base64.b64encode(drawn()).decode(), how],
    )
    assert shown(page, "#attached img").get_attribute("alt") == "image.png"


def test_wrong_pictures_are_refused_with_a_sentence(page):
    heic = b"\0\0\0\x18ftypheic" + bytes(64)
    attach(
        page,
        file("large.bmp", drawn(300, 200, "BMP")),
        file("wide.png", drawn(1001, 1000)[:90_000]),
        file("phone.heic", heic),
        file("scan.tif", b"II*\0" + bytes(64)),
        file("broken.png", drawn()[:40]),
    )
    told(page, "#notice", '"large.bmp" has 0.2 MB; a picture can have at most 0.1 MB.')
    told(page, "#notice", '"phone.heic" is a HEIC picture, which cannot be attached; convert it to JPEG or PNG.')
    told(page, "#notice", '"scan.tif" is a TIFF picture')
    told(page, "#notice", '"broken.png" is damaged and cannot be read; save it again as PNG or JPEG.')
    expect(page.locator("#attached .chip")).to_have_count(0)


def test_a_picture_of_too_many_pixels_is_refused(page):
    attach(page, file("wide.png", drawn(1500, 1000)))
    told(page, "#notice", '"wide.png" has 1500 × 1000 pixels; a picture can have at most 1 million pixels.')
    expect(page.locator("#attached .chip")).to_have_count(0)


def test_a_model_that_takes_no_pictures_gets_none(page):
    bodies = scripted(page, {"content": "Seen"})
    attach(page, file("cat.png", drawn()))
    write(page, "Look")
    told(page, SAID, "Seen")
    idle(page)
    with_meta(page, meta={"images": None})
    page.reload()
    told(page, "#model", "default")
    attach(page, file("cat.png", drawn()))
    told(page, "#notice", '"cat.png" cannot be attached: default takes no pictures; serve a model with a vision part.')
    write(page, "And now?")
    told(page, "#notice", "This conversation has pictures, and default takes no pictures")
    assert (len(bodies), page.input_value("#prompt")) == (1, "And now?")
    page.click("[aria-label='Write another answer']")
    told(page, "#notice", "This conversation has pictures")
    act(page, "race-it")
    told(page, "#notice", "This conversation has pictures")
    assert len(bodies) == 1
    page.click("#notice >> text=New conversation")
    expect(page.locator("#talk > li")).to_have_count(0)


def test_a_model_that_is_not_loaded_may_take_pictures(page):
    bodies = scripted(page, {"content": "Seen"})
    page.unroute("**/v1/models")
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{"id": "default", "state": "unloaded"}]}))
    page.reload()
    told(page, "#summary", "not loaded")
    attach(page, file("cat.png", drawn()))
    write(page, "Look")
    told(page, SAID, "Seen")
    assert len(bodies[0]["messages"][0]["content"]) == 2


def test_the_refusal_of_the_server_restores_the_message(page):
    def refuse(route: Any) -> None:
        route.fulfill(status=400, json={"error": {"message": "the request has 65 images; at most 64 are allowed"}})

    page.route("**/v1/chat/completions", refuse)
    attach(page, file("cat.png", drawn()))
    write(page, "Look")
    told(page, "#notice", "at most 64 are allowed")
    expect(page.locator("#talk > li")).to_have_count(0)
    assert page.input_value("#prompt") == "Look"
    shown(page, "#attached img")


def test_exported_pictures_are_imported(page):
    scripted(page, {"content": "Seen"})
    content = drawn()
    attach(page, file("cat [1].png", content))
    write(page, "Look")
    told(page, SAID, "Seen")
    idle(page)
    page.click("#talk li.user [aria-label='Edit this message']")
    attach(page, file("two.jpg", drawn(kind="JPEG")))
    write(page, "Look at both")
    expect(page.locator("#talk .versions")).to_contain_text("2/2")
    idle(page)
    found = page.evaluate(
        """async () => {
          const { asJson, asMarkdown, importFile } = await import("./page/transfer.js");
          const { all, remove } = await import("./page/talks.js");
          const json = await asJson(all(), "m");
          const markdown = await asMarkdown(all()[0]);
          for (const talk of all()) remove(talk);
          const [talk] = await importFile(new File([json], "x.json"));
          const [{ content }] = JSON.parse(json).conversations[0].messages;
          return [content, markdown, await asJson([talk], "m") === json];
        }"""
    )
    assert [part["type"] for part in found[0]] == ["image_url", "image_url", "text"]
    assert f"![cat \\[1\\].png]({url(content)})" in found[1]
    assert found[2], "another export is the same"
    page.reload()
    shown(page, "#talk .files summary img >> nth=1")
    stored(page, 3)
    bodies = scripted(page, {"content": "Again"})
    page.click("#talk [aria-label='Previous version']")
    expect(page.locator("#talk .versions")).to_contain_text("1/2")
    write(page, "More")
    told(page, "#talk li:last-child .markdown", "Again")
    assert bodies[0]["messages"][0] == sent("Look", url(content))


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"image_url": {"url": "https://example.org/a.png"}}, "pictures that are not in the file"),
        ({"image_url": {"url": "data:image/png;base64,AAAA"}}, "pictures that are not in the file"),
        ({"image_url": {"url": url(drawn()[:40])}}, '"picture 1" is damaged'),
    ],
)
def test_wrong_pictures_are_not_imported(page, part, problem):
    message = {"role": "user", "content": [{"type": "image_url", **part}]}
    found = page.evaluate(
        """async (messages) => {
          const { importFile } = await import("./page/transfer.js");
          const file = new File([JSON.stringify({ messages })], "x.json");
          return importFile(file).then(() => "", (error) => error.message);
        }""",
        [message],
    )
    assert problem in found
    stored(page, 0)


def test_pictures_of_other_programs_are_imported(page):
    text = [{"type": "text", "text": "Look"}]
    found = page.evaluate(
        """async (messages) => {
          const { importFile } = await import("./page/transfer.js");
          const [talk] = await importFile(new File([JSON.stringify({ messages })], "x.json"));
          return talk.messages[0];
        }""",
        [sent("Look", url(drawn())), {"role": "assistant", "content": text}],
    )
    assert (found["content"], found["files"][0]["name"]) == ("Look", "picture 1")
    assert {name: found["files"][0]["image"][name] for name in ("type", "width", "height")} == {
        "type": "image/png",
        "width": 60,
        "height": 40,
    }


def test_a_deleted_conversation_takes_its_pictures_along(page):
    scripted(page, {"content": "Seen"})
    attach(page, file("cat.png", drawn()))
    write(page, "Look")
    told(page, SAID, "Seen")
    stored(page, 1)
    page.on("dialog", lambda dialog: dialog.accept())
    act(page, "delete")
    stored(page, 0)


def test_pictures_that_no_conversation_has_are_removed_on_the_next_visit(page):
    scripted(page, {"content": "Seen"})
    for name in ("one.png", "two.png"):
        page.click("#new")
        attach(page, file(name, drawn()))
        write(page, name)
        told(page, SAID, "Seen")
        idle(page)
    stored(page, 2)
    page.evaluate("localStorage.removeItem(Object.keys(localStorage).find((one) => one.includes('talk')))")
    page.reload()
    stored(page, 1)
    shown(page, "#talk .files summary img")


def test_a_lost_picture_is_named(page):
    scripted(page, {"content": "Seen"})
    attach(page, file("cat.png", drawn()))
    write(page, "Look")
    told(page, SAID, "Seen")
    stored(page, 1)
    page.evaluate("new Promise((done) => { indexedDB.deleteDatabase('ipex-lookahead.images').onblocked = done; })")
    page.reload()
    told(page, "#talk .files", "not stored in this browser any more")
    write(page, "And now?")
    told(page, "#notice", '"cat.png" is not stored in this browser any more. Edit its message and attach it again.')
    assert page.input_value("#prompt") == "And now?"


def test_a_database_that_stores_nothing_is_reported(page):
    page.evaluate(
        "() => { IDBObjectStore.prototype.put = () => { throw new DOMException('no', 'QuotaExceededError'); }; }"
    )
    bodies = scripted(page, {"content": "Seen"})
    attach(page, file("cat.png", drawn()))
    write(page, "Look")
    told(page, SAID, "Seen")
    told(page, "#notice", "storage is full")
    assert len(bodies[0]["messages"][0]["content"]) == 2, "it is sent nevertheless"


@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_about_pictures(page, width):
    if "IPEX_LOOKAHEAD_AXE" not in os.environ:
        pytest.skip("axe-core is not there; make test-browser gets it where there is npm")
    page.set_viewport_size({"width": width, "height": 844})
    scripted(page, {"content": "Seen"})
    attach(page, file("cat.png", drawn()))
    write(page, "Look")
    told(page, SAID, "Seen")
    idle(page)
    page.click("#talk .picture summary")
    attach(page, file("large name " * 12 + ".png", drawn(900, 300)))
    page.evaluate(Path(os.environ["IPEX_LOOKAHEAD_AXE"]).read_text())
    run = "axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]))"
    assert page.evaluate(run) == []
    assert page.evaluate("[document.all.main.scrollWidth - document.all.main.clientWidth]") == [0]
    picture(page, f"images-{width}")


# ---- with a model ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that takes images."""
    pytest.importorskip("transformers", minversion="5.23")
    from tests.cli.test_chat_images import write_seeing

    return write_seeing(tmp_path_factory.mktemp("models") / "seeing")


@pytest.fixture(scope="module")
def served(seeing: Path) -> Iterator[str]:
    """The address of a server of this model."""
    command = [sys.executable, "-m", "ipex_lookahead", "serve", "-m", str(seeing), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        found = re.search(r" on (http://[\d.:]+)", running.stderr.readline())
        assert found
        yield found[1]
        running.terminate()
        running.wait(60)


def test_the_answer_is_that_of_the_same_images_in_python(browser: Any, seeing: Path, served: str) -> None:
    from ipex_lookahead.llm import LLM

    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(served)
    told(page, "#model", "seeing")
    files = [drawn(90, 40), drawn(60, 60, "JPEG")]
    set_up(page, temperature="0", most="12")
    attach(page, file("one.png", files[0]), file("two.jpg", files[1]))
    write(page, "what is it?")
    page.wait_for_selector(f"{LAST}:not([aria-busy]) .figures summary")
    idle(page)
    talk = page.evaluate("JSON.parse(Object.values(localStorage).find((one) => one.includes('messages')))")
    with LLM(seeing, threads=1, progress=False) as llm:
        wanted = llm.chat("what is it?", images=files, max_new_tokens=12, temperature=0)
    assert talk["messages"][1]["content"] == wanted.text
    assert f"prompt {wanted.stats.prompt_tokens} tokens" in talk["messages"][1]["figures"]
    context.close()
