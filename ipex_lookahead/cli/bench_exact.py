"""``ipex-lookahead bench exact``: whether lookahead changes a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import ModelOptions, draft_model_option, draft_vocab_option, drafter_option
from ipex_lookahead.cli.measuring import Prompts, Report, comma_separated
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import LowBit, Strategy
from ipex_lookahead.config import MAX_DRAFT
from ipex_lookahead.system.terminal import counted

MODES = ("fixed", "adaptive")


@dataclass
class Checked:
    """What is checked."""

    draft_model: str | None = draft_model_option
    drafter: str | None = drafter_option
    draft_vocab: Any = draft_vocab_option
    draft_low_bit: str | None = option("The draft model's format; as its file has it if not given.", type=LowBit())
    max_new_tokens: int = option("Most tokens of an answer.", 128, "-n", low=1)
    strategy: tuple[str, ...] = option("Strategies to check; all that apply if not given.", (), type=Strategy())
    mode: tuple[str, ...] = option("All the draft, or what pays.", MODES, type=click.Choice(MODES))
    draft_tokens: list[int] = option(
        "Most drafted tokens a step.", "1,3,7,31", callback=comma_separated, metavar="N,N,..."
    )
    spread: bool = option("Fixed drafts of 1, 2, ... up to that many, another number for each batch.", False)
    greedy: bool = option("Check greedy decoding.", True)
    seeds: int = option("Check sampling with the seeds 0, 1, ...; 0 leaves it out.", 3, low=0)
    batch: int = option("Prompts that are decoded together with a fixed draft.", 8, low=1)

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
    """How the sampled answers are drawn."""

    temperature: float = option("Of sampling.", 0.8, low=0, above=True)
    top_k: int = option("Of sampling; 0 keeps all.", 0, low=0)
    top_p: float = option("Of sampling.", 0.95, low=0, high=1, above=True)
    repetition_penalty: float = option("Of sampling.", 1.1, low=0, above=True)


@command("ipex-lookahead bench exact --strategy auto --limit 2 --plot exact.svg")
def exact(loading: ModelOptions, prompts: Prompts, what: Checked, drawn: Drawn, to: Report) -> None:
    """Whether the tokens with lookahead are those without: every strategy, budget and way of sampling."""
    what.check()
    to.check()
    from ipex_lookahead.bench.exact import GREEDY, answerer, check, configurations, sampled, strategies
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.plots.exact import plot_exact
    from ipex_lookahead.cli.loading import config_of
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
            click.echo(_line(found), err=True)  # a long run shows what is known so far
            rows.append(found)
    engine = loaded.engine.describe()
    report = {
        "model": loading.model,
        **{key: engine.get(key) for key in ("engine", "low_bit", "isa", "threads", "kv_cache")},
    }
    report |= {"prompts": len(texts), "max_new_tokens": what.max_new_tokens, "batch": what.batch}
    report |= {**settings, "seeds": what.seeds}
    report |= {"left_out": {} if what.strategy else absent, "rows": rows, **where_and_when()}
    _print_table(report, to_stderr=to.as_json)
    to.write(report, plot_exact)
    differing = [found for found in rows if found["differences"]]
    for found in differing:
        click.echo(f"error: {_sentence(found)}", err=True)
    if differing:
        raise click.exceptions.Exit(1)


def _json(row: Any, spread: bool, names: Sequence[str]) -> dict[str, Any]:
    """A row as plain values; a difference names its prompt."""
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
        caption="columns: most drafted tokens a step",
        to_stderr=to_stderr,
    )
