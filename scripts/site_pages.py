"""Hooks of ``make docs``: README and other files of the root, presets and examples as further pages.

mkdocs calls the functions (``hooks`` in mkdocs.yml). In the repository pages link to files wherever they lie; here such
links are turned to the pages that hold them. mkdocs is imported where it is used: tests read this file without it.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "",
    "RELEASING.md": "",
    "SECURITY.md": "",
    "CHANGELOG.md": "",
    "LICENSE": "LICENSE.md",
}
"""Files of the root, and their names on the site where these are others."""
PRESETS = {"ipex_lookahead/configs": "configs", "ipex_lookahead/formats/presets": "configs/formats"}
"""Folders of presets in the package, and their names in configs: GitHub does not follow symbolic links in addresses."""
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)\s#]*)(#[^)\s]*)?\)")
BAR = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
"""Code in a table with an escaped bar, which GitHub shows as a bar and Python-Markdown as both."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made of files outside docs."""
    for name, other in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        add(files, config, other or name, f"# License\n\n```text\n{text}```\n" if name == "LICENSE" else text)
    add(files, config, "presets.md", presets())
    add(files, config, "examples.md", examples())
    add(files, config, "results.md", results())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files into links to the pages that hold them."""
    origin = page.file.src_uri
    from_root = dict.fromkeys((other or name for name, other in ROOT_PAGES.items()), "")
    folder = {**from_root, "examples.md": "examples", "presets.md": "configs"}.get(origin, "docs")

    def turned(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if not (ROOT / path).exists():
            refuse(f"{origin} links to {path}, which is not there")
        said = title(path) if re.fullmatch(r"(docs/)?\w+\.md", link[1]) else link[1]
        return f"[{said}]({site_address(path, link[3] or '')})"

    shown = BAR.sub(lambda code: f"<code>{html.escape(code[1]).replace(chr(92) + '|', '&#124;')}</code>", markdown)
    return LINK.sub(turned, shown)


def title(path: str) -> str:
    """Return the heading of a page, the text of links on the site instead of the file name."""
    if path == "LICENSE":
        return "License"
    return (ROOT / path).read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")


def on_post_build(config: Any, **_: Any) -> None:
    """Fail if a page of the site loads anything from another machine."""
    for file in sorted(Path(config.site_dir).rglob("*.html")):
        text = file.read_text(encoding="utf-8")
        for reference in re.findall(
            r"""<(?:script|img|iframe|link(?! rel="canonical"))[^>]*(?:src|href)="(?:https?:)?//[^>]*>""", text
        ):
            refuse(f"{file.name} refers to another machine: {reference}")


def site_address(path: str, anchor: str) -> str:
    """The address of a file of the repository, ``path`` being seen from its root."""
    if path == "docs/results":
        return "results.md"
    if path.startswith("docs/dev/"):  # pages for contributors are not part of the site
        return f"{repository()}/blob/main/{path}{anchor}"
    if path.startswith("docs/"):
        return path.removeprefix("docs/") + anchor
    if path in ROOT_PAGES:
        return (ROOT_PAGES[path] or path) + anchor
    for folder in ("configs", "examples"):
        if path == folder or path.startswith(folder + "/"):
            inside = path.removeprefix(folder).strip("/")
            heading = "" if inside == "README.md" else re.sub(r"[^\w-]", "", inside.lower())
            return ("presets.md" if folder == "configs" else "examples.md") + (f"#{heading}" if heading else "")
    for place, folder in PRESETS.items():
        if path == place or path.startswith(place + "/"):
            return site_address(folder + path.removeprefix(place), anchor)
    refuse(f"a page links to {path}, which is on no page of the site: add it to scripts/site_pages.py")


def repository() -> str:
    """The address of the repository, as pyproject.toml has it."""
    found = re.search(r'^Repository = "([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def presets() -> str:
    """Return the page of configs/README.md with all files by folder."""
    lines = [(ROOT / "configs" / "README.md").read_text(encoding="utf-8"), ""]
    for folder in sorted(one for one in (ROOT / "configs").iterdir() if one.is_dir()):
        lines += [f"## {folder.name}", ""]
        for file in sorted(folder.glob("*.yaml")):
            lines += [f"### {folder.name}/{file.name}", "", *fenced("yaml", file)]
    return "\n".join(lines)


def examples() -> str:
    """Return the page of examples/README.md with all examples."""
    lines = [(ROOT / "examples" / "README.md").read_text(encoding="utf-8"), ""]
    for file in sorted((ROOT / "examples").glob("*.py")):
        lines += [f"## {file.name}", "", *fenced("python", file)]
    return "\n".join(lines)


def results() -> str:
    """The files that tables are made of."""
    shown = "The tables of [benchmarks](benchmarks.md) and [formats](formats.md) are made of these."
    lines = ["# Result files", "", shown, ""]
    lines += [f"- [{file.name}](results/{file.name})" for file in sorted((ROOT / "docs" / "results").glob("*.json"))]
    return "\n".join(lines)


def fenced(language: str, file: Path) -> list[str]:
    """A file as a block of code."""
    return [f"```{language}", file.read_text(encoding="utf-8").rstrip("\n"), "```", ""]


def add(files: Any, config: Any, name: str, text: str) -> None:
    """A page that is not a file of docs."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, name, content=text))


def refuse(message: str) -> NoReturn:
    """End the build with a sentence."""
    from mkdocs.exceptions import PluginError

    raise PluginError(message)
