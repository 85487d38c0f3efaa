"""Formulas and attached files on the page, in a real browser (make test-browser)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.driving import expect, idle, picture, scripted, told, write
from tests.serving.test_pdf import made

SAID = "#talk li.assistant .markdown"
ENERGY = r"\int_0^1 \frac{x_1^2}{\sqrt{2}}\,dx = \begin{pmatrix} a & b \\ c & d \end{pmatrix}"


def answered(page: Any, text: str) -> None:
    scripted(page, {"content": text})
    write(page, "Show it")
    idle(page)


def test_formulas_are_mathml(page):
    answered(page, f"Mass \\(m_1\\) and $E=mc^2$, $5 and $10, `$x$`.\n\n\\[\n{ENERGY}\n\\]\n\n$$\\pmb{{x}}$$\n")
    expect(page.locator(f"{SAID} math")).to_have_count(4)
    expect(page.locator(f"{SAID} math.tml-display")).to_have_count(2)
    assert page.locator(f"{SAID} mfrac").count() == 1
    assert page.locator(f"{SAID} mtable mtr").count() == 2
    assert "$5 and $10" in page.inner_text(f"{SAID} p:first-child")
    assert page.inner_text(f"{SAID} code") == "$x$"
    assert page.evaluate("getComputedStyle(document.querySelector('math.tml-display')).display") != "inline"
    assert page.locator(f"{SAID} [style*=bold]").count() == 1, "a style attribute becomes a property"
    picture(page, "math")


def test_a_formula_that_streams_is_text_until_it_ends(page):
    page.evaluate(
        """async () => {
          const { Markdown } = await import("./page/markdown.js");
          const { formula } = await import("./page/math.js");
          const place = document.createElement("div");
          place.className = "markdown";
          document.getElementById("main").append(place);
          const shown = new Markdown(place);
          const seen = [];
          for (const more of ["a", "a_1", "a_1\\n\\\\]\\nDone"]) {
            shown.put("So $x$ and\\n\\\\[\\n" + more);
            await shown.working;
            seen.push([place.querySelectorAll(".formula").length, place.lastChild.textContent]);
            window.first ||= place.querySelector(".formula");
          }
          await shown.end(shown.text);
          window.seen = seen;
          window.same = place.contains(window.first);
        }"""
    )
    assert page.evaluate("seen") == [[1, "[\na"], [1, "[\na_1"], [2, "Done"]]
    assert page.evaluate("same"), "a formula that is drawn is not drawn anew"
    expect(page.locator(".formula math")).to_have_count(2)


HOSTILE = [
    r"\href{javascript:alert(1)}{x}", r"\url{javascript:alert(1)}", r"\htmlData{a=b}{x}", r"\class{send}{x}",
    r"\id{prompt}{x}", r"\style{position:fixed}{x}", r"\data{a=b}{x}", r"\includegraphics{https://x.example/a.png}",
    r"\def\a{\a\a}\a", r"\newcommand\a[1]{#1#1}\a{x}", r"\gdef\a{x}", r"\frac{",
    r"\sqrt{" * 500 + "x" + "}" * 500, r"\hspace{-900em}x", r"\kern-3em" * 50 + "x",
    r"\colorbox{url(https://x.example)}{a}", r"\ref{prompt}", r"\cancelto{0}{x}", r"\nosuchcommand",
]  # fmt: skip


def test_hostile_formulas_show_their_source(page):
    """None of them runs anything, requests anything (the page's fixture checks it) or leaves its place."""
    for one in HOSTILE:
        page.evaluate(
            """async (source) => {
              const { formula } = await import("./page/math.js");
              const made = formula(`\\\\(${source}\\\\)`, "");
              document.getElementById("main").replaceChildren(made);
              const until = performance.now() + 20000;
              while (!made.querySelector("math") && !made.classList.contains("source")) {
                if (performance.now() > until) throw new Error("not drawn");
                await new Promise((done) => setTimeout(done, 10));
              }
            }""",
            one,
        )
        assert page.locator("#main .formula.source").count() == 1, one[:40]
        assert page.inner_text("#main .formula") == f"\\({one}\\)"
        assert page.locator("#main :is(a, img, math, [id], [href], [src])").count() == 0
        assert page.get_attribute("#main .formula", "title")


# ---- attached files --------------------------------------------------------------------------------------------------


def file(name: str, content: bytes, kind: str = "application/octet-stream") -> dict[str, Any]:
    return {"name": name, "mimeType": kind, "buffer": content}


def chips(page: Any) -> list[str]:
    return [re.sub(r"\s+", " ", one).strip() for one in page.locator("#attached .chip").all_inner_texts()]


def attach(page: Any, *files: dict[str, Any]) -> None:
    page.set_input_files("#files", list(files))
    expect(page.locator("#attached")).not_to_contain_text("reading…")


def drop(page: Any, name: str, text: str, kind: str) -> None:
    """Drop or paste a file, as a browser reports it."""
    page.evaluate(
        """([name, text, kind]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([text], name));
          const place = document.getElementById("prompt");
          const how = { bubbles: true, cancelable: true };
          if (kind === "paste") {
            place.dispatchEvent(new ClipboardEvent("paste", { ...how, clipboardData: transfer }));
          } else for (const one of ["dragover", "drop"]) {
            place.dispatchEvent(new DragEvent(one, { ...how, dataTransfer: transfer }));
            window.dropped = document.body.classList.contains("dropping") || window.dropped;
          }
        }""",
        [name, text, kind],
    )


def test_files_are_sent_with_the_message(page):
    asked = scripted(page, {"content": "Seen"})
    attach(page, file("notes.md", b"# Notes\r\n```\nx\n```\n"), file("paper.pdf", made("Said here", "And there")))
    shown = sorted(chips(page))
    assert re.fullmatch(r"notes.md 19 B · \d+ tokens", shown[0])
    assert re.fullmatch(r"paper.pdf \d+ B · \d+ tokens", shown[1])
    picture(page, "attached")
    page.click("text=notes.md >> xpath=.. >> button")
    assert len(chips(page)) == 1
    attach(page, file("notes.md", b"# Notes\r\n```\nx\n```\n"))
    write(page, "What is it?")
    told(page, SAID, "Seen")
    (sent,) = asked[0]["messages"]
    paper = "File: paper.pdf\n```\nSaid here\n\nAnd there\n```"
    assert sent["content"] == f"{paper}\n\nFile: notes.md\n````\n# Notes\n```\nx\n```\n````\n\nWhat is it?"
    assert chips(page) == []
    assert page.inner_text("#talk li.user > .said") == "What is it?"
    page.click("#talk .files summary >> nth=0")
    expect(page.locator("#talk .files pre >> nth=0")).to_have_text(re.compile("^Said here\n\nAnd there$"))
    picture(page, "attached-sent")
    page.reload()
    expect(page.locator("#talk .files .chip")).to_have_count(2)
    asked = scripted(page, {"content": "Again"})
    write(page, "And then?")
    told(page, "#talk li:last-child .markdown", "Again")
    assert asked[0]["messages"][0] == sent, "the conversation keeps them"


def test_files_alone_are_a_message_and_can_be_edited(page):
    asked = scripted(page, {"content": "One"})
    attach(page, file("a.txt", "é".encode("utf-16")))
    page.click("#send")
    told(page, SAID, "One")
    idle(page)
    assert asked[0]["messages"] == [{"role": "user", "content": "File: a.txt\n```\né\n```"}]
    assert page.inner_text("#talks li:first-child") == "a.txt"
    page.click("#talk li.user [aria-label='Edit this message']")
    assert len(chips(page)) == 1
    write(page, "Short?")
    expect(page.locator("#talk .versions")).to_contain_text("2/2")
    idle(page)
    assert asked[1]["messages"] == [{"role": "user", "content": "File: a.txt\n```\né\n```\n\nShort?"}]


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_files_are_dropped_and_pasted(page, how):
    drop(page, "data.csv", "a,b\n1,2\n", how)
    expect(page.locator("#attached")).to_contain_text("data.csv")
    assert page.input_value("#prompt") == ""
    if how == "drop":
        assert page.evaluate("window.dropped"), "the box is marked meanwhile"
    assert not page.evaluate("document.body.classList.contains('dropping')")


def test_what_cannot_be_attached_is_named(page):
    attach(
        page,
        file("program.exe", b"MZ" + bytes(range(256))),
        file("scan.pdf", made("")),
        file("broken.pdf", b"no pdf"),
        file("none.txt", b""),
        file("fine.txt", b"fine"),
    )
    expect(page.locator("#attached .chip")).to_have_count(1)
    refusal = "is not a text file (UTF-8 or UTF-16), a PDF or a picture, so it cannot be attached."
    told(page, "#notice", f'"program.exe" {refusal}')
    told(
        page,
        "#notice",
        '"scan.pdf": the PDF has no text; it probably contains scanned pages, which need OCR first.',
    )
    told(page, "#notice", '"broken.pdf": the file is not a PDF.')
    told(page, "#notice", '"none.txt" is empty.')
    big = page.evaluate(
        """async () => {
          const { read } = await import("./page/files.js");
          return read(new File([new Uint8Array(5 << 20)], "big.log")).catch((error) => error.message);
        }"""
    )
    assert big == '"big.log" has 5.2 MB; at most 4.2 MB can be attached'


def test_encodings(page):
    found = page.evaluate(
        """async (given) => {
          const { decoded } = await import("./page/files.js");
          return given.map((one) => decoded(new Uint8Array(one)));
        }""",
        [list(one) for one in (
            "aé€\r\nb".encode(), "\ufeffaé".encode(), "aé".encode("utf-16"), "\ufeffaé".encode("utf-16be"),
            "plain text".encode("utf-16le"), "plain text".encode("utf-16be"), "é".encode("latin-1"), b"a\0b",
            bytes(range(256)), b"\x1b[31mred\x1b[0m",
        )],
    )  # fmt: skip
    wanted = ["aé€\nb", "aé", "aé", "aé", "plain text", "plain text", None, None, None, "\x1b[31mred\x1b[0m"]
    assert found == wanted


def test_a_file_that_does_not_fit_is_refused_before_it_is_sent(page):
    asked = scripted(page, {"content": "Never"})
    attach(page, file("long.txt", b"word and word\n" * 5000))
    told(page, "#notice", re.compile(r'"long.txt" \([\d,]+ tokens\) does not fit the model.s context \(8,192 tokens\)'))
    assert page.locator("#attached .chip.over").count() == 1
    page.fill("#prompt", "Sum it up")
    page.click("#send")
    told(page, "#notice", "does not fit the model's context")
    assert (asked, len(chips(page)), page.input_value("#prompt")) == ([], 1, "Sum it up")
    page.click("#attached button")
    page.unroute("**/v1/chat/completions")
    half = b"word and word\n" * 1500
    attach(page, file("one.txt", half), file("two.txt", half))
    page.click("#send")
    told(page, "#notice", re.compile(r"This message \([\d,]+ tokens\) does not fit .* Remove a file"))
    assert (len(chips(page)), page.input_value("#prompt")) == (2, "Sum it up"), "the message is restored"
    expect(page.locator("#talk > li")).to_have_count(0)
    scripted(page, {"content": "Seen"})
    page.click("#attached button")
    page.click("#send")
    told(page, SAID, "Seen")
    page.unroute("**/v1/chat/completions")
    attach(page, file("one.txt", half), file("two.txt", half))
    page.click("#send")
    told(page, "#notice", re.compile(r"This message \([\d,]+ tokens\) does not fit .* Remove a file"))
    expect(page.locator("#notice button")).to_have_count(0)


def test_a_full_storage_is_reported(page):
    scripted(page, {"content": "Seen"})
    page.evaluate("localStorage.setItem('filler', 'x'.repeat(5_230_000))")
    attach(page, file("a.txt", b"words " * 4000))
    write(page, "Look")
    told(page, "#notice", "storage is full")
    told(page, SAID, "Seen")


def test_exported_files_are_imported(page):
    scripted(page, {"content": "Seen"})
    attach(page, file("a.txt", b"words"))
    write(page, "Look")
    told(page, SAID, "Seen")
    found = page.evaluate(
        """async () => {
          const { asJson, asMarkdown, importFile } = await import("./page/transfer.js");
          const { all } = await import("./page/talks.js");
          const json = await asJson(all()[0], "m");
          const [talk] = await importFile(new File([json], "x.json"));
          return [JSON.parse(json).messages[0].content, talk.messages[0], await asMarkdown(talk)];
        }"""
    )
    sent = "File: a.txt\n```\nwords\n```\n\nLook"
    assert found[0] == sent
    assert (found[1]["content"], found[1]["files"][0]["text"]) == ("Look", "words")
    assert sent in found[2]


def test_a_pasted_table_is_text_and_a_folder_is_named(page):
    found = page.evaluate(
        """async () => {
          const { read } = await import("./page/files.js");
          const transfer = new DataTransfer();
          transfer.items.add(new File(["picture"], "image.png"));
          for (const kind of ["text/plain", "text/html"]) transfer.setData(kind, "a\\tb");
          const paste = new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData: transfer });
          document.getElementById("prompt").dispatchEvent(paste);
          const refuse = () => Promise.reject(new DOMException("no", "NotFoundError"));
          const unread = { slice: () => ({ arrayBuffer: refuse }) };
          const folder = { name: "notes", size: 4096, ...unread };
          return [paste.defaultPrevented, await read(folder).catch((error) => error.message)];
        }"""
    )
    assert found == [False, '"notes" cannot be read; a folder cannot be attached']
    expect(page.locator("#attached .chip")).to_have_count(0)


def test_a_suggestion_is_sent_with_the_files(page):
    asked = scripted(page, {"content": "Seen"})
    attach(page, file("a.txt", b"words"))
    page.click(".suggestion >> nth=0")
    told(page, SAID, "Seen")
    assert asked[0]["messages"][0]["content"].startswith("File: a.txt\n```\nwords\n```\n\nExplain")


def test_long_names_and_wide_formulas_do_not_widen_the_page(page):
    page.set_viewport_size({"width": 390, "height": 800})
    scripted(page, {"content": f"So \\({' + '.join('abcdefghijklmnopqrstuvwxyz')}\\)."})
    attach(page, file("long_name" * 12 + ".txt", b"words"))
    write(page, "Look")
    expect(page.locator(f"{SAID} math")).to_have_count(1)
    assert page.evaluate("[document.all.main.scrollWidth, document.all.main.clientWidth]") == [390, 390]
    picture(page, "attached-narrow")
