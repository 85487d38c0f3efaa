"""``bench decode``: reading prompts, alternating modes, the sums, and that differing tokens are seen."""

from __future__ import annotations

import json

import pytest

from ipex_lookahead.bench.decode import summarize
from ipex_lookahead.bench.modes import Generation, Mode, measure
from ipex_lookahead.bench.options import PACKAGED_PROMPTS
from ipex_lookahead.cli.prompts import read_prompts
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.lookahead import AUTO_TOKENS


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_packaged_prompts():
    prompts = read_prompts([PACKAGED_PROMPTS])
    assert 8 <= len(prompts) <= 12
    assert len({p.id for p in prompts}) == len(prompts)
    assert len({p.category for p in prompts}) >= 5
    assert all(len(p.text) > 80 for p in prompts)


def test_limit_is_for_each_file_and_folders_are_read_in_order(tmp_path):
    write(tmp_path / "b.jsonl", *(json.dumps({"id": f"b{i}", "prompt": "x"}) for i in range(3)))
    write(tmp_path / "a.jsonl", *(json.dumps({"prompt": "x"}) for i in range(3)))
    write(tmp_path / "other.txt", "not read")
    assert [p.id for p in read_prompts([tmp_path], 2)] == ["a/1", "a/2", "b0", "b1"]
    assert len(read_prompts([tmp_path / "a.jsonl", tmp_path])) == 9


def test_line_separators_inside_a_prompt_do_not_split_it(tmp_path):
    file = write(tmp_path / "a.jsonl", json.dumps({"prompt": "a\u2028b\x85c"}, ensure_ascii=False), "")
    assert [p.text for p in read_prompts([file])] == ["a\u2028b\x85c"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", 'line 2: an object with a non-empty text "prompt"'),
        ('{"prompt": ""}', "line 2"),
        ('{"prompt": 3}', "line 2"),
        ('{"text": "a"}', "line 2"),
        ("[" * 100_000, "line 2: not JSON"),
    ],
)
def test_bad_lines_are_named(line, says, tmp_path):
    file = write(tmp_path / "a.jsonl", '{"prompt": "fine"}', line)
    with pytest.raises(InputError, match=says) as caught:
        read_prompts([file])
    assert str(file) in str(caught.value)


def test_bad_files(tmp_path):
    with pytest.raises(InputError, match="no prompt file"):
        read_prompts([tmp_path / "absent.jsonl"])
    with pytest.raises(InputError, match=r"has no \.jsonl"):
        read_prompts([tmp_path])
    with pytest.raises(InputError, match="no prompts"):
        read_prompts([write(tmp_path / "empty.jsonl")])
    (tmp_path / "bytes.jsonl").write_bytes(b'{"prompt": "a"}\n\xff')
    with pytest.raises(InputError, match="not UTF-8 text \\(byte 16\\)"):
        read_prompts([tmp_path / "bytes.jsonl"])


def generation(tokens, seconds=1.0, **counts):
    stats = GenerationStats(prompt_tokens=10, tokens=len(tokens), prefill_seconds=0.1, first_token_seconds=0.2)
    stats.decode_seconds = seconds
    for name, value in counts.items():
        setattr(stats, name, value)
    return Generation(list(tokens), stats)


def test_modes_alternate_and_the_baseline_always_runs():
    asked = []

    def generate(prompt, lookahead):
        asked.append((prompt[0], lookahead))
        return generation([1, 2])

    done = []
    forget = lambda: asked.append("forget")  # noqa: E731
    answered = lambda mode, prompt: done.append((mode.lookahead, prompt, len(mode.answers[prompt])))  # noqa: E731
    modes = measure(generate, [[7], [8]], [3], repeat=2, answered=answered, forget=forget)
    assert [m.lookahead for m in modes] == [0, 3]
    assert asked[:2] == [(7, 0), (7, 3)], "the warm-up, each mode once, not counted"
    assert asked[2:7] == ["forget", (7, 0), (7, 3), (8, 3), (8, 0)], "all prompts before any again"
    assert asked[7:] == ["forget", (7, 3), (7, 0), (8, 0), (8, 3)]
    assert done == [(0, 0, 1), (3, 0, 1), (3, 1, 1), (0, 1, 1), (3, 0, 2), (0, 0, 2), (0, 1, 2), (3, 1, 2)]
    assert [[len(a) for a in m.answers] for m in modes] == [[2, 2], [2, 2]]


def test_modes_that_remember_do_so_apart_and_not_from_one_repetition_to_the_next():
    asked, forgotten = [], []

    def generate(prompt, lookahead):
        asked.append(lookahead)
        return generation([1])

    small = LookaheadConfig("auto", 4)
    modes = measure(generate, [[1]], ["auto", small, 3], repeat=2, forget=lambda: forgotten.append(len(asked)))
    assert [mode.lookahead for mode in modes] == [0, "auto", "auto", small, small, 3]
    assert [mode.memory for mode in modes] == [None, "cold", "warm", "cold", "warm", None]
    assert forgotten == [6, 12]
    first, *kept, last = asked[6:12]
    assert (first, last) == (0, 3)
    assert [(config.num_draft_tokens, config.store) for config in kept] == [
        (AUTO_TOKENS, "none"), (AUTO_TOKENS, "memory:2"), (4, "none"), (4, "memory:4")
    ]  # fmt: skip


def test_cpu_time_a_token_is_compared_prompt_by_prompt():
    took = {(7, 0): [2.0, 9.0, 2.0], (7, 3): [2.1, 2.2, 2.2], (8, 0): [4.0] * 3, (8, 3): [4.0] * 3}

    def generate(prompt, lookahead):
        return generation(range(11), decode_cpu_seconds=took[prompt[0], lookahead].pop())

    for times in took.values():
        times.append(0.0)  # the warm-up
    plain, drafting = summarize(measure(generate, [[7], [8]], [3], repeat=3))
    assert (plain["cpu_ms_per_token"], plain["cpu_ratio"]) == (300.0, 1.0)
    assert (drafting["cpu_ms_per_token"], drafting["cpu_ratio"]) == (pytest.approx(310.0), pytest.approx(1.05))


def test_duplicate_modes_run_once():
    assert [m.lookahead for m in measure(lambda p, n: generation([1]), [[7]], [3, 0, 3])] == [0, 3]


def test_what_a_memory_brought_is_the_warm_speed_over_the_cold_one():
    def generate(prompt, lookahead):
        store = getattr(lookahead, "store", None)
        return generation(range(11), {"none": 2.0, "memory:2": 1.0}.get(store, 4.0))

    rows = summarize(measure(generate, [[1], [2]], ["auto"]), ["f", "f"], ["chat", "code"])
    assert [(row["memory"], row["memory_gain"]) for row in rows] == [
        (None, None), ("cold", None), ("warm", pytest.approx(2.0))
    ]  # fmt: skip
    assert {name: one["mean_prompt_ratio"] for name, one in rows[2]["by_category"].items()} == {
        "chat": 4.0,
        "code": 4.0,
    }


def test_a_file_is_no_memory_that_measuring_could_empty():
    modes = measure(lambda p, n: generation([1]), [[7]], [LookaheadConfig("auto", 4, store="answers")])
    assert [mode.memory for mode in modes] == [None, None]


def test_sums():
    plain = Mode(
        0,
        [
            [generation(range(11), 2.0, steps=10, sequence_steps=10)],
            [generation(range(6), 1.0, steps=5, sequence_steps=5)],
        ],
    )
    ahead = Mode(
        3,
        [
            [generation(range(11), 1.0, steps=5, sequence_steps=5, drafted=15, accepted=5, engine_seconds=0.9)],
            [generation(range(6), 1.25, steps=5, sequence_steps=5, drafted=5, accepted=0, engine_seconds=1.2)],
        ],
    )
    first, second = summarize([plain, ahead])
    assert first["lookahead"] == 0
    assert first["decode_tok_s"] == pytest.approx(15 / 3)
    assert first["slowest_prompt_ratio"] == 1.0
    assert first["identical_to_plain"] == "2/2"
    assert second["prompts"] == 2
    assert second["tokens"] == 17
    assert second["decode_tok_s"] == pytest.approx(15 / 2.25)
    assert second["prefill_tok_s"] == pytest.approx(20 / 0.2)
    assert second["ttft_ms"] == pytest.approx(200)
    assert second["mean_acceptance_length"] == pytest.approx(15 / 10)
    assert second["acceptance_rate"] == pytest.approx(5 / 20)
    assert second["slowest_prompt_ratio"] == pytest.approx(1.0 / 1.25)
    assert second["python_us_per_step"] == pytest.approx(0.15 / 10 * 1e6)
    assert set(first) == set(second)


def test_modes_are_named_and_counted_by_source_and_position():
    def drafts(*verified):
        made = generation([1, 2, 3], steps=4, sequence_steps=4, proposer_seconds=0.4, sampler_seconds=0.2)
        made.stats.strategy = "suffix"
        for draft, accepted in verified:
            made.stats.verified(draft, accepted)
        made.stats.fold()
        return made

    tree = Draft([5, 6, 7, 8], [-1, 0, -1, -1], scratch=1, sources=["a", "b", "a", "window"])
    config = LookaheadConfig("suffix", 7, adaptive=False)
    answers = [[drafts((tree, [0, 1]), (Draft.chain([4, 4]), [0]))], [drafts((tree, []))]]
    plain = Mode(0, [[generation([1, 2, 3])], [generation([1, 2, 3])]])
    rows = summarize([plain, Mode(config, answers), Mode("auto", answers)], ["x", "y"])
    assert [(r["lookahead"], r["adaptive"]) for r in rows] == [(0, None), (7, False), ("auto", True)]
    assert [r["strategy"] for r in rows][:2] == [None, "suffix"]
    row = rows[1]
    found = row["acceptance_by_source"]
    assert {name: (one["drafted"], one["accepted"], one["acceptance_rate"]) for name, one in found.items()} == {
        "a": (4, 1, 0.25), "b": (2, 1, 0.5), "window": (2, 0, 0.0), "suffix": (2, 1, 0.5)
    }  # fmt: skip
    assert {name: (one["drafted_by_position"], one["accepted_by_position"]) for name, one in found.items()} == {
        "a": ([4], [1]), "b": ([0, 2], [0, 1]), "window": ([], []), "suffix": ([1, 1], [1, 0])
    }  # fmt: skip
    assert row["drafted_by_position"] == [5, 3]
    assert row["accepted_by_position"] == [2, 1]
    assert row["proposer_ms_per_step"] == pytest.approx(100)
    assert row["sampler_ms_per_step"] == pytest.approx(50)
    assert row["prompt_ratios"] == [1.0, 1.0]
    json.dumps(rows, allow_nan=False)


def test_ratios_by_file():
    plain = Mode(0, [[generation(range(11), 1.0)] for _ in range(3)])
    ahead = Mode(3, [[generation(range(11), s, sequence_steps=5)] for s in (0.5, 2.0, 0.25)])
    row = summarize([plain, ahead], ["x", "x", "y"])[1]
    assert row["prompt_ratios"] == pytest.approx([2.0, 0.5, 4.0])
    assert row["mean_prompt_ratio"] == pytest.approx(6.5 / 3)
    assert row["by_file"]["x"] == {
        "prompts": 2,
        "decode_tok_s": pytest.approx(8.0),
        "mean_acceptance_length": 2.0,
        "mean_prompt_ratio": pytest.approx(1.25),
        "slowest_prompt_ratio": pytest.approx(0.5),
    }
    assert row["by_file"]["y"]["mean_prompt_ratio"] == pytest.approx(4.0)


def test_median_of_repetitions():
    plain = Mode(0, [[generation(range(11), s) for s in (1.0, 1.0, 9.0)]])
    assert summarize([plain])[0]["decode_tok_s"] == pytest.approx(10)


@pytest.mark.parametrize("differing", [[1, 2, 4], [1, 2], [1, 2, 3, 4], []])
def test_differing_tokens_are_counted(differing):
    plain = Mode(0, [[generation([1, 2, 3])], [generation([5, 6])]])
    ahead = Mode(3, [[generation(differing)], [generation([5, 6])]])
    assert [run["identical_to_plain"] for run in summarize([plain, ahead])] == ["2/2", "1/2"]


def test_a_repetition_that_differs_counts_as_different():
    plain = Mode(0, [[generation([1, 2]), generation([1, 2])]])
    ahead = Mode(3, [[generation([1, 2]), generation([1, 3])]])
    assert summarize([plain, ahead])[1]["identical_to_plain"] == "0/1"


def test_nothing_generated_divides_by_nothing():
    run = summarize([Mode(0, [[generation([1], 0.0)]])])[0]
    assert run["decode_tok_s"] == 0.0
    assert run["slowest_prompt_ratio"] == 1.0
    json.dumps(run, allow_nan=False)


@pytest.mark.parametrize(
    ("tokens", "seconds", "noise"),
    [
        (100, [0.5] * 6, False),
        (100, [2.0] * 6, False),
        (100, [0.8, 0.9, 0.95, 1.1, 1.2, 1.3], True),
        (4, [0.5] * 6, True),
        (500, [0.5] * 3, True),
    ],
    ids=["quicker", "slower", "now quicker, now slower", "few tokens", "few answers"],
)
def test_a_ratio_that_says_nothing_is_called_noise(tokens, seconds, noise):
    ids = list(range(tokens))
    plain = Mode(0, [[generation(ids)] for _ in seconds])
    other = Mode(3, [[generation(ids, time)] for time in seconds])
    rows = summarize([plain, other])
    assert [row["ratio_is_noise"] for row in rows] == [False, noise]


def test_one_answer_has_no_quartiles():
    rows = summarize([Mode(0, [[generation([1, 2])]]), Mode(3, [[generation([1, 2])]])])
    assert [row["ratio_quartiles"] for row in rows] == [None, None]
    assert rows[1]["ratio_is_noise"]
