"""Text of PDF files for the page: ordinary files, files without text, and files that attack their reader."""

from __future__ import annotations

import io
import socket
import threading
import zlib
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pypdf import PdfReader, PdfWriter

from ipex_lookahead.serving import pdf
from ipex_lookahead.serving.keys import Keys
from tests.serving.conftest import LIMITS, serving

KEY = "a-key-of-sixteen-characters"


def made(*pages: str, stream: bytes | None = None, more: str = "") -> bytes:
    """A PDF file with a text on each page, written by hand; ``stream`` takes the place of every page's content."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>"]
    objects += ["<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"]
    bodies = [one.encode() for one in objects]
    for i, said in enumerate(pages):
        resources = "/Resources << /Font << /F1 3 0 R >> >> /MediaBox [0 0 600 800]"
        bodies.append(f"<< /Type /Page /Parent 2 0 R {resources} /Contents {5 + 2 * i} 0 R >>".encode())
        drawn = f"BT /F1 12 Tf 72 720 Td ({said}) Tj ET".encode("latin-1") if stream is None else stream
        bodies.append(b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(drawn), more.encode(), drawn))
    file, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        places.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(bodies) + 1}\n0000000000 65535 f \n{table}"
    return file + f"{end}trailer << /Size {len(bodies) + 1} /Root 1 0 R >>\nstartxref\n{len(file)}\n%%EOF".encode()


def protected(password: str, algorithm: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(made("secret"))))
    writer.encrypt(password, "owner", algorithm=algorithm)
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def refusal(client: Any, file: bytes, status: int = 400) -> str:
    answer = client.post("/pdf-text", content=file)
    assert answer.status_code == status
    return str(answer.json()["error"]["message"])


def test_text_of_every_page(client):
    answer = client.post("/pdf-text", content=made("First caf\xe9", "", "Third"))
    assert answer.status_code == 200
    assert answer.json() == {"text": "First café\n\nThird", "pages": 3}


def test_a_large_file_is_no_json(client):
    """Brackets and commas of a body are counted in JSON alone; a picture is full of them."""
    file = made("Said") + b"\n%" + b"[{," * (3 << 20)
    assert client.post("/pdf-text", content=file).json()["text"] == "Said"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (b"", "not a PDF"),
        (b"GIF89a" + b"\0" * 100, "not a PDF"),
        (made(""), "no text; it probably contains scanned pages"),
        (protected("open", "RC4-128"), "protected by a password"),
        (made("a").replace(b"/Type /Catalog /Pages 2 0 R", b"/Type /Catalog /Pages 9 0 R"), "damaged"),
        (b"%PDF-1.4\n" + bytes(range(256)) * 20, "damaged"),
    ],
    ids=["empty", "gif", "scan", "encrypted", "no-pages", "noise"],
)
def test_what_has_no_text_is_refused_in_one_sentence(client, file, said):
    assert said in refusal(client, file)


def test_a_file_that_only_restricts_printing_is_read(client):
    assert client.post("/pdf-text", content=protected("", "RC4-128")).json()["text"] == "secret"


def test_control_characters_and_lone_surrogates_are_left_out():
    assert pdf._characters(" a\x00b\td\x1b\ne\ud800\U0001f600\ud83d\ude00 ") == "ab\td\ne�\U0001f600\U0001f600"


def bomb() -> bytes:
    """A page of 20 KB that decompresses to 600 MB, twice compressed."""
    inner = zlib.compressobj(9)
    data = b"".join(inner.compress(b"\0" * (1 << 20)) for _ in range(600)) + inner.flush()
    return made("", stream=zlib.compress(data, 9), more="/Filter [/FlateDecode /FlateDecode]")


def deep() -> bytes:
    return made("", stream=b"BT (" + b"[" * 200_000 + b") Tj ET" + b"[" * 200_000)


def loop() -> bytes:
    """Page trees that contain themselves."""
    return made("a", "b").replace(b"[4 0 R 6 0 R]", b"[2 0 R 2 0 R]")


def slow() -> bytes:
    """A page of 3 million drawing operators."""
    return made("", stream=zlib.compress(b"(a) Tj\n" * 3_000_000, 9), more="/Filter /FlateDecode")


@pytest.fixture(scope="module")
def hurried(model):
    """A client of a server with little patience."""
    limits = replace(LIMITS, pdf_pages=5, pdf_characters=1000, pdf_seconds=3.0, pdf_memory=200 << 20)
    with serving(model, limits=limits) as made:
        yield made


@pytest.mark.parametrize("file", [bomb, deep, loop, slow], ids=lambda one: one.__name__)
def test_hostile_files_end_in_one_sentence(hurried, file):
    said = refusal(hurried, file())
    assert any(one in said for one in ("takes more than", "damaged", "has more than", "has no text")), said
    assert "\n" not in said
    assert hurried.post("/pdf-text", content=made("Next")).json()["text"] == "Next"


def test_pages_and_characters_have_limits(hurried):
    assert hurried.post("/pdf-text", content=made(*"abcde")).status_code == 200
    assert "more than 5 pages" in refusal(hurried, made(*"abcdef"))
    assert "more than 1,000 characters" in refusal(hurried, made("a" * 1001))


def test_time_has_a_limit(live):
    running = live(limits=replace(LIMITS, pdf_seconds=1.0, pdf_memory=200 << 20))
    answer = httpx.post(running.url + "/pdf-text", content=slow(), timeout=60)
    assert answer.status_code == 400
    assert "takes more than 1 s of processor time or 200 MiB of memory" in answer.json()["error"]["message"]


def test_size_has_a_limit_of_its_own(live):
    running = live(limits=replace(LIMITS, body_bytes=1000, pdf_bytes=10_000))
    said = made("a") + b" " * 5000
    assert httpx.post(running.url + "/pdf-text", content=said, timeout=60).json()["text"] == "a"
    assert httpx.post(running.url + "/pdf-text", content=said + b" " * 5000).status_code == 413
    assert httpx.post(running.url + "/render", json={"text": "a" * 2000}).status_code == 413


def test_the_page_and_a_key_are_needed(live):
    assert httpx.post(live(page=False).url + "/pdf-text", content=made("a")).status_code == 404
    running = live(keys=Keys([KEY]))
    assert httpx.post(running.url + "/pdf-text", content=made("a")).status_code == 401
    own = {"authorization": f"Bearer {KEY}"}
    assert httpx.post(running.url + "/pdf-text", content=made("a"), headers=own, timeout=60).status_code == 200


def test_a_server_without_pypdf_names_the_command(client, monkeypatch):
    monkeypatch.setattr(pdf, "_answer", lambda *_: {"error": "missing", "message": "No module named 'pypdf'"})
    assert "pip install 'ipex-lookahead[serve]'" in refusal(client, made("a"), 501)


def test_reading_does_not_hold_others_up(live, monkeypatch):
    """Further files wait for a slot; a client that leaves frees its own."""
    running = live(limits=replace(LIMITS, reading_pdfs=1))
    begun, go_on = threading.Event(), threading.Event()
    real = pdf._answer

    def waiting(*given):
        begun.set()
        assert go_on.wait(60)
        return real(*given)

    monkeypatch.setattr(pdf, "_answer", waiting)
    file, host = made("a"), httpx.URL(running.url)
    head = f"POST /pdf-text HTTP/1.1\r\nHost: {host.netloc.decode()}\r\nContent-Length: {len(file)}\r\n\r\n"
    with socket.create_connection((host.host, host.port), timeout=60) as client:
        client.sendall(head.encode("ascii") + file)
        assert begun.wait(60)
        assert httpx.get(running.url + "/health", timeout=60).status_code == 200, "the loop goes on"
    monkeypatch.setattr(pdf, "_answer", real)
    assert httpx.post(running.url + "/pdf-text", content=made("b"), timeout=60).json()["text"] == "b"
    go_on.set()
