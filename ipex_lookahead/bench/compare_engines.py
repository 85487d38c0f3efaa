"""The same prompts on every engine that is installed: text, speed, and who agrees with whom.

Engines are loaded one after the other, so that memory holds one model; within an engine plain decoding and lookahead
alternate prompt by prompt. ipex-llm's own ``generate``, with and without its own lookahead, runs beside ours on the
very same model object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ipex_lookahead.bench.decode import Generation, generator, with_own_memory
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.engines import ENGINES
from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.runtime.lookahead import resolve_lookahead

Generate = Callable[[Sequence[int]], Generation]
"""``generate(prompt_ids)``: one greedy answer."""

OWN = "own"
"""What the modes of ipex-llm's own ``generate`` begin with."""


@dataclass(slots=True)
class Row:
    """One engine in one mode: "plain", "lookahead 3", or ipex-llm's "own plain" and "own lookahead 3"."""

    engine: str
    mode: str
    low_bit: str
    row_invariant: bool
    answers: list[Generation] = field(default_factory=list)

    @property
    def tok_s(self) -> float:
        """Tokens a second after the first of each answer."""
        seconds = sum(answer.stats.decode_seconds for answer in self.answers)
        return sum(answer.stats.decode_tokens for answer in self.answers) / seconds if seconds > 0 else 0.0

    def equal(self, other: Row) -> int:
        """Answers with the same tokens as the other's."""
        return sum(a.tokens == b.tokens for a, b in zip(self.answers, other.answers, strict=True))


@dataclass(slots=True)
class Comparison:
    """The rows of the engines that ran, and for each other engine the error that says why not."""

    rows: list[Row] = field(default_factory=list)
    absent: dict[str, LookaheadError] = field(default_factory=dict)

    def plain_of(self, row: Row) -> Row:
        """The same engine without lookahead, by the same ``generate``."""
        mode = f"{OWN} plain" if row.mode.startswith(OWN) else "plain"
        return next(other for other in self.rows if (other.engine, other.mode) == (row.engine, mode))

    def native(self) -> Row | None:
        """The native engine's plain answers, if it ran."""
        return next((row for row in self.rows if (row.engine, row.mode) == ("native", "plain")), None)

    def broken(self) -> list[Row]:
        """Rows that lookahead has changed although their engine promises that it does not."""
        ours = [row for row in self.rows if row.row_invariant and not row.mode.startswith(OWN)]
        return [row for row in ours if row.equal(self.plain_of(row)) < len(row.answers)]


def compare(
    load: Callable[[str], Any],
    encode: Callable[[Any], list[list[int]]],
    *,
    engines: Iterable[str] = tuple(ENGINES),
    lookaheads: Sequence[Any] = (3,),
    max_new_tokens: int = 128,
    began: Callable[[str], None] = lambda engine: None,
) -> Comparison:
    """Run the prompts on one engine after the other.

    Args:
        load: name of an engine -> a model on it. A LookaheadError means that the engine cannot run here.
        encode: a model -> token ids of each prompt.
        engines: keys of ``ENGINES``.
        lookaheads: what ``generate(lookahead=...)`` takes; each is a mode beside plain decoding.
        max_new_tokens: of each answer.
        began: called with the name of each engine before it is loaded.
    """
    found = Comparison()
    for engine in engines:
        began(engine)
        try:
            model = load(engine)
            found.rows += _rows(engine, model, encode(model), lookaheads, max_new_tokens)
            del model  # before the next one is loaded
        except LookaheadError as error:
            found.absent[engine] = error
    return found


def _rows(
    engine: str, model: Any, prompts: Sequence[Sequence[int]], lookaheads: Sequence[Any], max_new_tokens: int
) -> list[Row]:
    ours = generator(model, max_new_tokens, do_sample=False)
    modes: list[tuple[str, Generate]] = []
    for number, setting in enumerate((0, *lookaheads)):
        modes.append((_mode(setting), _bound(ours, with_own_memory(setting, number))))
    if engine == "ipex-llm":
        for tokens in (0, *_own_numbers(lookaheads)):
            modes.append((f"{OWN} {_mode(tokens)}", _own(model, max_new_tokens, tokens)))
    rows = [Row(engine, mode, str(model.low_bit), bool(model.engine.row_invariant)) for mode, _ in modes]
    for _, generate in modes:  # warm-up: pages, threads, and what calibrates itself
        generate(prompts[0])
    model.forget()
    for prompt in prompts:
        for row, (_, generate) in zip(rows, modes, strict=True):
            row.answers.append(generate(prompt))
    return rows


def _mode(setting: Any) -> str:
    if resolve_lookahead(setting) is None:
        return "plain"
    return f"lookahead {setting}" if isinstance(setting, (int, str)) else f"lookahead {setting.strategy}"


def _bound(generate: Callable[[Sequence[int], Any], Generation], setting: Any) -> Generate:
    return lambda prompt: generate(prompt, setting)


def _own_numbers(lookaheads: Sequence[Any]) -> list[int]:
    """The numbers of draft tokens that ipex-llm's own ``lookahead`` takes too."""
    return [setting for setting in lookaheads if isinstance(setting, int) and setting > 0]


def _own(model: Any, max_new_tokens: int, lookahead: int) -> Generate:
    """ipex-llm's own ``generate`` on the model that our engine drives.

    It has no statistics of plain decoding, so a second call, for one token, measures the prompt's share of the time.
    """
    import torch

    from ipex_lookahead.engines.torch.device import torch_threads

    theirs = model.engine.model
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": model.generation_config.eos_token_id}
    options["pad_token_id"] = 0
    if lookahead:
        options["lookahead"] = lookahead

    def run(ids: torch.Tensor, tokens: int) -> tuple[list[int], float]:
        began = perf_counter()
        with torch_threads(model.engine.threads):  # as many as ours takes
            out = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **options)
        return out[0, ids.shape[1] :].tolist(), perf_counter() - began

    def generate(prompt: Sequence[int]) -> Generation:
        ids = torch.tensor([list(prompt)], dtype=torch.long)
        # Its lookahead runs on for some tokens after ``max_new_tokens``.
        first, all_of_it = run(ids, 1), run(ids, max_new_tokens)
        new = all_of_it[0][:max_new_tokens]
        stats = GenerationStats(tokens=len(new), prompt_tokens=len(prompt), first_token_seconds=first[1])
        stats.decode_seconds = max(all_of_it[1] - first[1], 1e-9)
        return Generation(new, stats)

    return generate


def report(comparison: Comparison) -> list[dict[str, Any]]:
    """One entry for each row: speed, and how many answers equal its own plain ones and the native engine's."""
    native, entries = comparison.native(), []
    for row in comparison.rows:
        plain, count = comparison.plain_of(row), len(row.answers)
        entries.append(
            {
                "engine": row.engine,
                "mode": row.mode,
                "low_bit": row.low_bit,
                "tok_s": row.tok_s,
                "ratio": row.tok_s / plain.tok_s if plain.tok_s else 0.0,
                "mean_acceptance_length": _acceptance_length(row),
                "identical_to_plain": f"{row.equal(plain)}/{count}",
                "identical_to_native": None if native is None else f"{row.equal(native)}/{count}",
                "tokens": [answer.tokens for answer in row.answers],
            }
        )
    return entries


def _acceptance_length(row: Row) -> float | None:
    """Tokens a forward; None where it is not known."""
    steps = sum(answer.stats.sequence_steps for answer in row.answers)
    return sum(answer.stats.decode_tokens for answer in row.answers) / steps if steps else None
