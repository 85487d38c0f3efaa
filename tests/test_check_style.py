"""``scripts/check_style.py``: what it reads of each kind of file, and when it fails."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "check_style.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("check_style", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def found(script):
    return lambda path, source: [(place.line, place.word) for place in script.places(path, source)]


def test_python_prose_and_names(found):
    source = '''\
"""A docstring
with one beside it, so
many lines."""
def told(beside):  # nobody calls it
    beside = whose_ = 1
    raise ValueError(f"asks {beside} for {whose_!r}"
                     " as "
                     "many")
'''
    assert sorted(found("a.py", source)) == [
        (2, "beside"), (2, "so many"), (4, "beside (in beside)"), (4, "nobody"), (4, "told (in told)"),
        (5, "whose (in whose_)"), (6, "asks"), (7, "as many"),
    ]  # fmt: skip


def test_code_between_two_words_ends_a_phrase(found):
    assert found("a.py", "x = 'so', 'many'\ny = 'so' + z  # many\n") == []


def test_c_comments_strings_and_names(found):
    source = """\
// one that lies
// here: as
// many
/* dear
 * reader, so
 * many */
int now_and_then = 1'000; char quote = '"'; const char* text = "in turn\\nasked";
auto raw = R"x(stands ")x"; int SoMany, asked_;  // stands for
"""
    assert sorted(found("a.cc", source)) == [
        (1, "lies"), (2, "as many"), (4, "dear"), (5, "so many"), (7, "asked"), (7, "in turn"),
        (7, "now and then (in now_and_then)"), (8, "asked (in asked_)"), (8, "so many (in SoMany)"), (8, "stands"),
    ]  # fmt: skip


def test_javascript_templates(found):
    assert found("a.js", "let x = `it says ${y}`; // whose\n") == [(1, "says"), (1, "whose")]


def test_pages_without_fenced_blocks(found):
    source = "# In turn\n\n```\nnobody\n```\n\nthe row\nbeside `it`, while `~nobody` is a path and a while loop runs\n"
    assert found("a.md", source) == [(1, "in turn"), (8, "beside")]


def test_comments_in_fenced_blocks_of_code(found):
    source = "```sh\nnobody -x    # what it brings\n```\n\n```text\n# whose\n```\n"
    assert found("a.md", source) == [(2, "what it brings")]


def test_phrases_of_foreign_english(found):
    assert found("a.py", "# there is no such file; it is no longer read; rows are no slower\n") == []
    source = "x = f'{name!r} is no JSON'  # a file of yours\ny = 'quantised, dequantisation, colours, behaviour'\n"
    assert found("a.py", source) == [
        (1, "is no"), (1, "of yours"), (2, "quantised"), (2, "dequantisation"), (2, "colours"), (2, "behaviour"),
    ]  # fmt: skip


def test_long_sentences_of_pages(found):
    words = "word " * 40
    assert found("a.md", f"{words}end.\n") == [(1, "long sentence")]
    assert found("a.md", f"{words.strip()}.\nTwo.\n\n{words.strip()}\n\n- {words}\n- {words}\n") == []
    assert found("a.md", f"# {words}end\n\n| {words} | end |\n\n```\n{words}end\n```\n`{words}end`\n") == []
    assert found("a.md", "One.\n\n" + "several\n" * 41) == [(3, "long sentence")]
    assert found("a.py", f"# {words}end\n") == []


def test_parts_of_longer_words_are_not_words(found):
    assert found("a.py", "# besides tasks understood dearth foretells\nunasked = tasks = 1\n") == []


def test_every_word_has_a_replacement(script):
    for pattern, instead in script.WORDS.items():
        assert instead, pattern


@pytest.fixture
def project(tmp_path):
    for name in ("README.md", "csrc/a.cc", "docs/a.md", "docs/results/a.md", "tests/a.py", "docs/dev/LOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("// whose\n")
    return tmp_path


def test_limit(script, project, capsys):
    assert script.main([], project, limits=(2, 0)) == 1
    printed = capsys.readouterr()
    assert printed.out == "whose 3\n3 words to avoid, 2 allowed\n0 long sentences, 0 allowed\n"
    assert printed.err.startswith("error: more words to avoid than ")
    assert script.main([], project, limits=(3, 0)) == 0
    assert capsys.readouterr().out == "whose 3\n3 words to avoid, 3 allowed\n0 long sentences, 0 allowed\n"
    assert script.main([], project, limits=(4, 0)) == 0
    assert "set LIMIT = 3" in capsys.readouterr().out
    (project / "docs" / "a.md").write_text("word " * 41)
    assert script.main([], project, limits=(2, 0)) == 1
    assert capsys.readouterr().err.startswith("error: more long sentences than ")


def test_vendored_files_are_skipped(script, tmp_path):
    for name in ("docs/a.min.js", "docs/vendor/a.js", ".github/a.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("whose\n")
    assert [path.name for path in script.files(tmp_path, [])] == ["a.md"]


def test_list_of_some_folders(script, project, capsys):
    assert script.main(["--list", "docs/", "README.md"], project) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" -> ")[0] for line in lines[:-1]] == ["docs/a.md:1: whose", "README.md:1: whose"]
    assert lines[-1] == "2 words to avoid, 0 long sentences in docs/, README.md"
