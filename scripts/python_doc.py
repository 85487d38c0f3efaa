"""Write docs/python.md from the docstrings and signatures of the public names.

python scripts/python_doc.py
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipex_lookahead import errors

FILE = Path(__file__).resolve().parents[1] / "docs" / "python.md"
HEAD = """\
# Python reference

This page documents the public Python names. [python_guide.md](python_guide.md) shows each task with an example,
[transformers.md](transformers.md) lists the supported parts of transformers' API, and [migrating.md](migrating.md)
lists ipex-llm's names.

This file is made by `scripts/python_doc.py` from the code; do not edit it.
"""
CHAPTERS: dict[str, dict[str, tuple[str, ...]]] = {
    "LLM": {
        "ipex_lookahead.LLM": ("chat", "stream", "generate", "complete_batch", "embed", "rank", "close"),
        "ipex_lookahead.llm.AnswerOptions": (),
        "ipex_lookahead.llm.Answer": ("text", "message", "parsed"),
        "ipex_lookahead.llm.AnswerStream": ("answer", "close"),
        "ipex_lookahead.llm.ToolCall": (),
    },
    "Loading for transformers": {
        "ipex_lookahead.AutoModelForCausalLM": ("from_pretrained", "from_gguf", "load_low_bit"),
        "ipex_lookahead.AutoModelForImageTextToText": ("from_pretrained",),
        "ipex_lookahead.wrap": (),
        "ipex_lookahead.optimize_model": (),
        "ipex_lookahead.hf.optimize.load_low_bit": (),
        "ipex_lookahead.hf.optimize.low_memory_init": (),
    },
    "The model for transformers": {
        "ipex_lookahead.hf.model.LookaheadModelForCausalLM": (
            "generate", "stream", "forward", "load_cache", "save_low_bit", "use_draft_model", "forget",
        ),
        "ipex_lookahead.hf.generation.past.LookaheadCache": ("save",),
        "ipex_lookahead.hf.generation.generate.generate": (),
        "ipex_lookahead.runtime.lookahead.second_model_lookahead": (),
        "ipex_lookahead.decoding.stats.GenerationStats": (),
    },
    "Embedding and reranking": {
        "ipex_lookahead.AutoModelForEmbedding": ("from_pretrained",),
        "ipex_lookahead.hf.embedding.EmbeddingEncoder": (
            "encode", "encode_query", "encode_document", "similarity", "predict", "rank", "close",
        ),
        "ipex_lookahead.embedding.model.EmbeddingModel": (
            "open", "embed", "rank", "inputs", "pairs", "vectors", "scores", "describe", "close",
        ),
        "ipex_lookahead.embedding.model.Embeddings": (),
        "ipex_lookahead.embedding.model.Ranked": (),
        "ipex_lookahead.embedding.model.probabilities": (),
        "ipex_lookahead.embedding.model.purpose_of": (),
    },
    "Lookahead": {
        "ipex_lookahead.LookaheadConfig": ("from_yaml",),
        "ipex_lookahead.LookaheadDecoding": ("generate",),
        "ipex_lookahead.drafting.Proposer": ("begin", "propose", "observe"),
        "ipex_lookahead.drafting.Draft": (),
        "ipex_lookahead.drafting.Outcome": (),
        "ipex_lookahead.drafting.OutputRequest": (),
    },
    "Errors": {
        f"ipex_lookahead.{name}": ()
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.LookaheadError)
    },
}  # fmt: skip
"""What is described, and which methods and properties of a class."""
CONSTRUCTED = {"ipex_lookahead.LLM", "ipex_lookahead.LookaheadConfig", "ipex_lookahead.LookaheadDecoding",
               "ipex_lookahead.drafting.Draft",
               "ipex_lookahead.drafting.OutputRequest"}  # fmt: skip
"""Classes that programs call; of the others they get objects."""
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
LISTS = ("Args", "Attributes", "Raises")


def text() -> str:
    """The whole file."""
    lines = [HEAD]
    for chapter, names in CHAPTERS.items():
        lines += [f"## {chapter}", ""]
        for path, methods in names.items():
            lines += described(path, methods)
    return "\n".join(lines)


def described(path: str, methods: tuple[str, ...]) -> Iterator[str]:
    """One public name: heading, signature, docstring; then its methods."""
    thing = found(path)
    yield from (f"### {path.removeprefix('ipex_lookahead.')}", "")
    if path in CONSTRUCTED or not inspect.isclass(thing):
        yield from signature(path, thing)
    yield from documented(thing)
    for name in methods:
        method = getattr(thing, name)
        yield from (f"#### {path.rsplit('.', 1)[1]}.{name}", "")
        if not isinstance(method, property):
            yield from signature(f"{path.rsplit('.', 1)[1]}.{name}", method)
        yield from documented(method)


def found(path: str) -> Any:
    """The object of a dotted name."""
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


def signature(name: str, thing: Any) -> list[str]:
    """A block of Python with one parameter a line where they would not fit into one."""
    whole = inspect.signature(thing)
    parts: list[str] = []
    starred = False
    for parameter in whole.parameters.values():
        if parameter.name == "self" or plain(parameter.annotation) == "Never":  # Never: no such argument is allowed
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts, starred = [*parts, "*"], True
        said = str(parameter) if parameter.annotation is parameter.empty else annotated(parameter)
        parts.append(said)
    returned = "" if whole.return_annotation is whole.empty else f" -> {plain(whole.return_annotation)}"
    line = f"{name}({', '.join(parts)}){returned}"
    if len(line) > 100:
        line = "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returned}"])
    return ["```python", line, "```", ""]


def annotated(parameter: inspect.Parameter) -> str:
    """Return ``name: type = default``, equal in all versions of Python."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    said = "..." if repr(parameter.default).startswith("<") else repr(parameter.default)  # objects have no spelling
    default = "" if parameter.default is parameter.empty else f" = {said}"
    return f"{stars}{parameter.name}: {plain(parameter.annotation)}{default}"


def plain(annotation: Any) -> str:
    """An annotation as the source has it."""
    if annotation is None:
        return "None"
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def documented(thing: Any) -> list[str]:
    """A docstring in Google's form as Markdown: its sections become lists."""
    said = inspect.getdoc(thing)
    if not said:
        raise SystemExit(f"{thing} has no docstring")
    lines: list[str] = []
    section = ""
    for line in marked(said).splitlines():
        heading = re.fullmatch(r"(\w+):", line)
        if heading and heading[1] in SECTIONS:
            section = heading[1]
            lines += [f"**{section}**", ""]
        elif section and line and not line.startswith(" "):
            section = ""
            lines += [line]
        elif section in LISTS and (item := re.fullmatch(r"    ([\w*, .]+): (.*)", line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif section:
            lines.append(("  " if section in LISTS and line else "") + line.strip())
        else:
            lines.append(line)
    return [*lines, ""]


def marked(said: str) -> str:
    """reStructuredText's code and references as Markdown has them."""
    said = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", said)
    return said.replace("``", "`")


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
