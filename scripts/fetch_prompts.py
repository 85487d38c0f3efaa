#!/usr/bin/env python3
"""Write the 245 prompts that README's figures are measured on, from the four public sets that they come from.

    python3 scripts/fetch_prompts.py prompts        # the folder to write to
    ipex-lookahead bench decode --prompts prompts --lookahead auto

| file | prompts | from | license |
|---|---|---|---|
| mt_bench.jsonl | the 40 questions with even numbers | lm-sys/FastChat, MT-Bench (arXiv 2306.05685) | Apache-2.0 |
| humaneval.jsonl | tasks 0 to 81 | openai/human-eval (arXiv 2107.03374) | MIT |
| gsm8k.jsonl | test problems 0 to 81 | openai/grade-school-math (arXiv 2110.14168) | MIT |
| code_edit.jsonl | Python bugs 0 to 40 | bigcode-project/octopack, HumanEvalPack (arXiv 2308.07124) | MIT |

Standard library only. Each file is written whole or not at all, and its checksum is compared with the one that the
figures were measured on.
"""

import gzip
import hashlib
import json
import os
import sys
import urllib.error
import urllib.request

BASE = "https://raw.githubusercontent.com"
TIMEOUT = 30


def mt_bench(rows):
    """Questions with even numbers; the prompt is the first turn."""
    for row in rows:
        if row["question_id"] % 2 == 0:
            turns = row["turns"]
            yield {
                "id": "mt/{}".format(row["question_id"]),
                "category": row["category"],
                "prompt": turns[0],
                "turns": turns,
            }


def humaneval(rows):
    """A function's head and docstring to complete."""
    for row in rows[:82]:
        task = "Complete this Python function. Answer with the whole function in one code block."
        yield {"id": row["task_id"], "category": "code", "prompt": code_prompt(task, row["prompt"])}


def gsm8k(rows):
    """Word problems as they are."""
    for number, row in enumerate(rows[:82]):
        yield {"id": "gsm8k/{}".format(number), "category": "math", "prompt": row["question"]}


def code_edit(rows):
    """A function with a bug in it, without its docstring, to fix."""
    for row in rows[:41]:
        task = "Fix the bug in this function and answer with the whole corrected function in one code block."
        yield {
            "id": row["task_id"] + "/fix",
            "category": "code_edit",
            "prompt": code_prompt(task, row["declaration"] + row["buggy_solution"]),
        }


def code_prompt(task, code):
    return "{}\n\n```python\n{}\n```".format(task, code.rstrip())


SETS = {
    "mt_bench.jsonl": (
        mt_bench,
        "lm-sys/FastChat/main/fastchat/llm_judge/data/mt_bench/question.jsonl",
        "032cd73252f4d779f3441ea7fb758d77c356f90a1330969ce8a3e53db11332fe",
    ),
    "humaneval.jsonl": (
        humaneval,
        "openai/human-eval/master/data/HumanEval.jsonl.gz",
        "d14c6deb35969e8bc31bdee60dd0cd343d44318fb08eec7240241d7b9785b84f",
    ),
    "gsm8k.jsonl": (
        gsm8k,
        "openai/grade-school-math/master/grade_school_math/data/test.jsonl",
        "5c9dca9f956f5e0306bde2836331727162e27e4545bc626ff294a3551994fdd9",
    ),
    "code_edit.jsonl": (
        code_edit,
        "bigcode-project/octopack/main/evaluation/create/humaneval-x/data/python/data/humanevalpack.jsonl",
        "0c7db1549a013c0a7569982d9197179d4be49d3257799964131e5d9d92b32e63",
    ),
}
"""File -> function that makes its prompts, URL of the data set, and SHA-256 of the file."""


class FetchError(Exception):
    """One clear sentence."""


def fetch(address):
    """The set's rows, from JSON lines, gzipped or not."""
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            data = answer.read()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise FetchError("{} could not be fetched: {}".format(address, getattr(error, "reason", error))) from None
    try:
        if address.endswith(".gz"):
            data = gzip.decompress(data)
        return [json.loads(line) for line in data.decode("utf-8").splitlines() if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise FetchError("{} does not hold JSON lines: {}".format(address, error)) from None


def write(path, rows):
    """JSON lines, the whole file or none of it; returns its sha256."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with open(path + ".new", "w", encoding="utf-8") as out:
        out.write(text)
    os.replace(path + ".new", path)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def main(arguments, base=BASE):
    """Write the four files into the folder that is named."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise FetchError("usage: python3 scripts/fetch_prompts.py FOLDER")
    folder = arguments[0]
    os.makedirs(folder, exist_ok=True)
    for name, (make, where, expected) in SETS.items():
        print("fetching {}".format(where), file=sys.stderr)
        try:
            rows = list(make(fetch("{}/{}".format(base, where))))
        except (KeyError, TypeError) as error:
            raise FetchError("{}: its rows are not as they were: {!r}".format(where, error)) from None
        found = write(os.path.join(folder, name), rows)
        print("{}: {} prompts".format(os.path.join(folder, name), len(rows)))
        if found != expected:
            print("note: {} is not the file that README's figures were measured on; the set has changed".format(name))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FetchError as error:
        sys.stderr.write("error: {}\n".format(error))
        sys.exit(1)
    except OSError as error:
        sys.stderr.write("error: {}: {}\n".format(error.filename or "", error.strerror))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; run the same command again\n")
        sys.exit(130)
