"""The figures of ``bench decode`` in the definitions and output formats of Spec-Bench and SPEED-Bench.

Spec-Bench (evaluation/speed.py): the speed of a question is its tokens over the time of its answers including prefill,
that of a task is the mean over its questions, and the speedup is the ratio of two such means. SPEED-Bench
(specdec_bench): the mean accepted length of a question, averaged by category and over all, and the distribution of the
lengths. Both count the steps after prefill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from ipex_lookahead.bench.modes import Generation, Mode
from ipex_lookahead.cli.prompts import Prompt

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Categories that are one task in Spec-Bench."""

Answers = dict[Prompt, list[Generation]]
"""Question -> the answers to all of its turns, in all repetitions."""


def figures(layout: str, modes: Sequence[Mode], prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """Return one entry for each mode.

    Args:
        layout: A key of ``LAYOUTS``.
        modes: The result of ``measure``.
        prompts: The prompt of each answer; one with several turns occurs several times.
    """
    answers = [_by_question(mode, prompts) for mode in modes]
    if layout == "spec-bench":
        return [_spec_bench(mine, answers[0]) for mine in answers]
    return [_speed_bench(mine) for mine in answers]


def _by_question(mode: Mode, prompts: Sequence[Prompt]) -> Answers:
    found: Answers = {}
    for prompt, answers in zip(prompts, mode.answers, strict=True):
        found.setdefault(prompt, []).extend(answers)
    return found


def accepted_lengths(answers: Sequence[Generation]) -> list[int]:
    """Return the number of tokens of each step."""
    return [accepted + 1 for answer in answers for _, accepted, _, _ in answer.stats.per_step]


def _spec_bench(mine: Answers, plain: Answers) -> dict[str, Any]:
    tasks: dict[str, list[Prompt]] = {}
    for question in mine:
        task = "mt_bench" if question.category in MT_BENCH else question.category or "all"
        tasks.setdefault(task, []).append(question)
    tasks["overall"] = list(mine)
    found = {}
    for task, questions in tasks.items():
        speed, base = (fmean(_speed(answers[question]) for question in questions) for answers in (mine, plain))
        lengths = accepted_lengths([answer for question in questions for answer in mine[question]])
        found[task] = {
            "mean_accepted_tokens": fmean(lengths or [0]),
            "tok_s": speed,
            "baseline_tok_s": base,
            "speedup": speed / base if base else 0.0,
        }
    return found


def _speed(answers: Sequence[Generation]) -> float:
    seconds = sum(answer.stats.first_token_seconds + answer.stats.decode_seconds for answer in answers)
    return sum(answer.stats.tokens for answer in answers) / seconds if seconds > 0 else 0.0


def _speed_bench(mine: Answers) -> dict[str, Any]:
    lengths = {question: accepted_lengths(answers) or [0] for question, answers in mine.items()}
    requests = {question: fmean(some) for question, some in lengths.items()}
    by_category: dict[str, list[float]] = {}
    for question in sorted(requests, key=lambda question: question.category):
        by_category.setdefault(question.category or "all", []).append(requests[question])
    histogram = dict(sorted(Counter(chain.from_iterable(lengths.values())).items()))
    return {
        "Request_AL": {question.id: length for question, length in requests.items()},
        "Category_AL": {category: fmean(some) for category, some in by_category.items()},
        "Average_AL": fmean(requests.values()),
        "Acceptance_Length_Histogram": histogram,
        "Conditional_Acceptance_Rate": _conditional(histogram),
    }


def _conditional(histogram: dict[int, int]) -> dict[int, float]:
    """Return for each length the share of steps with that length or more among those with the previous one or more."""
    left = before = sum(histogram.values())
    found = {}
    for length, count in histogram.items():
        found[length] = left / before if before else 0.0
        before, left = left, left - count
    return found


def spec_bench_lines(found: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Yield the output of Spec-Bench's ``evaluation/speed.py`` for each mode; the first mode is the baseline."""
    for name, tasks in list(zip(names, found, strict=True))[1:]:
        yield f"lookahead {name}"
        for task, one in tasks.items():
            yield f"{'=' * 30} Task:  {task} {'=' * 30}"
            yield f"#Mean accepted tokens:  {one['mean_accepted_tokens']:.4f}"
            yield f"Tokens per second:  {one['tok_s']:.4f}"
            yield f"Tokens per second for the baseline:  {one['baseline_tok_s']:.4f}"
            yield f"Speedup ratio:  {one['speedup']:.4f}"


def speed_bench_lines(found: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Yield the output of SPEED-Bench's client for each mode."""
    for name, one in list(zip(names, found, strict=True))[1:]:
        yield f"lookahead {name}: Acceptance Rate Results"
        rows = [*one["Category_AL"].items(), ("Overall Average", one["Average_AL"])]
        width = max(len(category) for category, _ in rows)
        yield f"{'Category':<{width}}  Average AL"
        for category, length in rows:
            yield f"{category:<{width}}  {length:10.4f}"
        yield "Acceptance Length Histogram"
        yield str(one["Acceptance_Length_Histogram"])
        yield "Conditional acceptance rate"
        for length, share in one["Conditional_Acceptance_Rate"].items():
            yield f"{length} {share:.4f}"


LAYOUTS: dict[str, Callable[[Sequence[dict[str, Any]], Sequence[str]], Iterator[str]]] = {
    "spec-bench": spec_bench_lines,
    "speed-bench": speed_bench_lines,
}
