"""Pictures of decode, step, kernels and replay: the figures are there, with units, machine, version and date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.bench.decode import summarize
from ipex_lookahead.bench.modes import Generation, Mode
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.draft import Draft

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from matplotlib.figure import Figure  # noqa: E402

from ipex_lookahead.bench.plots.decode import plot_decode  # noqa: E402
from ipex_lookahead.bench.plots.drawing import from_zero, look  # noqa: E402
from ipex_lookahead.bench.plots.exact import plot_exact  # noqa: E402
from ipex_lookahead.bench.plots.replay import plot_replay  # noqa: E402
from ipex_lookahead.bench.plots.step import plot_kernels, plot_step  # noqa: E402

FACTS = {
    "version": "9.8.7",
    "date": "2026-01-02",
    "machine": {"processor": "A <fast> one", "isa": "avx2", "threads": 3},
}
SAID = ("A &lt;fast&gt; one", "avx2", "3 threads", "ipex-lookahead 9.8.7", "2026-01-02")


def answer(seconds: float, accepted: int = 0) -> Generation:
    stats = GenerationStats(tokens=9, prompt_tokens=4, decode_seconds=seconds, first_token_seconds=0.1)
    stats.sequence_steps = stats.steps = 8 - accepted
    stats.strategy = "suffix"
    if accepted:
        stats.verified(Draft.chain([1] * (accepted + 1)), list(range(accepted)))
        stats.fold()
    return Generation(list(range(9)), stats)


def decoded(*modes: Mode) -> dict[str, Any]:
    runs = summarize(modes, ["f", "f"], ["chat", "code"])
    settings = {"model": "m<&>", "low_bit": "q4_k", "max_new_tokens": 9}
    return {**settings, **FACTS, "prompts": ["a", "code/slow"], "categories": ["chat", "code"], "runs": runs}


def drawn(plot: Any, report: dict[str, Any], folder: Path) -> str:
    """The SVG."""
    plot(report, folder / "a.svg")
    return (folder / "a.svg").read_text(encoding="utf-8")


def test_decode_shows_speed_categories_positions_and_sources(tmp_path: Path) -> None:
    plain = Mode(0, [[answer(2.0)], [answer(2.0)]])
    three, eight = (Mode(number, [[answer(1.0, 3)], [answer(2.5, 1)]]) for number in (3, 8))
    cold, warm = (Mode("auto", [[answer(s, 4)], [answer(1.0, 4)]], memory=m) for s, m in ((0.8, "cold"), (0.5, "warm")))
    text = drawn(plot_decode, decoded(plain, three, eight, cold, warm), tmp_path)
    for said in (*SAID, "m&lt;&amp;&gt;", "2 prompts", "slowest: 0.80 x, code/slow", "chat", "cold"):
        assert said in text, said
    for said in ("every answer has the tokens", "tokens per second", "suffix (auto warm)", "8 of 10", "off", "warm"):
        assert said in text, said


def test_decode_says_where_tokens_differ(tmp_path: Path) -> None:
    other = answer(1.0, 3)
    other.tokens.append(7)
    text = drawn(plot_decode, decoded(Mode(0, [[answer(1.0)]] * 2), Mode(3, [[other], [answer(1.0, 3)]])), tmp_path)
    assert "NOT every answer has plain decoding" in text


def test_decode_without_lookahead_is_one_view(tmp_path: Path) -> None:
    name = "owner/repository:A-Model-Of-Some-7B-Instruct-Q4_K_M.gguf"
    report = decoded(Mode(0, [[answer(1.0)]] * 2)) | {"model": name}
    assert "position in the draft" not in drawn(plot_decode, report, tmp_path)


STEPS = [{"rows": rows, "ms": 10.0 + rows, "ratio": (10.0 + rows) / 11} for rows in (1, 4, 8)]


def test_step_shows_rows_beside_the_flat_ideal(tmp_path: Path) -> None:
    shape = {"shape": "llama2-7b", "low_bit": "sym_int4", "head_low_bit": "sym_int8", "group_size": 32, "context": 128}
    roofs = {"step_bytes": 76e6, "bandwidth_gb_s": 30.0, "threads": 3, "isa": "avx2"}
    text = drawn(plot_step, {**shape, **roofs, **FACTS, "steps": STEPS}, tmp_path)
    for said in (*SAID, "llama2-7b", "head sym_int8", "flat ideal", "1.64 x", "milliseconds per step", "76 MB"):
        assert said in text, said


def test_kernels_have_a_line_for_each_format_and_isa(tmp_path: Path) -> None:
    kernels = [
        {"format": name, "isa": isa, "steps": STEPS} for name in ("sym_int4", "bf16") for isa in ("avx2", "scalar")
    ]
    report = {"shape": [4096, 1024], "threads": 3, "bandwidth_gb_s": 30.0, "kernels": kernels, **FACTS}
    text = drawn(plot_kernels, report, tmp_path)
    plot_kernels(report, tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes() == (tmp_path / "a.svg").read_bytes(), "drawn twice it is the same"
    for said in ("sym_int4, avx2", "bf16, scalar", "4,096 x 1,024", "3 threads", "2026-01-02", "flat ideal"):
        assert said in text, said
    assert text.count('id="ytick_') > 3, "the axis shows what was measured"


def test_replay_shows_what_to_expect(tmp_path: Path) -> None:
    def run(strategy: str, budget: int, speed: float) -> dict[str, Any]:
        counts = {"drafted_by_source": {strategy: 8}, "accepted_by_source": {strategy: 2}}
        places = {"drafted_by_position": [4, 4], "accepted_by_position": [2, 0]}
        speeds = {"predicted_tok_s": speed, "predicted_plain_tok_s": 100.0}
        return {"strategy": strategy, "budget": budget, "answers": 5, **counts, **places, **speeds}

    runs = [run(strategy, budget, 100.0 + budget) for strategy in ("suffix", "recycling") for budget in (3, 8)]
    text = drawn(plot_replay, {"model": "m", "runs": runs, **FACTS}, tmp_path)
    for said in (*SAID, "5 recorded answers", "predicted tokens per second", "2 of 8", "recycling", "plain"):
        assert said in text, said


def test_exact_counts_equal_answers_and_marks_others(tmp_path: Path) -> None:
    def row(strategy: str, mode: str, budget: int | str, sampling: str, equal: int = 4) -> dict[str, Any]:
        names = {"strategy": strategy, "mode": mode, "draft_tokens": budget, "sampling": sampling}
        return {**names, "equal": equal, "total": 4}

    rows = [row("auto", "fixed", "1-31", name) for name in ("greedy", "sampled")]
    rows += [row("suffix", mode, 3, name) for mode in ("fixed", "adaptive") for name in ("greedy", "sampled")]
    settings = {"model": "m<&>", "low_bit": "q4_k", "prompts": 1, "max_new_tokens": 9}
    text = drawn(plot_exact, {**settings, **FACTS, "rows": rows}, tmp_path)
    for said in (*SAID, "m&lt;&amp;&gt;", "suffix, adaptive", "sampled: most drafted", "1-31", "all 24 answers have"):
        assert said in text, said
    rows.append(row("suffix", "fixed", "1-31", "greedy", 3))
    text = drawn(plot_exact, {**settings, **FACTS, "rows": rows}, tmp_path)
    assert "3/4" in text
    assert "27 of 28 answers have plain" in text
    assert text.count("c02a2a") == 1


def test_an_axis_from_zero_leaves_room_for_the_highest_mark() -> None:
    figure = Figure()
    axes = figure.subplots()
    (line,) = axes.plot([0, 1], [11.2, 11.7], **look(0))
    from_zero(axes)
    low, high = axes.get_ylim()
    (_, top), (_, place) = axes.transData.transform([(1, high), (1, 11.7)])
    assert low == 0
    assert top - place > line.get_markersize() / 2 * figure.dpi / 72
