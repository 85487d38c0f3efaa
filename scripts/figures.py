"""Draw the figures of README and docs/how_it_works.md into docs/figures.

python scripts/figures.py            # draws all but the terminal picture again, from docs/results
python scripts/figures.py --demo     # runs the command in a terminal and pictures its output: docs/figures/demo.svg
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "figures"
RESULTS = ROOT / "docs" / "results"
INK, FAINT, LINE, BLUE, GREEN, RED = "ink", "faint", "line", "blue", "green", "red"
COLORS = {  # of the light and of the dark theme
    "card": ("#ffffff", "#0d1117"),
    INK: ("#1c2430", "#e6edf3"),
    FAINT: ("#5b6675", "#9198a1"),
    LINE: ("#b9c2cd", "#4a525c"),
    BLUE: ("#1f5fa8", "#58a6ff"),
    GREEN: ("#1d7a46", "#3fb950"),
    RED: ("#b3382c", "#f47067"),
    "line-fill": ("#eef1f5", "#21262d"),
    "blue-fill": ("#dbe8f7", "#15325a"),
    "green-fill": ("#d6efdf", "#12391f"),
    "red-fill": ("#f7dedb", "#4a211d"),
    "pale": ("#9dbfe6", "#274f86"),
    "gray": ("#7d8794", "#8b949e"),
    "gray-pale": ("#c3cad3", "#454d57"),
}


class Drawing:
    """An SVG file on a card of its own that follows the reader's theme, light or dark."""

    def __init__(self, height: float, title: str, width: float = 600) -> None:
        self.height, self.title, self.width = height, title, width
        self.parts: list[str] = []

    def text(self, x: float, y: float, text: str, *, size: float = 14, color: str = INK, anchor: str = "start",
             bold: bool = False) -> None:  # fmt: skip
        """Letters with their baseline at y."""
        weight = ' font-weight="600"' if bold else ""
        at = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" class="f-{color}"{at}{weight}'
            f' xml:space="preserve">{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, color: str = LINE) -> None:
        """A rectangle with round corners and an outline."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="f-{color}-fill s-{color}"/>'
        )

    def mark(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """A filled rectangle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:.4g}" height="{height:g}" rx="3" class="f-{color}"/>'
        )

    def path(self, points: Iterable[tuple[float, float]], color: str = FAINT, *, arrow: bool = False,
             dashed: bool = False, width: float = 1.5) -> None:  # fmt: skip
        """A line through points."""
        end = f' marker-end="url(#{color})"' if arrow else ""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{joined}" fill="none" class="s-{color}" stroke-width="{width:g}"{dash}{end}/>'
        )

    def dot(self, x: float, y: float, color: str, radius: float = 4) -> None:
        """A filled circle."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="f-{color}"/>')

    def svg(self) -> str:
        """The whole file."""
        body = "\n".join(self.parts)
        arrows = "".join(
            f'<marker id="{color}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            f' orient="auto"><path d="M0 0L8 4L0 8z" class="f-{color}"/></marker>'
            for color in (FAINT, GREEN, RED, BLUE)
            if f"url(#{color})" in body
        )
        card = (
            f'<rect x="0.5" y="0.5" width="{self.width - 1:g}" height="{self.height - 1:g}" rx="8"'
            ' class="f-card s-line"/>'
        )
        classes = " ".join(re.findall('class="([^"]*)"', arrows + card + body))
        used = sorted(set(re.findall(r"\b([fs])-([\w-]+)", classes)))
        light, dark = (
            "".join(f".{kind}-{name}{{{'fill' if kind == 'f' else 'stroke'}:{COLORS[name][i]}}}" for kind, name in used)
            for i in range(2)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}"'
            f' width="{self.width:g}" height="{self.height:g}"'
            ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" role="img">\n'
            f"<title>{escape(self.title)}</title>\n"
            f"<style>{light}@media (prefers-color-scheme: dark){{{dark}}}</style>\n"
            + (f"<defs>{arrows}</defs>\n" if arrows else "")
            + f"{card}\n{body}\n</svg>\n"
        )


PROGRAMS = {"llama-cpp-python": "llama.cpp", "llama-server": "llama.cpp", "openvino-genai": "OpenVINO GenAI"}
"""Name of a peer in docs/results -> its name in the figure, if that differs."""
ISAS = {"amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx_vnni": "AVX-VNNI", "avx2": "AVX2"}
SHAPES = {"smollm2-135m": "135M", "tinyllama-1.1b": "1.1B", "llama2-7b": "7B"}


def result(name: str) -> dict[str, Any]:
    """Return a file of docs/results."""
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def described(measured: dict[str, Any]) -> str:
    """Return the machine, the version and the date of a file of docs/results."""
    machine = measured["machine"]
    processor = re.sub(r"\((?:R|TM)\)| (?:CPU|Processor)\b", "", machine["processor"]).split(" @")[0].strip()
    return " \u00b7 ".join((
        processor, f"{machine['threads']} threads", ISAS.get(machine["isa"], machine["isa"]),
        f"ipex-lookahead {measured['version']}", measured["date"],
    ))  # fmt: skip


def fastest(compare: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return program -> "lookahead" and "plain" -> the fastest row of docs/results/compare.json."""
    programs: dict[str, dict[str, dict[str, Any]]] = {}
    for row in sorted(compare["rows"], key=lambda row: row["decode_tok_s"]):
        programs.setdefault(row["peer"], {})["plain" if row["mode"] == "plain" else "lookahead"] = row
    return dict(sorted(programs.items(), key=lambda item: -max(row["decode_tok_s"] for row in item[1].values())))


def speed() -> Drawing:
    """Decode speed of each program with and without its own lookahead, and of larger models against llama.cpp."""
    compare, shapes = result("compare"), result("llama-cpp")
    programs = fastest(compare)
    left, wide, right, each = 184, 332, 676, 46
    height = 98 + each * len(programs) + 46 + 26 * len(shapes["shapes"]) + 54
    drawing = Drawing(height, "Decode speed of ipex-lookahead and other programs", 700)
    drawing.text(24, 34, "Decode speed, SmolLM2-135M in 4 bits", size=18, bold=True)
    settings = f"tokens per second, higher is better; {compare['prompts']} prompts, greedy"
    drawing.text(24, 55, settings, size=13, color=FAINT)
    for x, colors, label in ((left, (BLUE, "gray"), "with lookahead"), (left + 138, ("pale", "gray-pale"), "without")):
        for i, color in enumerate(colors):
            drawing.mark(x + 15 * i, 74, 11, 11, color)
        drawing.text(x + 33, 84, label, size=12, color=FAINT)
    drawing.text(right, 70, "same text with", size=12, color=FAINT, anchor="end")
    drawing.text(right, 84, "and without it", size=12, color=FAINT, anchor="end")
    most = max(row["decode_tok_s"] for modes in programs.values() for row in modes.values())
    y = 98.0
    for name, modes in programs.items():
        ours = name == "ipex-lookahead"
        version = next(iter(modes.values()))["version"]
        drawing.text(left - 14, y + 17, PROGRAMS.get(name, name), size=14, anchor="end", bold=ours)
        package = f"{name if name in PROGRAMS else ''} {version}".strip()
        drawing.text(left - 14, y + 33, package, size=11, anchor="end", color=FAINT)
        for i, mode in enumerate(mode for mode in ("lookahead", "plain") if mode in modes):
            value = modes[mode]["decode_tok_s"]
            color = {True: (BLUE, "pale"), False: ("gray", "gray-pale")}[ours][mode == "plain"]
            drawing.mark(left, y + 3 + 18 * i, max(wide * value / most, 3), 16, color)
            drawing.text(left + wide * value / most + 8, y + 16 + 18 * i, f"{value:.0f}", size=13, bold=ours)
        if "lookahead" in modes:
            same, _, total = modes["lookahead"]["identical_to_plain"].partition("/")
            color = GREEN if same == total else RED
            drawing.text(right, y + 25, f"{same} of {total}", size=14, anchor="end", bold=ours, color=color)
        y += each
    drawing.path([(24, y + 8), (right, y + 8)], LINE, width=1)
    drawing.text(24, y + 34, "Three model sizes in int4, without lookahead", size=15, bold=True)
    drawing.text(right, y + 34, "ipex-lookahead / llama-bench", size=12, color=FAINT, anchor="end")
    y += 46
    ratios = [(SHAPES[one["shape"]], *against_llama(one)) for one in shapes["shapes"]]
    scale = wide / max(mine / theirs for _, mine, theirs in ratios)
    for label, mine, theirs in ratios:
        drawing.text(left - 14, y + 15, f"{label} weights", size=14, anchor="end")
        drawing.mark(left, y + 2, scale * mine / theirs, 16, "pale")
        drawing.text(left + scale * mine / theirs + 8, y + 15, f"{mine / theirs:.1f}x", size=13, bold=True)
        drawing.text(right, y + 15, f"{mine:.3g} / {theirs:.3g} tok/s", size=12, anchor="end", color=FAINT)
        y += 26
    drawing.path([(left + scale, y - 26 * len(ratios) - 2), (left + scale, y)], FAINT, dashed=True, width=1.2)
    drawing.text(left + scale, y + 13, "llama.cpp = 1", size=11.5, color=FAINT, anchor="middle")
    sources = dict.fromkeys(map(described, (compare, shapes)))  # one line if both were measured together
    drawing.text(24, height - 14, "; sizes: ".join(sources), size=11.5 if len(sources) == 1 else 9.5, color=FAINT)
    return drawing


def against_llama(shape: dict[str, Any]) -> tuple[float, float]:
    """Return our and llama-bench's tokens per second: means of runs that alternated."""
    ours = fmean(1e3 / step["ms"] for run in shape["runs"] for step in run["steps"] if step["rows"] == 1)
    return ours, fmean(run["tg"] for run in shape["llama_cpp"])


def step() -> Drawing:
    """Draft, verify, accept."""
    drawing = Drawing(262, "One step of lookahead: a tree of drafts, one forward, the accepted path")
    for x, said in ((20, "1  draft"), (290, "2  one forward"), (452, "3  accept")):
        drawing.text(x, 30, said, bold=True)
    drawing.text(20, 52, "likely next tokens", size=12, color=FAINT)
    drawing.text(290, 52, "the model's own choices", size=12, color=FAINT)
    drawing.text(452, 52, "equal tokens", size=12, color=FAINT)
    tree = {  # token: (x, row, color, parent's x and row, the model's choice after it)
        "sat": (20, 0, INK, None, "on"),
        "on": (92, 1, GREEN, (20, 0), "the"),
        "down": (92, 4, RED, (20, 0), "and"),
        "the": (164, 2, GREEN, (92, 1), "mat"),
        "a": (164, 3, RED, (92, 1), "chair"),
        "hill": (228, 5, RED, (164, 2), "."),
    }
    rows = {"sat": 0, "on": 1, "the": 2, "hill": 3, "a": 4, "down": 5}
    top, gap = 70, 30
    for token, (x, _, color, parent, choice) in tree.items():
        y = top + gap * rows[token]
        if parent is not None:
            above = next(name for name, one in tree.items() if (one[0], one[1]) == parent)
            px, py = parent[0] + 18, top + gap * rows[above] + 22
            drawing.path([(px, py), (px, y + 11), (x - 3, y + 11)], color if color != INK else FAINT, arrow=True)
        drawing.box(x, y, 52, 22, LINE if color == INK else color)
        drawing.text(x + 26, y + 16, token, anchor="middle", color=color, size=13)
        right = token in ("sat", "on", "the")
        drawing.path([(x + 56, y + 11), (316, y + 11)], LINE, dashed=True, width=1)
        drawing.text(324, y + 16, choice, size=13, color=INK if right else LINE, bold=right)
    for y, token, note in (
        (top, "on", "drafted, right"),
        (top + gap, "the", "drafted, right"),
        (top + 2 * gap, "mat", "bonus"),
    ):
        drawing.path([(364, y + 11), (444, y + 11)], GREEN if note != "bonus" else BLUE, arrow=True)
        drawing.text(452, y + 16, token, size=13, bold=True, color=GREEN if note != "bonus" else BLUE)
        drawing.text(490, y + 16, note, size=11.5, color=FAINT)
    drawing.text(452, top + 3 * gap + 22, "3 tokens for about", size=13)
    drawing.text(452, top + 3 * gap + 40, "the cost of one", size=13)
    return drawing


def linear() -> Drawing:
    """How one output of a row is summed."""
    drawing = Drawing(236, "One output of one row: integer dot products by group, joined in ascending order")
    drawing.text(20, 30, "one output of one row", bold=True)
    drawing.text(
        20, 50, "the same operations in the same order, for any batch and on any machine", size=12, color=FAINT
    )
    for i in range(4):
        x = 20 + 142 * i
        last = i == 3
        if last:
            drawing.text(x + 20, 112, "...", size=20, color=FAINT)
            continue
        drawing.box(x, 66, 126, 24)
        drawing.text(x + 63, 82, "32 weights x inputs", size=11.5, anchor="middle")
        drawing.path([(x + 63, 92), (x + 63, 108)], FAINT, arrow=True)
        drawing.box(x, 110, 126, 24, GREEN)
        drawing.text(x + 63, 126, "integer dot: exact", size=12, anchor="middle", color=GREEN)
        drawing.path([(x + 63, 136), (x + 63, 152)], FAINT, arrow=True)
        drawing.box(x, 154, 126, 24, BLUE)
        drawing.text(x + 63, 170, "fma(dot, s, sum)", size=11.5, anchor="middle", color=BLUE)
        drawing.path([(x + 127, 166), (x + 140, 166)], BLUE, arrow=True)
    drawing.text(446, 171, "... output", size=13, color=BLUE)
    drawing.text(20, 204, "Threads divide outputs, never a sum. Further rows repeat the same steps.", size=12.5)
    drawing.text(20, 222, "s: the group's weight scale times its activation scale.", size=12, color=FAINT)
    return drawing


def controller() -> Drawing:
    """Draw E[tokens | D], T(1 + n) and their ratio R(D) for an example with given numbers."""
    right, each = 0.75, (1.0, 1.04, 1.09, 1.15, 1.32, 1.50, 1.69, 1.88, 2.08)
    expected = [sum(right**k for k in range(n + 1)) for n in range(9)]
    ratio = [e / t for e, t in zip(expected, each, strict=True)]
    best = max(range(9), key=lambda n: ratio[n])
    drawing = Drawing(334, "Expected tokens, cost, and their ratio over the number of drafted tokens")
    left, bottom, wide, high, top = 50, 246, 500, 206, 4.0

    def place(n: int, value: float) -> tuple[float, float]:
        return left + wide * n / 8, bottom - high * value / top

    for value in range(5):
        drawing.path([place(0, value), place(8, value)], LINE, width=0.7)
        drawing.text(left - 10, place(0, value)[1] + 4, str(value), size=12, anchor="end", color=FAINT)
    for n in range(9):
        drawing.text(place(n, 0)[0], bottom + 18, str(n), size=12, anchor="middle", color=FAINT)
    drawing.text(left + wide / 2, bottom + 36, "drafted tokens n", size=12.5, anchor="middle", color=FAINT)
    drawing.path([place(best, 0), place(best, ratio[best])], GREEN, dashed=True)
    for values, color, said, at, above in (
        (expected, BLUE, "E[tokens | D]: tokens of the step", 0, -128),
        (each, RED, "T(1 + n): its cost, in plain steps", 3.6, 20),
        (ratio, GREEN, "R(D): tokens per second", 5.4, -14),
    ):
        drawing.path([place(n, value) for n, value in enumerate(values)], color, width=2.2)
        for n, value in enumerate(values):
            drawing.dot(*place(n, value), color, 2.6)
        x, y = place(at, values[int(at)])
        drawing.text(x + 6, y + above, said, size=12.5, color=color)
    drawing.dot(*place(best, ratio[best]), GREEN, 6)
    costs = ", ".join(f"{cost:g}" for cost in each[:6])
    drawing.text(
        20, 306, f"An example: a drafted token is accepted with probability {right:g};", size=11.5, color=FAINT
    )
    drawing.text(
        20, 322, f"forwards of 1, 2, ... rows cost {costs}, ... The draft is cut at {best}.", size=11.5, color=FAINT
    )
    return drawing


def tile() -> Drawing:
    """What a kernel does with a tile."""
    drawing = Drawing(262, "A tile of weights is unpacked once and multiplied by every row")
    drawing.text(20, 30, "weights, in memory", bold=True)
    drawing.text(20, 48, "read once, in order", size=12, color=FAINT)
    drawing.text(246, 30, "a tile, in registers", bold=True)
    drawing.text(246, 48, "unpacked once", size=12, color=FAINT)
    drawing.text(446, 30, "rows", bold=True)
    drawing.text(446, 48, "one after another", size=12, color=FAINT)
    for i in range(4):
        for j in range(3):
            current = (i, j) == (0, 1)
            drawing.box(20 + 52 * j, 62 + 38 * i, 46, 32, BLUE if current else LINE)
    drawing.text(20, 232, "tiles of 16 outputs x 32 inputs;", size=12, color=FAINT)
    drawing.text(20, 249, "each thread has its own tiles", size=12, color=FAINT)
    drawing.path([(174, 78), (238, 78)], BLUE, arrow=True)
    for i in range(8):
        for j in range(8):
            drawing.mark(246 + 17 * j, 64 + 17 * i, 15, 15, "blue-fill")
    drawing.text(246, 222, "4-bit codes made bytes,", size=12, color=FAINT)
    drawing.text(246, 239, "one lane per output", size=12, color=FAINT)
    for i, said in enumerate(("the token", "draft 1", "draft 2", "draft 3")):
        y = 64 + 36 * i
        drawing.path([(388, 130), (438, y + 12)], GREEN, arrow=True, width=1.2)
        drawing.box(446, y, 134, 24, GREEN)
        drawing.text(513, y + 16, said, size=12.5, anchor="middle", color=GREEN)
    drawing.text(446, 222, "up to 16 rows per pass;", size=12, color=FAINT)
    drawing.text(446, 239, "rows are independent", size=12, color=FAINT)
    return drawing


FIGURES = {"speed": speed, "step": step, "linear": linear, "controller": controller, "tile": tile}

DEMO = ["ipex-lookahead", "generate", "--show-accepted", "-n", "128",
        "Write four Python functions, add, subtract, multiply and divide, each of two numbers a and b."]  # fmt: skip
COLUMNS = 100


def terminal_output(command: list[str]) -> str:
    """Return all that a command writes to a terminal of `COLUMNS` columns. Raises SystemExit if it fails."""
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    written = b""
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=settings) as child:
        os.close(theirs)
        while True:
            try:
                written += os.read(ours, 65536)
            except OSError:  # the last process has closed the terminal
                break
    if child.returncode:
        sys.exit(f"error: {shlex.join(command)} ended with status {child.returncode}:\n{written.decode()}")
    return written.decode()


def demo() -> str:
    """Run `DEMO` and return a picture of the terminal."""
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

    program = Path(sys.executable).with_name(DEMO[0])
    output = terminal_output([str(program), *DEMO[1:]]).replace("\r\n", "\n")
    output = re.sub(r".*\x1b\[1A\x1b\[2K", "", output, flags=re.DOTALL)  # the progress bar, which erases itself
    output = re.sub(r"\x1b\[\?\d+[lh]", "", output)
    grays, bright = [(72, 79, 88), (110, 118, 129)], [(255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255)]
    colors = [grays[0], *bright, (188, 140, 255), (57, 197, 207), (177, 186, 196)]
    theme = TerminalTheme((13, 17, 23), (230, 237, 243), colors, [grays[1], *colors[1:]])
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    typed = " ".join(f'"{word}"' if " " in word else word for word in DEMO)
    console.print(Text.assemble(("$ ", "bold green"), (typed, "bold")))
    console.print(Text.from_ansi("\n" + output.strip("\n")))
    picture = console.export_svg(title="ipex-lookahead", theme=theme, unique_id="demo")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # they would load from another host
    return picture.replace(" https://www.textualize.io", "")


def main(arguments: list[str]) -> None:
    """Draw what the arguments name."""
    if arguments == ["--demo"]:
        (FOLDER / "demo.svg").write_text(demo(), encoding="utf-8")
        print(f"drew demo in {FOLDER}")
        return
    if arguments:
        sys.exit(__doc__)
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
    print(f"drew {', '.join(FIGURES)} in {FOLDER}")


if __name__ == "__main__":
    main(sys.argv[1:])
