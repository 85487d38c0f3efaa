"""The text of a PDF file, with pypdf; ``tokenization/worker.py`` runs this file in a process with limits."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from typing import Any


def answer(limits: dict[str, Any], file: bytes, limit_resources: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return {"pages": number, "text": ...} of a PDF file, or {"error": kind, "message": ...}.

    Args:
        limits: ``pages``, ``characters``, ``nice``, and those of ``limit_resources``.
        file: The PDF file.
        limit_resources: Sets limits of the kernel.
    """
    try:
        import pypdf
    except ImportError as error:
        return {"error": "missing", "message": str(error)}
    logging.disable()  # pypdf reports each fault of a file that it reads nevertheless
    os.nice(limits["nice"])
    limit_resources(limits)
    try:
        reader = pypdf.PdfReader(io.BytesIO(file))
        if reader.is_encrypted and not reader.decrypt(""):
            return {"error": "encrypted"}
        texts: list[str] = []
        characters = 0
        for page in reader.pages:
            if len(texts) == limits["pages"]:
                return {"error": "pages"}
            texts.append(page.extract_text())
            characters += len(texts[-1])
            if characters > limits["characters"]:
                return {"error": "characters"}
    except MemoryError:
        return {"error": "memory"}
    except pypdf.errors.DependencyError:  # AES
        return {"error": "encrypted"}
    except Exception as error:  # pypdf does not document which ones a damaged file can raise
        return {"error": "broken", "message": f"{type(error).__name__}: {error}"[:200]}
    return {"pages": len(texts), "text": "\n\n".join(filter(None, (text.strip() for text in texts)))}
