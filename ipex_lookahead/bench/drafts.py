"""What was drafted at each step of an answer, and what became of it: lines of JSON, to look at a source closely."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ipex_lookahead.bench.decode import Generation, Mode, meaning
from ipex_lookahead.drafting.draft import Draft


def steps_of(answer: Generation) -> Iterator[dict[str, Any]]:
    """The steps of an answer whose drafts were kept (``generate(keep_drafts=True)``), those without a draft included.

    Yields:
        ``position``: of its first token in the text, prompt included. ``drafted``: the ids that were verified.
        ``parents``: for each the index of the one before it in the tree, -1 = the last token of the text. ``sources``
        and ``probs``: what put it forward, and how likely it thought it to be accepted if its parent is; probs are
        empty where nothing was said. ``scratch``: how many of the last ids only bring drafts for later steps.
        ``accepted``: indices of those that were right. ``emitted``: the new ids, the model's own last.

    Example: ``drafted`` 5 6 with ``parents`` -1 0 and ``emitted`` 5 9: the 5 was right, and the model said 9, not 6.
    """
    stats = answer.stats
    drafts, at = iter(stats.drafts or ()), 1  # the first token comes with the prompt
    for drafted, _, _, _ in stats.per_step:
        draft, accepted = next(drafts) if drafted else (Draft(), ())
        emitted = answer.tokens[at : at + len(accepted) + 1]
        yield {
            "position": stats.prompt_tokens + at,
            "drafted": [*map(int, draft.tokens)],
            "parents": [*map(int, draft.parents)],
            "sources": list(draft.sources) or [stats.strategy] * len(draft),
            "probs": [round(float(prob), 4) for prob in draft.probs],
            "scratch": draft.scratch,
            "accepted": list(accepted),
            "emitted": emitted,
        }
        at += len(emitted)


def lines_of(mode: Mode, number: int, name: str) -> str:
    """The steps of a mode's last answer, a line each, with the prompt's number and name; "" of plain decoding."""
    said, answers = meaning(mode.lookahead), mode.answers[number]
    if said["strategy"] is None:
        return ""
    said["strategy"] = answers[-1].stats.strategy  # a draft model's takes the place of the one asked for
    head = {"prompt": name, "number": number, **said, "memory": mode.memory, "repetition": len(answers)}
    return "".join(json.dumps({**head, "step": at, **step}) + "\n" for at, step in enumerate(steps_of(answers[-1]), 1))
