"""Count words to avoid and long sentences in names, comments, messages, help texts and docs; fail above the limits.

python scripts/check_style.py           the count of every word
python scripts/check_style.py --list    every place, with what to write instead
python scripts/check_style.py --list csrc docs/serving.md    the places in some folders or files

The script reads the text of pages and configurations, comments and string literals of code (help texts and error
messages among them, f-strings without their placeholders), the comments in fenced blocks of pages, and names in code,
each once per file (`whose_`, `soMany`). A phrase may run over several lines. Standard library only.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LIMIT = 0
"""Largest number of words to avoid. It only goes down: lower it with the commit that rewrites some."""

LONG_LIMIT = 0
"""Largest number of sentences with more than `MAX_WORDS` words in pages; it only goes down."""

MAX_WORDS = 40
"""Words of a sentence in a page."""

GENERATED = ("docs/commands.md", "docs/python.md")
"""Pages written by scripts from help texts and docstrings, which are checked where they are written."""

FINE_AFTER_NO = "different|faster|fewer|larger|less|longer|more|slower|smaller|worse"
WORDS = {
    r"beside": "next to, in addition to, compared with",
    r"whose": "name the owner or the source, or use 'with'",
    r"so many": "the number (n tokens)",
    r"that many": "the number (n rows)",
    r"as many": "the number of ..., an equal number of",
    r"so much": "the quantity with its unit",
    r"asked|asks": "requested, requests, calls, queries",
    r"told|tells": "receives, reports, returns, shows",
    r"says": "returns, reports, states",
    r"(?<!~)nobody": "no caller, no request, none",
    r"whoever|somebody": "the caller, another request, a user",
    r"what (?:is|was|are|were) (?:kept|found|taken)": "cached entries, the cache hit, the accepted rows",
    r"goes back to|go back to|went back to": "rolls back to, returns to",
    r"lets? go of": "releases",
    r"(?:is|are|be) left alone": "is skipped, is unchanged",
    r"in turn": "alternating, interleaved, one after another",
    r"in company": "in a batch",
    r"stands(?! for)|stood": "is stored, is at, is in",
    r"lies": "is located, is in",
    r"a while(?! loop)": "n steps, n seconds",
    r"now and then|by and by": "every n steps, after n seconds",
    r"dear(?! customers)|dearer|dearest": "expensive, costs more",
    r"cheap|cheaper|cheapest|cheaply": "low-cost, costs less, fast",
    r"worth its|worth their": "profitable, pays",
    r"(?:behavi|col|fav|flav|hon|lab|neighb)our\w*": "American spelling: behavior, color, favor, honor, neighbor",
    r"(?:de|re|un)?(?:author|canonical|categor|central|custom|emphas|final|general|initial|local|maxim|memor|minim|normal"
    r"|optim|organ|parallel|penal|prior|quant|random|real|recogn|serial|special|standard|summar|synchron|token|util"
    r"|vector|visual)is(?:e|es|ed|er|ers|ing|ations?)": "American spelling: quantize, recognize, optimize",
    r"licence[sd]?": "American spelling: license",
    r"analys(?:e|ed|er|ing)|artefacts?|catalogues?|centred?|grey": "analyze, artifact, catalog, center, gray",
    r"judgement|labell(?:ed|ing)|programmes?|amongst|whilst": "judgment, labeled, program, among, while",
    rf"(?<!there\s)(?:is|are) no (?!(?:{FINE_AFTER_NO})\b)": "is not a ..., has no ...; 'there is no ...' is fine",
    r"what (?:it|this|that|lookahead) brings|brings (?:much|little|nothing)": "the speed-up, the gain",
    r"of (?:yours|ours|theirs)": "your own, our own, their own",
    r"(?:had|came|come|comes) for free": "was accepted from a draft",
    r"what becomes of": "how ... is handled, which ... are supported",
    r"hangs? on": "depends on",
    r"(?:gives?|gave) (?:it|them) again|(?:be|is) had again": "reproduces",
    r"the house(?! style)": "the architecture, the package",
    r"strangers?(?! (?:to|than))": "untrusted (files, clients), a new user",
    r"go(?:es)? round|in circles": "repeats itself, is repetitive",
    r"away with": "remove, without",
    r"in the midst": "in the middle",
    r"for ever": "endlessly, without end",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"those who": "users who",
    r"is called that|are called that": "is flagged",
    r"makers": "authors",
    r"draws? as": "samples as",
    r"judges? of": "moderates, checks",
    r"lets? (?:others|them|it) in": "accepts",
    r"(?:say|says|said|give|given) nothing|nothing is (?:said|asked|given)": "by default, if the option is not set",
    r"(?:say|said) so": "report it",
    r"(?:for )?so long(?! as)": "n seconds, n tokens",
    r"likeliest": "most likely",
    r"hardly|seldom": "rarely, in n of m cases",
    r"as ever": "as before",
    r"such a one": "one, such a (noun)",
    r"puts? to (?:it|them|the model|its)": "passed to, fed back to",
    r"told apart|tells? apart": "distinguished, returned separately",
    r"it is not there|are not there": "is missing",
    r"company": "batch, neighbors",
    r"comes to nothing": "has no effect",
}
"""Pattern of a word or phrase to avoid -> what to write instead. `hidden` is absent: hidden states have that name."""

GROUPS = "|".join(f"(?P<w{number}>{pattern})" for number, pattern in enumerate(WORDS)).replace(" ", r"\s+")
PATTERN = re.compile(rf"\b(?:{GROUPS})\b", re.IGNORECASE)
REPLACEMENTS = list(WORDS.values())

ROOM = ("ipex_lookahead", "csrc", "scripts", "benchmarks", "examples", "configs", "docs", ".github")
ROOM_FILES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "RELEASING.md",
    "SECURITY.md",
    "Dockerfile",
    "Makefile",
    "CMakeLists.txt",
    "pyproject.toml",
    "mkdocs.yml",
)
NOT_READ = ("docs/results", "docs/figures", "docs/dev/LOG.md", "docs/log.md", "docs/LOG.md", "scripts/check_style.py")
CODE = {".cc", ".h", ".inl", ".cl", ".js", ".css", ".map"}
TEXT = {".md", ".html", ".yaml", ".yml", ".toml", ".sh", ".svg", ""}

TOKEN = re.compile(
    r"""(?P<line>//[^\n]*) | (?P<block>/\*.*?\*/)
      | R"(?P<mark>[^\s()\\]{0,16})\((?P<raw>.*?)\)(?P=mark)"
      | (?P<text>"(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | `(?:\\.|[^`\\])*`)
      | (?P<number>\d[\w'.]*) | (?P<name>[A-Za-z_]\w*) | (?P<space>\s+) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
FENCE = re.compile(r"^ *(```|~~~)(?P<language>\w*).*?^ *\1[^\n]*$", re.DOTALL | re.MULTILINE)
COMMENTED = {"sh", "bash", "python", "yaml", "dockerfile"}  # languages of fenced blocks that have comments after #
COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
SENTENCE = re.compile(r"[^\s\0](?:(?![.!?][*_)\"']*\s|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s)[^\0])*")
LONG = "long sentence"
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True)
class Place:
    """One word to avoid.

    Attributes:
        path: The file, relative to the project.
        line: Line number, from 1.
        word: The word as it is written, in lower case.
        instead: What to write.
    """

    path: str
    line: int
    word: str
    instead: str


def _blank(text: str, filler: str) -> str:
    """Return `text` with every character but line ends replaced by `filler`, so that line numbers stay."""
    return re.sub(r"[^\n]", filler, text)


def _prose_of_string(literal: str) -> str:
    """Return the text of a string literal without quotes and escapes, of the same length."""
    literal = re.sub(r"\\.", "  ", literal)
    return re.sub(r"^[A-Za-z]*(\"\"\"|'''|[\"'`])|(\"\"\"|'''|[\"'`])$", lambda m: " " * len(m.group()), literal)


def _split_code(source: str) -> tuple[str, list[tuple[int, str]]]:
    """Return the prose of C++, OpenCL, JavaScript or CSS, with code as NUL, and its names with their line numbers."""
    prose: list[str] = []
    names: list[tuple[int, str]] = []
    line = 1
    for match in TOKEN.finditer(source):
        text = match.group()
        if match["line"] or match["block"]:
            prose.append(re.sub(r"^/[/*]+|^\s*\*+/?|\*/$", lambda m: " " * len(m.group()), text, flags=re.MULTILINE))
        elif match["text"] or match["raw"] is not None:
            prose.append(_prose_of_string(text))
        elif match["space"]:
            prose.append(text)
        else:
            prose.append(_blank(text, "\0"))
            if match["name"]:
                names.append((line, text))
        line += text.count("\n")
    return "".join(prose), names


def _split_python(source: str) -> tuple[str, list[tuple[int, str]]]:
    """Return the prose of Python, with code as NUL, and its names with their line numbers."""
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    prose = list(re.sub(r"\S", "\0", source))
    names: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        first = starts[token.start[0] - 1] + token.start[1]
        last = starts[token.end[0] - 1] + token.end[1]
        kind = tokenize.tok_name[token.type]
        if kind == "NAME":
            names.append((token.start[0], token.string))
        elif kind == "COMMENT":
            prose[first:last] = source[first:last].replace("#", " ")
        elif kind == "STRING":
            text = source[first:last]
            if "f" in re.split("[\"']", text)[0].lower():  # Python < 3.12: an f-string is one token
                text = re.sub(r"\{[^{}]*\}", lambda m: _blank(m.group(), "\0"), text)
            prose[first:last] = _prose_of_string(text)
        elif kind == "FSTRING_MIDDLE":
            prose[first:last] = re.sub(r"\\.", "  ", source[first:last])
        elif kind in ("FSTRING_START", "FSTRING_END"):
            prose[first:last] = " " * (last - first)
    return "".join(prose), names


def _blank_fence(match: re.Match[str]) -> str:
    """Return a fenced block with code as NUL: only its comments stay."""
    text, last = "", 0
    for comment in COMMENT.finditer(match.group()) if match["language"] in COMMENTED else ():
        text += _blank(match.group()[last : comment.start()], "\0") + comment.group()
        last = comment.end()
    return text + _blank(match.group()[last:], "\0")


def _split_text(source: str) -> tuple[str, list[tuple[int, str]]]:
    """Return the text of a page or a configuration without comment marks, and of fenced blocks the comments."""
    return FENCE.sub(_blank_fence, source).replace("#", " "), []


def long_sentences(path: str, source: str) -> Iterator[Place]:
    """Yield the long sentences in paragraphs and list items of a page; tables and fenced blocks are skipped.

    Args:
        path: Name of the page.
        source: Its text.
    """
    text = FENCE.sub(lambda m: _blank(m.group(), "\0"), source)
    text = re.sub(r"^ *(?:\||#|<!--)[^\n]*$", lambda m: "\0" * len(m.group()), text, flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", lambda m: "x" * len(m.group()), text)  # code and addresses: one word
    for sentence in SENTENCE.finditer(text):
        words = len(re.findall(r"[^\W_]\S*", sentence.group()))
        if words > MAX_WORDS:
            line = text.count("\n", 0, sentence.start()) + 1
            yield Place(path, line, LONG, f"sentences of at most {MAX_WORDS} words: this one has {words}")


def places(path: str, source: str) -> Iterator[Place]:
    """Yield the words to avoid of one file.

    Args:
        path: Its name, of which the suffix says how to read it.
        source: Its text.
    """
    suffix = Path(path).suffix
    split = _split_python if suffix in (".py", ".pyi") else _split_code if suffix in CODE else _split_text
    prose, names = split(source)
    for match in PATTERN.finditer(prose):
        word = " ".join(match.group().lower().split())
        yield Place(path, prose.count("\n", 0, match.start()) + 1, word, REPLACEMENTS[int(match.lastgroup[1:])])
    if suffix == ".md" and path not in GENERATED:
        yield from long_sentences(path, source)
    seen: set[str] = set()
    for line, name in names:
        if name in seen:
            continue
        seen.add(name)
        for match in PATTERN.finditer(" ".join(PARTS.findall(name)).lower()):
            yield Place(path, line, f"{match.group()} (in {name})", REPLACEMENTS[int(match.lastgroup[1:])])


def files(root: Path, only: list[str]) -> Iterator[Path]:
    """Yield the files that are read, in order of their names.

    Args:
        root: Folder of the project.
        only: Files and folders relative to it; empty for all.
    """
    candidates = [path for room in ROOM for path in sorted((root / room).rglob("*"))]
    candidates += [root / name for name in ROOM_FILES]
    for path in candidates:
        name = path.relative_to(root).as_posix()
        if not path.is_file() or path.suffix not in CODE | TEXT | {".py", ".pyi"} or "__pycache__" in name:
            continue
        if ".min." in name or "/vendor/" in name:  # other projects' files
            continue
        if any(name == other or name.startswith(other + "/") for other in NOT_READ):
            continue
        if not only or any(name == other.rstrip("/") or name.startswith(other.rstrip("/") + "/") for other in only):
            yield path


def main(arguments: list[str], root: Path = ROOT, limits: tuple[int, int] | None = None) -> int:
    """Count, print, and return 1 above a limit.

    Args:
        arguments: Those of the command line.
        root: Folder of the project.
        limits: Largest numbers of words to avoid and of long sentences; None takes `LIMIT` and `LONG_LIMIT`.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every place with what to write instead")
    parser.add_argument("only", nargs="*", metavar="PATH", help="files and folders to read; limits need all")
    options = parser.parse_args(arguments)
    found = [
        place
        for path in files(root, options.only)
        for place in places(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    ]
    counts: dict[str, int] = {}
    for place in found:
        if options.list:
            print(f"{place.path}:{place.line}: {place.word} -> write {place.instead}")
        word = place.word.split(" (in ")[0]
        counts[word] = counts.get(word, 0) + 1
    long = counts.pop(LONG, 0)
    if not options.list:
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        print(textwrap.fill(", ".join(f"{word} {count}" for word, count in ordered), 120))
    total = f"{len(found) - long} words to avoid, {long} long sentences"
    if options.only:
        print(f"{total} in {', '.join(options.only)}")
        return 0
    status = 0
    for count, what, name, limit in zip(
        (len(found) - long, long), ("words to avoid", "long sentences"), ("LIMIT", "LONG_LIMIT"),
        (LIMIT, LONG_LIMIT) if limits is None else limits, strict=True,
    ):  # fmt: skip
        print(f"{count} {what}, {limit} allowed")
        if count > limit:
            print(f"error: more {what} than scripts/check_style.py allows", file=sys.stderr)
            print("hint: python scripts/check_style.py --list PATH prints what to write instead", file=sys.stderr)
            status = 1
        elif count < limit:
            print(f"hint: set {name} = {count} in scripts/check_style.py")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
