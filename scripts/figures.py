"""Draw the figures of README and docs/how_it_works.md into docs/figures.

python scripts/figures.py            # draws them again
python scripts/figures.py --record   # generates the answer in accepted.svg with the embedded model first
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "figures"
RECORD = FOLDER / "accepted.json"
INK, FAINT, LINE, BLUE, GREEN, RED = "#1c2430", "#5b6675", "#b9c2cd", "#1f5fa8", "#1d7a46", "#b3382c"
FILLS = {BLUE: "#dbe8f7", GREEN: "#d6efdf", RED: "#f7dedb", LINE: "#eef1f5"}
WIDTH = 600
PROMPT = "Write a Python class for a stack with push, pop and peek."
TOKENS, DRAFT = 115, 8


class Drawing:
    """An SVG file on a light card of its own, so that it reads on dark pages and in print too."""

    def __init__(self, height: float, title: str) -> None:
        self.height, self.title = height, title
        self.parts: list[str] = []

    def text(self, x: float, y: float, said: str, *, size: float = 14, colour: str = INK, anchor: str = "start",
             mono: bool = False, bold: bool = False) -> None:  # fmt: skip
        """Letters with their baseline at y."""
        family = ' font-family="ui-monospace, Menlo, Consolas, monospace"' if mono else ""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}"{family}{weight}'
            f' xml:space="preserve">{escape(said)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str = LINE, *, fill: str = "") -> None:
        """A rectangle with round corners."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill or FILLS[colour]}"'
            f' stroke="{colour}"/>'
        )

    def mark(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """A filled rectangle behind letters."""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{colour}"/>')

    def path(self, points: Iterable[tuple[float, float]], colour: str = FAINT, *, arrow: bool = False,
             dashed: bool = False, width: float = 1.5) -> None:  # fmt: skip
        """A line through points."""
        end = f' marker-end="url(#{colour[1:]})"' if arrow else ""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dash}{end}/>'
        )

    def dot(self, x: float, y: float, colour: str, radius: float = 4) -> None:
        """A filled circle."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>')

    def svg(self) -> str:
        """The whole file."""
        arrows = "".join(
            f'<marker id="{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            f' orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
            for colour in (FAINT, GREEN, RED, BLUE)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:g}" width="{WIDTH}"'
            f' height="{self.height:g}" font-family="system-ui, Helvetica, Arial, sans-serif" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{arrows}</defs>\n"
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{self.height - 1:g}" rx="8" fill="#ffffff"'
            f' stroke="{LINE}"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def accepted() -> Drawing:
    """The recorded answer, with the tokens marked that were drafted and found right."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    cell, line = 7.83, 20.0
    rows: list[list[tuple[int, str, str]]] = [[]]
    column = 0
    for piece in record["pieces"]:
        for i, part in enumerate(piece["text"].split("\n")):
            if i:
                rows.append([])
                column = 0
            if part:
                rows[-1].append((column, part, piece["source"] or ""))
                column += len(part)
    colours = {"suffix": GREEN, "recycling": BLUE}
    drawing = Drawing(84 + line * len(rows), "An answer, with the tokens marked that were drafted and accepted")
    drawing.text(20, 26, record["prompt"], size=13, colour=FAINT)
    for number, row in enumerate(rows):
        y = 52 + line * number
        for at, part, source in row:
            if source:
                drawing.mark(20 + at * cell, y - 14, len(part) * cell, line - 2, FILLS[colours[source]])
            drawing.text(20 + at * cell, y, part, size=13, mono=True, colour=colours.get(source, INK))
    y = drawing.height - 18
    drawing.text(20, y, f"{record['tokens']} tokens in {record['steps']} forwards; what is coloured came for free:",
                 size=12.5, colour=FAINT)  # fmt: skip
    x = 408.0
    for name, said in (("suffix", "copied"), ("recycling", "recycled")):
        drawing.mark(x, y - 13, 68, 18, FILLS[colours[name]])
        drawing.text(x + 34, y, said, size=12.5, colour=colours[name], anchor="middle")
        x += 78
    return drawing


def step() -> Drawing:
    """Draft, verify, accept."""
    drawing = Drawing(262, "One step of lookahead: a tree of drafts, one forward, the accepted path")
    for x, said in ((20, "1  draft"), (290, "2  one forward"), (452, "3  accept")):
        drawing.text(x, 30, said, bold=True)
    drawing.text(20, 52, "what may come next", size=12, colour=FAINT)
    drawing.text(290, 52, "the model's own choices", size=12, colour=FAINT)
    drawing.text(452, 52, "what is the same", size=12, colour=FAINT)
    tree = {  # token: (x, row, colour, parent's x and row, the model's choice after it)
        "sat": (20, 0, INK, None, "on"),
        "on": (92, 1, GREEN, (20, 0), "the"),
        "down": (92, 4, RED, (20, 0), "and"),
        "the": (164, 2, GREEN, (92, 1), "mat"),
        "a": (164, 3, RED, (92, 1), "chair"),
        "hill": (228, 5, RED, (164, 2), "."),
    }
    rows = {"sat": 0, "on": 1, "the": 2, "hill": 3, "a": 4, "down": 5}
    top, gap = 70, 30
    for token, (x, _, colour, parent, choice) in tree.items():
        y = top + gap * rows[token]
        if parent is not None:
            above = next(name for name, one in tree.items() if (one[0], one[1]) == parent)
            px, py = parent[0] + 18, top + gap * rows[above] + 22
            drawing.path([(px, py), (px, y + 11), (x - 3, y + 11)], colour if colour != INK else FAINT, arrow=True)
        drawing.box(x, y, 52, 22, LINE if colour == INK else colour)
        drawing.text(x + 26, y + 16, token, anchor="middle", colour=colour, size=13)
        right = token in ("sat", "on", "the")
        drawing.path([(x + 56, y + 11), (316, y + 11)], LINE, dashed=True, width=1)
        drawing.text(324, y + 16, choice, size=13, colour=INK if right else LINE, bold=right)
    for y, token, note in (
        (top, "on", "drafted, right"),
        (top + gap, "the", "drafted, right"),
        (top + 2 * gap, "mat", "bonus"),
    ):
        drawing.path([(364, y + 11), (444, y + 11)], GREEN if note != "bonus" else BLUE, arrow=True)
        drawing.text(452, y + 16, token, size=13, bold=True, colour=GREEN if note != "bonus" else BLUE)
        drawing.text(490, y + 16, note, size=11.5, colour=FAINT)
    drawing.text(452, top + 3 * gap + 22, "3 tokens for about", size=13)
    drawing.text(452, top + 3 * gap + 40, "the price of one", size=13)
    return drawing


def linear() -> Drawing:
    """How one output of a row is summed."""
    drawing = Drawing(236, "One output of one row: integer dot products by group, joined in ascending order")
    drawing.text(20, 30, "one output of one row", bold=True)
    drawing.text(
        20, 50, "the same operations in the same order, in any company and on any machine", size=12, colour=FAINT
    )
    for i in range(4):
        x = 20 + 142 * i
        last = i == 3
        if last:
            drawing.text(x + 20, 112, "...", size=20, colour=FAINT)
            continue
        drawing.box(x, 66, 126, 24)
        drawing.text(x + 63, 82, "32 weights x inputs", size=11.5, anchor="middle")
        drawing.path([(x + 63, 92), (x + 63, 108)], FAINT, arrow=True)
        drawing.box(x, 110, 126, 24, GREEN)
        drawing.text(x + 63, 126, "integer dot: exact", size=12, anchor="middle", colour=GREEN)
        drawing.path([(x + 63, 136), (x + 63, 152)], FAINT, arrow=True)
        drawing.box(x, 154, 126, 24, BLUE)
        drawing.text(x + 63, 170, "fma(dot, s, sum)", size=11.5, anchor="middle", colour=BLUE)
        drawing.path([(x + 127, 166), (x + 140, 166)], BLUE, arrow=True)
    drawing.text(446, 171, "... output", size=13, colour=BLUE)
    drawing.text(20, 204, "Threads divide outputs, never a sum. Further rows repeat the same steps.", size=12.5)
    drawing.text(20, 222, "s: the group's weight scale times its activation scale.", size=12, colour=FAINT)
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
        drawing.text(left - 10, place(0, value)[1] + 4, str(value), size=12, anchor="end", colour=FAINT)
    for n in range(9):
        drawing.text(place(n, 0)[0], bottom + 18, str(n), size=12, anchor="middle", colour=FAINT)
    drawing.text(left + wide / 2, bottom + 36, "drafted tokens n", size=12.5, anchor="middle", colour=FAINT)
    drawing.path([place(best, 0), place(best, ratio[best])], GREEN, dashed=True)
    for values, colour, said, at, above in (
        (expected, BLUE, "E[tokens | D]: of the step", 0, -128),
        (each, RED, "T(1 + n): its cost, in plain steps", 3.6, 20),
        (ratio, GREEN, "R(D): tokens per second", 5.4, -14),
    ):
        drawing.path([place(n, value) for n, value in enumerate(values)], colour, width=2.2)
        for n, value in enumerate(values):
            drawing.dot(*place(n, value), colour, 2.6)
        x, y = place(at, values[int(at)])
        drawing.text(x + 6, y + above, said, size=12.5, colour=colour)
    drawing.dot(*place(best, ratio[best]), GREEN, 6)
    costs = ", ".join(f"{cost:g}" for cost in each[:6])
    drawing.text(20, 306, f"An example: a drafted token is right with chance {right:g};", size=11.5, colour=FAINT)
    drawing.text(
        20, 322, f"forwards of 1, 2, ... rows cost {costs}, ... The draft is cut at {best}.", size=11.5, colour=FAINT
    )
    return drawing


def tile() -> Drawing:
    """What a kernel does with a tile."""
    drawing = Drawing(262, "A tile of weights is unpacked once and multiplied by every row")
    drawing.text(20, 30, "weights, in memory", bold=True)
    drawing.text(20, 48, "read once, in order", size=12, colour=FAINT)
    drawing.text(246, 30, "a tile, in registers", bold=True)
    drawing.text(246, 48, "unpacked once", size=12, colour=FAINT)
    drawing.text(446, 30, "rows", bold=True)
    drawing.text(446, 48, "one after the other", size=12, colour=FAINT)
    for i in range(4):
        for j in range(3):
            current = (i, j) == (0, 1)
            drawing.box(20 + 52 * j, 62 + 38 * i, 46, 32, BLUE if current else LINE)
    drawing.text(20, 232, "tiles of 16 outputs x 32 inputs;", size=12, colour=FAINT)
    drawing.text(20, 249, "a thread has lines of them for itself", size=12, colour=FAINT)
    drawing.path([(174, 78), (238, 78)], BLUE, arrow=True)
    for i in range(8):
        for j in range(8):
            drawing.mark(246 + 17 * j, 64 + 17 * i, 15, 15, FILLS[BLUE])
    drawing.text(246, 222, "4-bit codes made bytes,", size=12, colour=FAINT)
    drawing.text(246, 239, "one lane an output", size=12, colour=FAINT)
    for i, said in enumerate(("the token", "draft 1", "draft 2", "draft 3")):
        y = 64 + 36 * i
        drawing.path([(388, 130), (438, y + 12)], GREEN, arrow=True, width=1.2)
        drawing.box(446, y, 134, 24, GREEN)
        drawing.text(513, y + 16, said, size=12.5, anchor="middle", colour=GREEN)
    drawing.text(446, 222, "up to 16 rows in a pass;", size=12, colour=FAINT)
    drawing.text(446, 239, "none sees another", size=12, colour=FAINT)
    return drawing


FIGURES = {"accepted": accepted, "step": step, "linear": linear, "controller": controller, "tile": tile}


def record() -> None:
    """Ask the embedded model for the answer, always drafting, so that the same tokens are drafted on every machine."""
    import torch

    from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
    from ipex_lookahead.cli.stream import by_origin
    from ipex_lookahead.tokenization.detokenizer import Detokenizer

    model = AutoModelForCausalLM.from_pretrained("default", progress=False)
    tokenizer = model.tokenizer
    chat = [{"role": "user", "content": PROMPT}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    drafting = LookaheadConfig(strategy="auto", num_draft_tokens=DRAFT, adaptive=False)
    out = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, lookahead=drafting)
    answer = by_origin(Detokenizer(tokenizer), out[0, len(ids) :].tolist(), model.stats.origins())
    pieces = [{"text": text, "source": source} for text, source in answer]
    made = {
        "prompt": PROMPT,
        "model": "default",
        "tokens": model.stats.tokens,
        "steps": model.stats.steps,
        "pieces": pieces,
    }
    RECORD.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record()
    elif sys.argv[1:]:
        sys.exit(__doc__)
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
    print(f"drew {', '.join(FIGURES)} in {FOLDER}")
