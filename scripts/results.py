"""The measured tables of README and docs, from docs/results/*.json; and those files, from this machine.

python scripts/results.py                     every table again, from the files
python scripts/results.py --measure lookahead --prompts FOLDER   measure, write that file, then every table
python scripts/results.py --measure llama-cpp --llama-bench PROGRAM   our shapes and llama.cpp's own benchmark
python scripts/results.py --measure scoreboard --prompts FOLDER --llama-server PROGRAM --python NAME=PATH
python scripts/results.py --measure scoreboard --prompts FOLDER --peer NAME --part texts   that program's rows alone
python scripts/results.py --here              print the table of this machine on our own ten prompts (make bench)
python scripts/results.py --here --prompts FOLDER   the same on README's forty

FOLDER is the output of scripts/fetch_prompts.py. Tables between <!-- table: NAME --> and <!-- end --> are overwritten.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = ("README.md", "docs/benchmarks.md")
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
FILES = {"mt_bench": "chat", "humaneval": "code", "gsm8k": "arithmetic", "code_edit": "code editing"}
"""Prompt file -> what README calls it."""
SCOREBOARD = "mt_bench humaneval gsm8k".split()
"""Prompt files of the scoreboard; the first ten of each."""
KINDS = {"lookahead": "its lookup"}
"""Kind of speculation -> what the table calls it."""
MTP_SHAPE = "qwen3.5-4b"
"""Shape of the model with a block for drafting; its first 8 layers."""
AGENT_SHAPE, AGENT_CONTEXT = "qwen3.5-0.8b", 32768
"""Hybrid model with random weights for the conversations of coding agents, and its context in tokens."""
LLAMAS = "smollm2-135m tinyllama-1.1b llama2-7b".split()
FAMILIES = "qwen3-0.6b gemma3-1b phi4-mini mistral-7b qwen3-8b gpt-oss-20b qwen3-30b-a3b".split()
MIXTURES = {"gpt-oss-20b", "qwen3-30b-a3b"}
"""Mixtures of experts: equal rows choose the same experts, so larger numbers of rows are not representative."""
HERE = ["bench", "decode", "--lookahead", "3", "--lookahead", "auto", "-n", "256", "--repeat", "3"]

OURS = """
Measured on the ten prompts that come with the package. README's table has forty others; the same for this machine:
  .venv/bin/python scripts/fetch_prompts.py prompts && .venv/bin/python scripts/results.py --here --prompts prompts"""


class Peers(NamedTuple):
    """Paths of other programs and data."""

    prompts: str | None = None
    pythons: tuple[str, ...] = ()
    llama_bench: str | None = None
    llama_server: str | None = None
    names: tuple[str, ...] = ()
    part: str | None = None


@click.command()
@click.option("--measure", "names", multiple=True, help="Measure this table; several may be named.")
@click.option("--prompts", help="The folder that scripts/fetch_prompts.py wrote.")
@click.option("--python", "pythons", multiple=True, metavar="NAME=PATH", help="As of benchmarks.compare.")
@click.option("--llama-bench", help="llama.cpp's program, for llama-cpp and families; its runs alternate with ours.")
@click.option("--llama-server", help="llama.cpp's server, for compare and scoreboard.")
@click.option("--peer", "peer_names", multiple=True, help="scoreboard: measure this program; keep the others' rows.")
@click.option("--part", type=click.Choice(["texts", "load", "mtp"]), help="scoreboard: measure this part alone.")
@click.option("--here", is_flag=True, help="Measure this machine and print README's table of it.")
def main(
    names: tuple[str, ...],
    prompts: str | None,
    pythons: tuple[str, ...],
    llama_bench: str | None,
    llama_server: str | None,
    peer_names: tuple[str, ...],
    part: str | None,
    here: bool,
) -> None:
    """See the top of the file."""
    if here:
        if names:
            raise click.UsageError("--here prints a table and writes no file; --measure does that")
        print("\n".join(lookahead_table(run(*HERE) if prompts is None else measure_lookahead(Peers(prompts)))))
        if prompts is None:
            click.echo(OURS, err=True)
        return
    for name in names:
        if name not in MEASURES:
            raise click.BadParameter(f"{name!r} is none of {', '.join(MEASURES)}", param_hint="--measure")
        if prompts is None and name in ("lookahead", "strategies", "engines", "scoreboard"):
            raise click.UsageError(f"{name} is measured on public prompts: --prompts FOLDER")
    peers = Peers(prompts, pythons, llama_bench, llama_server, peer_names, part)
    for name in names:
        report = MEASURES[name](peers)
        (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for page in PAGES:
        file = ROOT / page
        file.write_text(rendered(file.read_text(encoding="utf-8")), encoding="utf-8")


def rendered(page: str) -> str:
    """A page with its tables as the results have them."""

    def block(found: re.Match[str]) -> str:
        return "".join([found[1], "\n".join(table(found[2])), "\n", found[4]])

    return BLOCK.sub(block, page)


def table(name: str) -> list[str]:
    """Its lines in Markdown."""
    file = RESULTS / f"{SOURCES.get(name, name)}.json"
    if not file.exists():
        raise click.ClickException(f"there is no {file}; measure it: python scripts/results.py --measure {file.stem}")
    return TABLES[name](json.loads(file.read_text(encoding="utf-8")))


def run(*arguments: str, module: str = "ipex_lookahead.cli.main") -> dict[str, Any]:
    """Return the report of a benchmark; its standard error is shown."""
    command = [sys.executable, "-m", module, *arguments, "--json"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    report: dict[str, Any] = json.loads(said.splitlines()[-1])
    return report


def measure_lookahead(peers: Peers) -> dict[str, Any]:
    return without_paths(run(*HERE, "--prompts", str(peers.prompts), "--limit", "10"))


def measure_strategies(peers: Peers) -> dict[str, Any]:
    strategies = [word for name in ("suffix", "recycling", "jacobi") for word in ("--strategy", name)]
    return without_paths(
        run("bench", "decode", "--prompts", str(peers.prompts), "--limit", "10", "-n", "128", *strategies)
    )


def measure_engines(peers: Peers) -> dict[str, Any]:
    settings = ["--low-bit", "sym_int4", "--limit", "2", "-n", "64", "--texts", "0"]
    report = run("compare-engines", "--prompts", str(peers.prompts), *settings)
    for row in report["rows"]:
        del row["tokens"], row["texts"]
    report["prompts"] = len(report["prompts"])
    return without_paths({**report, **facts()})


def measure_compare(peers: Peers) -> dict[str, Any]:
    report = run(*programs(peers), module="benchmarks.compare")
    for row in report["rows"]:
        del row["answers"]
    return without_paths(report)


def programs(peers: Peers) -> list[str]:
    """Return the options of both comparisons that name other programs."""
    words = [word for python in peers.pythons for word in ("--python", python)]
    return words if peers.llama_server is None else [*words, "--llama-server", peers.llama_server]


def measure_scoreboard(peers: Peers) -> dict[str, Any]:
    """Measure all of the scoreboard, or one part or program of it and take the rest from the file."""
    words = [word for name in SCOREBOARD for word in ("--prompts", str(Path(str(peers.prompts)) / f"{name}.jsonl"))]
    report: dict[str, Any] = {}
    if peers.part != "mtp":
        scope = ["--limit", "10", *(word for name in peers.names for word in ("--peer", name))]
        scope += ["--part", peers.part] if peers.part else []
        report = run(*programs(peers), *words, *scope, module="benchmarks.scoreboard")
    if peers.llama_server is not None and (peers.part == "mtp" or not (peers.part or peers.names)):
        report["mtp"] = measure_mtp([*programs(peers), *words])
    file = RESULTS / "scoreboard.json"
    if (peers.part or peers.names) and file.exists():
        report = merged(json.loads(file.read_text(encoding="utf-8")), report)
    return without_paths(report)


def measure_mtp(words: list[str]) -> dict[str, Any]:
    """Measure ours and llama-server with the block for drafting of a model with random weights."""
    from ipex_lookahead.hub import resolve_model

    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{MTP_SHAPE}.gguf"
        made = [str(ROOT / "scripts" / "random_gguf.py"), MTP_SHAPE, str(file), "--layers", "8", "--drafting"]
        subprocess.run([sys.executable, *made, "--vocabulary", str(resolve_model("default"))], check=True)
        scope = ["--model", str(file), "--part", "texts", "--mode", "MTP"]
        scope += ["--peer", "ipex-lookahead", "--peer", "llama-server"]
        scope += ["--limit", "4", "--sampled", "4", "-n", "64"]
        return run(*words, *scope, module="benchmarks.scoreboard")


def measure_agent(peers: Peers) -> dict[str, Any]:
    """Measure the turns of a coding agent on the hybrid shape."""
    from ipex_lookahead.hub import resolve_model

    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{AGENT_SHAPE}.gguf"
        made = [str(ROOT / "scripts" / "random_gguf.py"), AGENT_SHAPE, str(file), "--context", str(AGENT_CONTEXT)]
        subprocess.run([sys.executable, *made, "--vocabulary", str(resolve_model("default"))], check=True)
        words = ["--model", str(file), "--prompt-tokens", "16000", "--turns", "4", "--cold", "1,2"]
        words += [] if peers.llama_server is None else ["--llama-server", peers.llama_server]
        return without_paths(run(*words, module="benchmarks.agent"))


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return ``old`` with the programs, the load and the MTP blocks that ``new`` has.

    Raises:
        ClickException: The two were measured with different settings.
    """
    settings = ("version", "machine", "model", "threads", "prompts", "max_new_tokens", "lookahead", "sampled")
    if other := [key for key in settings if key in new and old[key] != new[key]]:
        raise click.ClickException(f"the file was measured with another {other[0]}; measure all of it again")
    found = {entry["program"]: entry for entry in (*old["programs"], *new.get("programs", ()))}
    absent = {name: why for name, why in {**old["absent"], **new.get("absent", {})}.items() if name not in found}
    parts = {"load": new.get("load") or old["load"], "mtp": new.get("mtp") or old.get("mtp")}
    return {**old, **new, "programs": [*found.values()], **parts, "absent": absent}


def measure_llamas(peers: Peers) -> dict[str, Any]:
    return {**facts(), "shapes": [measure_shape(shape, peers.llama_bench) for shape in LLAMAS]}


def measure_families(peers: Peers) -> dict[str, Any]:
    return {**facts(), "shapes": [measure_shape(shape, peers.llama_bench) for shape in FAMILIES]}


def measure_shape(shape: str, llama_bench: str | None) -> dict[str, Any]:
    """Run two alternating rounds of our own benchmark and, if possible, of llama.cpp."""
    # Prompts run separately: they would evict a small model from the caches before a step of one row.
    several = ("1,4",) if shape in MIXTURES else ("1,4", "128")
    runs, theirs = [], []
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{shape}.gguf"
        if llama_bench is not None and shape not in MIXTURES:
            subprocess.run([sys.executable, ROOT / "scripts" / "random_gguf.py", shape, str(file)], check=True)
        for _ in range(2):
            command = ("bench", "step", "--shape", shape, "--head-low-bit", "sym_int8", "--rows")
            report, *more = [run(*command, rows) for rows in several]
            steps = [*report["steps"], *(step for one in more for step in one["steps"])]
            runs.append({"bandwidth_gb_s": report["bandwidth_gb_s"], "steps": steps})
            if llama_bench is not None and file.exists():
                theirs.append(llama_cpp_speeds(llama_bench, file, report["threads"]))
    return {"shape": shape, "runs": runs, **({"llama_cpp": theirs} if theirs else {})}


def llama_cpp_speeds(program: str, file: Path, threads: int) -> dict[str, float]:
    """Tokens per second of its prompt of 128 (pp) and of decoding 32 tokens (tg)."""
    command = [program, "-m", str(file), "-t", str(threads), "-p", "128", "-n", "32", "-r", "3", "-o", "json"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {"pp" if one["n_prompt"] else "tg": one["avg_ts"] for one in json.loads(said)}


def facts() -> dict[str, Any]:
    from ipex_lookahead.bench.facts import where_and_when

    return where_and_when()


def without_paths(report: dict[str, Any]) -> dict[str, Any]:
    """Replace a path by its last part."""
    return json.loads(re.sub(r'"(?:/[^"/ ]+)+/([^"/]+)"', r'"\1"', json.dumps(report)))


def lookahead_table(report: dict[str, Any]) -> list[str]:
    """Ratio to plain decoding and tokens per step by file or category, the mean and the slowest prompt."""
    runs = report["runs"]
    group = "by_file" if len(runs[0]["by_file"]) > 1 else "by_category"
    names = list(runs[0][group])
    count = f"{runs[0]['prompts']} prompts, {report['max_new_tokens']} tokens"
    heads = [count, "tok/s", *(FILES.get(name, name) for name in names), "mean", "slowest prompt", "same tokens"]
    lines = markdown(heads, (lookahead_row(run, group, names) for run in runs))
    gains = [f"{run['memory_gain']:.2f} x" for run in runs if run["memory_gain"]]
    note = "Cells: speed relative to plain decoding, tokens per step. "
    if gains:
        note += "Cold: an empty store for each prompt; warm: one store for all prompts, "
        note += f"{', '.join(gains)} the cold speed. "
    return [*lines, "", note + where(report)]


def lookahead_row(run: dict[str, Any], group: str, names: list[str]) -> list[str]:
    cells = [f"{one['mean_prompt_ratio']:.2f} x, {one['mean_acceptance_length']:.2f}" for one in
             (run[group][name] for name in names)]  # fmt: skip
    mean, ratios = f"{run['mean_prompt_ratio']:.2f} x", sorted(run["prompt_ratios"])
    slowest = f"{ratios[0]:.2f} x" + (f", next {ratios[1]:.2f} x" if ratios[0] < 1 < len(ratios) else "")
    if run["strategy"] is None:
        cells, mean, slowest = [""] * len(names), "1.00 x", ""
    if run["ratio_is_noise"]:
        mean += " (noise)"
    return [
        mode(run),
        f"{run['decode_tok_s']:.0f}",
        *cells,
        mean,
        slowest,
        run["identical_to_plain"].replace("/", " of "),
    ]


def mode(run: dict[str, Any]) -> str:
    if run["strategy"] is None:
        return "without"
    if run["strategy"] == "prompt_lookup":
        return f"`lookahead={run['lookahead']}`"
    name = '`lookahead="auto"`' if run["strategy"] == "auto" else f"`{run['strategy']}`"
    return ", ".join(filter(None, (name, run["memory"])))


def engines_table(report: dict[str, Any]) -> list[str]:
    """Return the table of engines and modes."""

    def row(entry: dict[str, Any]) -> list[str]:
        same = entry["identical_to_plain"].replace("/", " of ")
        return [entry["engine"], entry["mode"], f"{entry['tok_s']:.1f} tok/s", f"{entry['ratio']:.2f} x", same]

    heads = ["engine", "mode", "decode", "vs plain decoding", "same text as its plain decoding"]
    note = f"{report['prompts']} prompts, {report['max_new_tokens']} tokens, {report['low_bit']}. {where(report)}"
    absent = f" Not measured: {', '.join(report['absent'])}." if report["absent"] else ""
    return [*markdown(heads, map(row, report["rows"])), "", note + absent]


def compare_table(report: dict[str, Any]) -> list[str]:
    """Each program's modes, and how many outputs stay what they are without drafting."""

    def row(entry: dict[str, Any]) -> list[str]:
        name = f"{entry['peer']} {entry['version']}"
        same = entry["identical_to_plain"].replace("/", " of ")
        decode, prompt = f"{entry['decode_tok_s']:.0f} tok/s", f"{entry['prefill_tok_s']:.0f} tok/s"
        return [name, entry["mode"], decode, f"{entry['ratio']:.2f} x", prompt, same]

    heads = ["program", "mode", "decode", "vs its plain decoding", "prompt", "same text as its plain decoding"]
    weights = ". ".join(dict.fromkeys(f"{one['peer']}: {one['weights']}, {one['lookup']}" for one in report["rows"]))
    absent = f" Not measured: {', '.join(report['absent'])}." if report["absent"] else ""
    note = f"{report['prompts']} prompts, {report['max_new_tokens']} tokens. {weights}. {where(report)}{absent}"
    return [*markdown(heads, map(row, report["rows"])), "", note]


def scoreboard_table(report: dict[str, Any]) -> list[str]:
    """Return one line for each program: what its own lookup leaves the same, and what load does."""
    loads = {(entry["program"], entry["streams"]): entry for entry in report["load"]}
    streams = sorted({count for _, count in loads} - {1})

    def under_load(program: str, count: int) -> str:
        found = loads.get((program, count))
        return f"{of(found['same'])}, {found['tok_s']:.0f} tok/s" if found else ""

    def row(entry: dict[str, Any]) -> list[str]:
        modes = {row["mode"]: row for row in entry["rows"]}
        plain, lookup = modes["plain"], modes["lookahead"]
        cells = [f"{entry['program']} {entry['version']}", of(lookup["greedy"]), of(lookup["sampled"])]
        cells.append(f"{of(plain['greedy'])}; {of(plain['sampled'])}")
        return [*cells, *(under_load(entry["program"], count) for count in streams)]

    heads = ["program", "greedy", "sampled", "control: no lookup, run twice"]
    heads += [f"{count} requests at a time" for count in streams]
    note = f"{report['prompts']} prompts, {report['max_new_tokens']} tokens, each program's own lookup of "
    note += f"{report['lookahead']} tokens. {where(report)}"
    absent = f" Not measured: {', '.join(report['absent'])}." if report["absent"] else ""
    shown = [entry for entry in report["programs"] if any(row["mode"] == "lookahead" for row in entry["rows"])]
    return [*markdown(heads, map(row, shown)), "", note + absent]


def speculation_table(report: dict[str, Any]) -> list[str]:
    """Return one line for each kind of speculation of each program, MTP on random weights included."""
    blocks = report.get("mtp") or {"programs": []}

    def rows() -> Iterator[list[str]]:
        for entry in (*report["programs"], *blocks["programs"]):
            for row in entry["rows"]:
                if row["mode"] != "plain":
                    kind = f"{KINDS.get(row['mode'], row['mode'])}: {row['drafts']}"
                    yield [f"{entry['program']} {entry['version']}", kind, of(row["greedy"]), of(row["sampled"])]

    weights = ". ".join(f"{entry['program']}: {entry['weights']}" for entry in report["programs"])
    note = f"{report['prompts']} prompts, {report['max_new_tokens']} tokens. {weights}."
    if blocks["programs"]:
        note += f" MTP: {blocks['prompts']} prompts, {blocks['max_new_tokens']} tokens, a model with random weights."
    return [*markdown(["program", "speculation", "greedy", "sampled"], rows()), "", f"{note} {where(report)}"]


def of(count: str) -> str:
    return count.replace("/", " of ")


def agent_table(report: dict[str, Any]) -> list[str]:
    """Return one line for each program, length of the prompt and turn."""

    def rows() -> Iterator[list[str]]:
        for entry in report["programs"]:
            for turn in (turn for size in entry["sizes"] for turn in size["turns"]):
                cells = [seconds(turn[f"{state}_ms"]) for state in ("cold", "warm", "restarted")]
                name = f"{entry['program']} {entry['version']}"
                yield [name, f"{turn['turn']}", f"{turn['prompt_tokens']:,}", *cells, str(turn["restarted_cached"])]

    heads = ["program", "turn", "prompt tokens", "cold", "warm", "after a restart", "tokens from the cache then"]
    return [*markdown(heads, rows()), "", where(report)]


def seconds(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds / 1e3:.3g} s"


def shapes_table(report: dict[str, Any]) -> list[str]:
    """Return the table of shapes: decode, bandwidth share, cost of rows, prefill, and llama.cpp if measured."""

    def row(shape: dict[str, Any]) -> list[str]:
        steps = [{step["rows"]: step for step in run["steps"]} for run in shape["runs"]]
        shares = [
            round(100 * found[1]["gb_s"] / run["bandwidth_gb_s"])
            for found, run in zip(steps, shape["runs"], strict=True)
        ]
        decode = fmean(1e3 / found[1]["ms"] for found in steps)
        prompts = [128e3 / found[128]["ms"] for found in steps if 128 in found]
        share = f"{min(shares)} %" if len(set(shares)) == 1 else f"{min(shares)}-{max(shares)} %"
        cells = [f"`{shape['shape']}`", f"{speed(decode)} tok/s", share]
        cells.append(f"{fmean(found[4]['ms'] / found[1]['ms'] for found in steps):.2f}" if prompts else "")
        cells.append(f"{speed(fmean(prompts))} tok/s" if prompts else "")
        if not (theirs := shape.get("llama_cpp")):
            return [*cells, "", ""]
        tg, pp = (fmean(one[key] for one in theirs) for key in ("tg", "pp"))
        return [*cells, f"{speed(tg)} / {speed(pp)} tok/s", f"{decode / tg:.1f} / {fmean(prompts) / pp:.1f} x"]

    heads = [
        "shape",
        "decode",
        "of the bandwidth",
        "4 rows over 1",
        "prefill of 128",
        "llama.cpp: decode / prefill",
        "",
    ]
    return [*markdown(heads, map(row, report["shapes"])), "", where(report)]


def speed(tokens: float) -> str:
    return f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:.3g}"


def where(report: dict[str, Any]) -> str:
    """Machine, version and date."""
    machine = report["machine"]
    threads = report.get("threads") or machine["threads"]
    isa = report.get("isa") or machine["isa"]
    said = f"{machine['processor']}, {isa}, {threads} threads; ipex-lookahead {report['version']}, {report['date']}."
    return f"{report['model']}: {said}" if report.get("model") not in (None, "default") else said


def markdown(heads: list[str], rows: Any) -> list[str]:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return [line(heads), "|" + "---|" * len(heads), *map(line, rows)]


def named_tables() -> Iterator[tuple[str, str]]:
    """Yield (page, name) of every table in the docs."""
    for page in PAGES:
        for found in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
            yield page, found[2]


MEASURES: dict[str, Callable[[Peers], dict[str, Any]]] = {
    "lookahead": measure_lookahead,
    "strategies": measure_strategies,
    "engines": measure_engines,
    "compare": measure_compare,
    "scoreboard": measure_scoreboard,
    "agent": measure_agent,
    "llama-cpp": measure_llamas,
    "families": measure_families,
}
TABLES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "lookahead": lookahead_table,
    "strategies": lookahead_table,
    "engines": engines_table,
    "compare": compare_table,
    "scoreboard": scoreboard_table,
    "speculation": speculation_table,
    "agent": agent_table,
    "llama-cpp": shapes_table,
    "families": shapes_table,
}
SOURCES = {"speculation": "scoreboard"}
"""Table -> the results that it is made from, where it has another name."""

if __name__ == "__main__":
    main()
