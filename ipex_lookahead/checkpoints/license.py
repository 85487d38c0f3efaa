"""License information of a checkpoint, and its propagation when the model is saved in another form."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from ipex_lookahead.checkpoints.gguf_reader import GgufFile
from ipex_lookahead.errors import ModelFormatError

MAX_BYTES = 1 << 20
"""Larger files are not considered as licenses or model cards."""
_TEXTS = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|COPYRIGHT|USE_POLICY)([-_.][A-Za-z0-9._-]{0,64})?", re.IGNORECASE)
_FRONT_MATTER = re.compile(r"---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", re.DOTALL)
_FACT = re.compile(r"^(license(?:_name|_link)?):[ \t]*(\S[^\r\n]{0,255})$", re.MULTILINE)
_GGUF_FACTS = {name: "general." + name.replace("_", ".") for name in ("license", "license_name", "license_link")}


def license_facts(source: Path) -> dict[str, str]:
    """Return ``license``, ``license_name`` and ``license_link`` from a folder's model card or a GGUF file."""
    if source.is_dir():
        card = _text(source / "README.md")
        front = _FRONT_MATTER.match(card)
        said: dict[str, object] = dict(_FACT.findall(front[1])) if front else {}
        return _lines(said)
    try:
        file = GgufFile(source)
    except ModelFormatError:
        return {}
    file.file.close()
    return _lines({name: file.metadata.get(key) for name, key in _GGUF_FACTS.items()})


def _lines(said: dict[str, object]) -> dict[str, str]:
    """Return the facts that are a single printable line; others could inject lines into the written model card."""
    facts = {name: fact.strip() for name, fact in said.items() if isinstance(fact, str)}
    return {name: fact for name, fact in facts.items() if 0 < len(fact) <= 256 and fact.isprintable()}


def copy_license(source: Path, folder: Path) -> None:
    """Copy the license and notice files of ``source`` into ``folder``, and write a model card with its license facts.

    Of a GGUF file only its own metadata are used: files next to it may belong to another model. Raises OSError.
    """
    facts = license_facts(source)
    if source.is_dir():
        for name in sorted(os.listdir(source)):
            path = source / name
            if _TEXTS.fullmatch(name) and path.is_file() and path.stat().st_size <= MAX_BYTES:
                shutil.copyfile(path, folder / name)
    if facts:
        front = "".join(f"{name}: {fact}\n" for name, fact in facts.items())
        card = f"---\n{front}---\n\nQuantized with ipex-lookahead; the license is that of the model it was made from.\n"
        (folder / "README.md").write_text(card, encoding="utf-8")


def _text(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
