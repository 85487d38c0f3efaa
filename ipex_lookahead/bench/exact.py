"""``ipex-lookahead bench exact``: whether lookahead changes a token.

Plain answers are decoded one by one. Answers with a fixed draft are decoded in batches: this is faster, and also checks
that batch neighbors have no effect. Adaptive ones are decoded alone, because in a batch the controller drafts little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.bench.options import Prompts, Report, comma_separated
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import (
    ModelOptions,
    config_of,
    draft_model_option,
    draft_vocab_option,
    drafter_option,
)
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import LowBit, Strategy
from ipex_lookahead.config import MAX_DRAFT, LookaheadConfig
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.terminal import counted

MODES = ("fixed", "adaptive")


@dataclass
class Checked:
    """The configurations to check."""

    draft_model: str | None = draft_model_option
    drafter: str | None = drafter_option
    draft_vocab: int | Path | None = draft_vocab_option
    draft_low_bit: str | None = option("Weight format of the draft model. Default: the file's own.", type=LowBit())
    max_new_tokens: int = option("Maximum number of tokens per answer.", 128, "-n", low=1)
    strategy: tuple[str, ...] = option("Draft source. Repeatable; default: all that apply.", (), type=Strategy())
    mode: tuple[str, ...] = option("Always draft the maximum, or adapt. Repeatable.", MODES, type=click.Choice(MODES))
    draft_tokens: list[int] = option(
        "Maximum tokens to draft per step.", "1,3,7,31", callback=comma_separated, metavar="N,N,..."
    )
    spread: bool = option("Alternate draft lengths of 1, 2, ... up to the maximum from batch to batch.", False)
    greedy: bool = option("Check greedy decoding.", True)
    seeds: int = option("Number of seeds to check sampling with; 0 skips sampling.", 3, low=0)
    batch: int = option("Batch size in mode fixed.", 8, low=1)

    def check(self) -> None:
        """Raise UsageError for what cannot be checked."""
        if max(self.draft_tokens) > MAX_DRAFT:
            raise click.BadParameter(f"a step drafts at most {MAX_DRAFT} tokens", param_hint="--draft-tokens")
        if not self.greedy and not self.seeds:
            raise click.UsageError("--no-greedy --seeds 0 leaves nothing to check; leave one of them out")
        if self.draft_low_bit is not None and self.draft_model is None:
            raise click.UsageError("--draft-low-bit has no effect without --draft-model; add it, or leave it out")


@dataclass
class Drawn:
    """The sampling settings."""

    temperature: float = option("Sampling temperature.", 0.8, low=0, above=True)
    top_k: int = option("Sampling top_k; 0 keeps all.", 0, low=0)
    top_p: float = option("Sampling top_p.", 0.95, low=0, high=1, above=True)
    repetition_penalty: float = option("Repetition penalty when sampling.", 1.1, low=0, above=True)


@command("ipex-lookahead bench exact --strategy auto --limit 2 --plot exact.svg")
def exact(loading: ModelOptions, prompts: Prompts, what: Checked, drawn: Drawn, to: Report) -> None:
    """Compare the tokens with lookahead to plain decoding: every strategy, draft length and sampling method."""
    what.check()
    to.check()
    from ipex_lookahead.bench.plots.exact import plot_exact
    from ipex_lookahead.tokenization.prompts import build_prompt

    texts = prompts.read()
    loaded, tokenizer = loading.load(drafter=what.drafter, draft_vocab=what.draft_vocab)
    other = replace(loading, model=what.draft_model, low_bit=what.draft_low_bit) if what.draft_model else None
    draft = None if other is None else other.load()[0]
    usable, absent = strategies(loaded, draft)
    if wrong := [name for name in what.strategy if name not in usable]:
        why = absent.get(wrong[0], f"choose from {', '.join(usable)}")
        raise click.BadParameter(f"{wrong[0]!r} cannot be checked: {why}", param_hint="--strategy")
    if not what.strategy:
        for name, why in absent.items():
            click.echo(f"left out: {name}: {why}", err=True)

    encoded = [build_prompt(tokenizer, config_of(loaded), prompt.text) for prompt in texts]
    settings = vars(drawn)
    samplings = ([GREEDY] if what.greedy else []) + ([sampled(what.seeds, **settings)] if what.seeds else [])
    configs = configurations(what.strategy or usable, what.draft_tokens, what.mode)
    answers = (1 + len(configs)) * len(encoded) * sum(len(sampling.runs) for sampling in samplings)
    answer = answerer(loaded, what.max_new_tokens, draft)
    rows = []
    with progress_bar(answers, "comparing") as advance:
        settings_of_check = {"batch": what.batch, "spread": what.spread, "advance": advance, "forget": loaded.forget}
        for row in check(answer, encoded, configs, samplings, **settings_of_check):
            found = _json(row, what.spread, [prompt.id for prompt in texts])
            click.echo(_line(found), err=True)  # rows appear as they are known
            rows.append(found)
    engine = loaded.engine.describe()
    report = {
        "model": loading.model,
        **{key: engine.get(key) for key in ("engine", "low_bit", "isa", "threads", "kv_cache")},
    }
    report |= {"prompts": len(texts), "max_new_tokens": what.max_new_tokens, "batch": what.batch}
    report |= {**settings, "seeds": what.seeds}
    report |= {"left_out": {} if what.strategy else absent, "rows": rows}
    _print_table(report, to_stderr=to.as_json)
    to.write(report, plot_exact)
    differing = [found for found in rows if found["differences"]]
    for found in differing:
        click.echo(f"error: {_sentence(found)}", err=True)
    if differing:
        raise click.exceptions.Exit(1)


def _json(row: Any, spread: bool, names: Sequence[str]) -> dict[str, Any]:
    most = row.config.num_draft_tokens
    return {
        "strategy": row.config.strategy,
        "mode": MODES[row.config.adaptive],
        "draft_tokens": f"1-{most}" if spread and not row.config.adaptive and most > 1 else most,
        "sampling": row.sampling,
        "equal": row.equal,
        "total": row.total,
        "differences": [{**asdict(found), "prompt": names[found.prompt]} for found in row.differences],
    }


def _line(row: dict[str, Any]) -> str:
    names = ("strategy", "mode", "draft_tokens", "sampling")
    return " ".join(str(row[name]) for name in names) + f": {row['equal']}/{row['total']}"


def _sentence(row: dict[str, Any]) -> str:
    first = row["differences"][0]
    seed = "" if first["seed"] is None else f" with seed {first['seed']}"
    return (
        f"{_line(row)} equal; {row['sampling']}{seed}, prompt {first['prompt']} has {first['got']} as its new token"
        f" number {first['position']} (counted from 0), plain decoding {first['expected']}"
    )


def _print_table(report: dict[str, Any], *, to_stderr: bool) -> None:
    rows = report["rows"]
    budgets = list(dict.fromkeys(row["draft_tokens"] for row in rows))
    lines: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in rows:
        cells = lines.setdefault((row["strategy"], row["mode"], row["sampling"]), {})
        cells[row["draft_tokens"]] = f"{row['equal']}/{row['total']}"
    print_table(
        ("strategy", "mode", "tokens", *map(str, budgets)),
        [(*names, *(cells.get(budget, "") for budget in budgets)) for names, cells in lines.items()],
        keys=3,
        title=f"{report['model']} · {report['low_bit']} · {counted(report['prompts'], 'prompt')} · "
        "answers equal to plain",
        caption="columns: maximum tokens to draft per step",
        to_stderr=to_stderr,
    )


_NO_TOKEN = -1
SEED_STEP = 11
"""With ``spread``, the difference between the draft lengths of one batch for two successive seeds."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """A sampling method: its name in reports, and the arguments of ``generate`` for each seed."""

    name: str
    runs: tuple[dict[str, Any], ...]


GREEDY = Sampling("greedy", ({"do_sample": False},))


def sampled(seeds: int, **settings: Any) -> Sampling:
    """Return sampling with the seeds 0, 1, ... and arguments of ``generate`` such as ``temperature``."""
    return Sampling("sampled", tuple({"do_sample": True, **settings, "seed": seed} for seed in range(seeds)))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first new token of an answer that differs from plain decoding; None is the end of the answer."""

    prompt: int
    position: int
    got: int | None
    expected: int | None
    seed: int | None


@dataclass(slots=True)
class Row:
    """The result of one configuration and sampling method."""

    config: LookaheadConfig
    sampling: str
    total: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def equal(self) -> int:
        """Number of answers equal to plain decoding."""
        return self.total - len(self.differences)


Answer = Callable[[Sequence[Sequence[int]], LookaheadConfig | int, dict[str, Any]], list[list[int]]]
"""``answer(prompts, lookahead, sampling)`` -> the new tokens of each prompt, decoded together in one batch."""


def strategies(model: Any, draft_model: Any = None) -> tuple[list[str], dict[str, str]]:
    """Return the strategies that this model supports, and the reason for each of the others."""
    from ipex_lookahead.drafting import HEADS, PROPOSERS, SECOND_MODEL

    usable, absent = [], {}
    for name in sorted([*PROPOSERS, *SECOND_MODEL, *HEADS]):
        why = _hindrance(name, model, draft_model)
        if why is None:
            usable.append(name)
        else:
            absent[name] = why
    return usable, absent


def _hindrance(strategy: str, model: Any, draft_model: Any) -> str | None:
    from ipex_lookahead.drafting import HEADS
    from ipex_lookahead.engines.low_bit_copy import check_gains

    if strategy == "draft_model" and draft_model is None:
        return "no draft model is given"
    if strategy in HEADS and getattr(model.engine, "head", None) is None:
        return "the model has no draft head, or this engine does not support draft heads"
    if strategy == "jacobi" and not getattr(model.engine, "supports_tree", True):
        return f"the {model.engine.name} engine cannot verify trees of this model"
    if strategy == "self_speculation":
        try:
            check_gains(model.engine.describe()["low_bit"])
        except InputError as error:
            return str(error)
    return None


def configurations(
    names: Iterable[str], budgets: Iterable[int], modes: Iterable[str] = ("fixed", "adaptive")
) -> list[LookaheadConfig]:
    """Return every strategy with every draft length in every mode."""
    return [
        LookaheadConfig(name, budget, adaptive=mode == "adaptive")
        for name, mode, budget in product(names, modes, budgets)
    ]


def answerer(model: Any, max_new_tokens: int, draft_model: Any = None) -> Answer:
    """Return the function ``answer`` for :func:`check`. Each prompt gets the noise of a batch of 1."""
    import torch

    def answer(
        prompts: Sequence[Sequence[int]], lookahead: LookaheadConfig | int, sampling: dict[str, Any]
    ) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.zeros((len(prompts), width), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, width - len(prompt) :] = 1
        drafting = isinstance(lookahead, LookaheadConfig) and lookahead.strategy == "draft_model"
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            lookahead=lookahead,
            sequence_ids=[0] * len(prompts),
            pad_token_id=_NO_TOKEN,  # so that padding differs from an end token
            **({"draft_model": draft_model} if drafting else {}),
            **sampling,
        )
        return [[token for token in row if token != _NO_TOKEN] for row in out[:, width:].tolist()]

    return answer


def check(
    answer: Answer,
    prompts: Sequence[Sequence[int]],
    configs: Iterable[LookaheadConfig],
    samplings: Sequence[Sampling],
    *,
    batch: int = 8,
    spread: bool = False,
    advance: Callable[[], None] = lambda: None,
    forget: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """Compare every configuration with plain decoding; yield each row as soon as it is known.

    Args:
        answer: See :func:`answerer`.
        prompts: Token ids of each prompt.
        configs: Configurations to check.
        samplings: Sampling methods; each is checked with every configuration.
        batch: Number of prompts decoded together with a fixed draft.
        spread: Use fixed drafts of 1, 2, ... tokens up to the configuration's, a different one for each batch and seed.
        advance: Called after each answer.
        forget: Called before each seed of each configuration; clears the model's store, which may hold the answer.
    """
    expected = []
    for sampling in samplings:
        plain = []
        for run in sampling.runs:
            plain.append([_advancing(answer([prompt], 0, run), advance)[0] for prompt in prompts])
        expected.append(plain)
    for config in configs:
        for sampling, plain in zip(samplings, expected, strict=True):
            row = Row(config, sampling.name)
            together = 1 if config.adaptive else batch
            for seed, (run, right) in enumerate(zip(sampling.runs, plain, strict=True)):
                forget()
                for first in range(0, len(prompts), together):
                    given = config
                    if spread and not config.adaptive:
                        number = (first // together + SEED_STEP * seed) % config.num_draft_tokens
                        given = replace(config, num_draft_tokens=1 + number)
                    found = _advancing(answer(prompts[first : first + together], given, run), advance)
                    for prompt, tokens in enumerate(found, first):
                        row.total += 1
                        row.differences += _compare(prompt, tokens, right[prompt], run.get("seed"))
            yield row


def _advancing(answers: list[list[int]], advance: Callable[[], None]) -> list[list[int]]:
    for _ in answers:
        advance()
    return answers


def _compare(prompt: int, got: Sequence[int], expected: Sequence[int], seed: int | None) -> list[Difference]:
    for position, (mine, theirs) in enumerate(zip_longest(got, expected)):
        if mine != theirs:
            return [Difference(prompt, position, mine, theirs, seed)]
    return []
