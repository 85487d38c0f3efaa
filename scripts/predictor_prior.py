"""Recompute the initial tables of csrc/drafting/predictor.cc from recorded answers.

    ipex-lookahead bench replay --record answers.jsonl       # a few hundred answers
    python scripts/predictor_prior.py answers.jsonl          # prints the new tables
    python scripts/predictor_prior.py --write answers.jsonl  # and writes them; `make setup` compiles them

Each token of an answer is counted as in the updates of the predictor, drafted or not. The text begins with the prompt;
the store has the earlier answers of the recordings. Rates with fewer than 50 trials are not changed. Compare the tables
with `bench replay` on other answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from ipex_lookahead.bench.recording import Answer, load
from ipex_lookahead.drafting.partial_matching import LONGEST_CONTEXT, SUCCESSORS

SOURCE = Path(__file__).resolve().parents[1] / "csrc" / "drafting" / "predictor.cc"
SOURCES, LENGTHS, COLUMNS, ORDERS = 2, 6, 7, 2
LEAST = 50
"""Trials of a share that is taken over."""

Followers = dict[tuple[int, ...], Counter[int]]


def cell(source: int, length: int, followers: Counter[int]) -> int:
    """Which of kEscapes' numbers it is: source (store, own text), tokens of the context, and how it was seen so far."""
    row = length - 1 if length < 5 else 4 if length < 7 else 5
    total, several = followers.total(), len(followers) > 1
    column = 0 if total == 1 else (1 if total == 2 else 3 if total < 6 else 5) + several
    return (source * LENGTHS + row) * COLUMNS + column


def append(known: Followers, text: Sequence[int]) -> None:
    """Count the last token of a text as what followed the contexts before it."""
    for length in range(1, min(LONGEST_CONTEXT, len(text) - 1) + 1):
        known.setdefault(tuple(text[-1 - length : -1]), Counter())[text[-1]] += 1


def shares(answers: Iterable[Answer]) -> list[float | None]:
    """kEscapes' and then kRanks' numbers, in the order of the file; None where there were too few trials."""
    escapes, ranks = SOURCES * LENGTHS * COLUMNS, ORDERS * SUCCESSORS
    trials, hits = [0] * (escapes + ranks), [0] * (escapes + ranks)
    store: Followers = {}
    for answer in answers:
        own: Followers = {}
        text: list[int] = []
        lists: dict[tuple[int, ...], list[int]] = {}
        for token in answer.prompt:
            text.append(token)
            append(own, text)
        for token, top in zip(answer.output, answer.top, strict=True):
            for source, known in enumerate((store, own)):
                for length in range(1, min(LONGEST_CONTEXT, len(text)) + 1):
                    followers = known.get(tuple(text[-length:]))
                    if followers is None:
                        break
                    at = cell(source, length, followers)
                    trials[at] += 1
                    hits[at] += token not in followers
            for order in range(min(ORDERS, len(text))):
                successors = lists.get(tuple(text[-1 - order :]))
                for rank in range(SUCCESSORS) if successors is not None else ():
                    trials[escapes + order * SUCCESSORS + rank] += 1
                if successors is not None and token in successors:
                    hits[escapes + order * SUCCESSORS + successors.index(token)] += 1
                lists[tuple(text[-1 - order :])] = [one for one in top if one >= 0][:SUCCESSORS]
            text.append(token)
            append(own, text)
        for end in range(2, len(answer.output) + 1):
            append(store, answer.output[max(0, end - LONGEST_CONTEXT - 1) : end])
    return [hit / trial if trial >= LEAST else None for hit, trial in zip(hits, trials, strict=True)]


def refitted(source: str, found: Sequence[float | None]) -> str:
    """Return the file with new numbers above 0 in its tables; the number of decimals does not change."""
    before, table, after = re.split(r"(constexpr double kEscapes.*?\n\n)", source, maxsplit=1, flags=re.DOTALL)
    numbers = iter(found)

    def number(match: re.Match[str]) -> str:
        share, decimals = next(numbers), len(match[0]) - 2
        return match[0] if share is None else f"{max(share, 10**-decimals):.{decimals}f}"

    table = re.sub(r"\b0\.\d+", number, table)
    if (left := next(numbers, ...)) is not ...:
        raise ValueError(f"the tables hold fewer than {len(found)} numbers; the next would be {left}")
    return before + table + after


@click.command()
@click.argument("recordings", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--write", is_flag=True, help="Write the tables into csrc/drafting/predictor.cc.")
def main(recordings: tuple[Path, ...], write: bool) -> None:
    """Count the tables from RECORDINGS of `ipex-lookahead bench replay --record`."""
    answers = [answer for recording in recordings for answer in load(recording).answers]
    source = SOURCE.read_text(encoding="utf-8")
    text = refitted(source, shares(answers))
    click.echo(re.search(r"constexpr double kEscapes.*?\n\n", text, re.DOTALL)[0])  # type: ignore[index]
    click.echo(f"from {len(answers)} answers, {sum(len(answer.output) for answer in answers)} tokens")
    if write:
        SOURCE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
