"""``/pdf-text``: the text of a PDF file that the page attaches.

pypdf reads the file in a process of its own (``pdf_text.py``) with limits on processor time and memory:
small files can decompress to gigabytes or take hours.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.gate import FILES
from ipex_lookahead.serving.handling import server_of
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.sse import unless_gone
from ipex_lookahead.serving.web import needs_page
from ipex_lookahead.system.extras import installing
from ipex_lookahead.tokenization.process import Stopped, Worker, importable, spoken_memory, stopped_by

router = APIRouter(include_in_schema=False)
_NICE = 10
"""Priority below that of decoding; see ``nice(1)``."""
_FIRST_BYTES = 1024
"""The header of a PDF file begins in them."""


@router.post(FILES)
async def text(request: Request) -> Response:
    """A PDF file -> ``{"text": ..., "pages": number}``."""
    needs_page(request)
    server = server_of(request)
    file = await request.body()
    if b"%PDF-" not in file[:_FIRST_BYTES]:
        raise _refused("the file is not a PDF")

    async def read() -> dict[str, Any]:
        async with server.reading_pdfs:
            worker = await asyncio.to_thread(Worker, "PDF files", "attach the text of the file instead")
            try:
                return await asyncio.to_thread(_answer, worker, file, server.limits)
            finally:
                worker.close()  # the client left while its file was being read

    found = await unless_gone(request.receive, read())
    if "error" in found:
        raise _failure(found, server.limits)
    pages, extracted = found["pages"], _characters(found["text"])
    if not extracted:
        raise _refused("the PDF has no text; it probably contains scanned pages, which need OCR first")
    content = json.dumps({"text": extracted, "pages": pages}, ensure_ascii=False).encode()
    return Response(content, media_type="application/json")


def _answer(worker: Worker, file: bytes, limits: Limits) -> dict[str, Any]:
    """Return the process's answer. For a thread."""
    own = {
        "pages": limits.pdf_pages,
        "characters": limits.pdf_characters,
        "seconds": limits.pdf_seconds,
        "memory": limits.pdf_memory,
        "nice": _NICE,
    }
    script = str(Path(__file__).with_name("pdf_text.py"))
    worker.send(json.dumps({"path": importable(), "script": script}).encode("utf-8"))
    worker.send(json.dumps(own).encode("ascii"))
    spoken = f"{limits.pdf_seconds:g} s of processor time or {spoken_memory(limits.pdf_memory)} of memory"
    try:
        found = worker.request(file, limits.pdf_seconds, spoken)
    except Stopped as stopped:
        return {"error": "stopped", "message": str(stopped)}
    return found | {"message": stopped_by(found["signal"], spoken)} if "signal" in found else found


def _failure(found: dict[str, Any], limits: Limits) -> ApiError:
    if found["error"] == "missing":
        missing = f"reading PDF files needs pypdf, which is not installed on the server: {installing('serve')}"
        return ApiError(501, missing, code="missing_package")
    said = {
        "encrypted": "the PDF is protected by a password; save it without one and attach it again",
        "pages": f"the PDF has more than {limits.pdf_pages:,} pages; attach a part of it",
        "characters": f"the PDF has more than {limits.pdf_characters:,} characters of text; attach a part of it",
        "memory": f"reading the PDF takes more than {spoken_memory(limits.pdf_memory)} of memory; attach a part of it",
        "stopped": f"reading the PDF {found.get('message')}; attach a part of it",
        "broken": f"the PDF is damaged and cannot be read ({found.get('message')})",
    }
    return _refused(said[found["error"]])


def _refused(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_pdf")


def _characters(text: str) -> str:
    """Return a text without control characters, and with a replacement for halves of surrogate pairs."""
    valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "".join(c for c in valid if c >= " " or c in "\n\t").strip()
