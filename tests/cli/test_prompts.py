"""Where prompts come from and where answers go: pipes, files, several prompts; and Ctrl-C in a long prompt."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipex_lookahead.bench.chat_client import read_key
from ipex_lookahead.cli import messages, prompts
from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.progress import PromptBar
from ipex_lookahead.cli.prompts import read_text
from ipex_lookahead.cli.writing import written
from ipex_lookahead.errors import SaveError
from ipex_lookahead.files.safe_yaml import load_yaml
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.tokenization import folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def piped(monkeypatch):
    def put(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))

    return put


def prompt_text(model, index=-1) -> str:
    return model.tokenizer.decode(model.asked[index][0])


# ---- standard input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a long text\n", "Summarise this\n\na long text\n"),
        (b"", "Summarise this"),
        (b" \n", "Summarise this"),
    ],
)
def test_what_is_piped_in_follows_the_prompt(content, expected, scripted, piped):
    model = scripted()
    piped(content)
    assert run(["generate", "-q", "--raw", "Summarise this"]) == 0
    assert prompt_text(model) == expected


def test_a_closed_standard_input_is_an_empty_one(scripted, monkeypatch, capsys):
    model = scripted()
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["generate", "-q", "--raw", "hi"]) == 0
    assert prompt_text(model) == "hi"
    assert run(["generate"]) == 2
    assert "no prompt" in capsys.readouterr().err


def test_a_terminal_is_not_read(scripted, monkeypatch):
    model = scripted()
    _, slave = pty.openpty()
    with os.fdopen(slave) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert run(["generate", "-q", "--raw", "hi"]) == 0
    assert prompt_text(model) == "hi"


def test_a_pipe_that_stays_silent_is_named(monkeypatch, capsys):
    heard, told = os.pipe()
    monkeypatch.setattr(prompts, "PATIENCE_SECONDS", 0.01)
    with os.fdopen(heard) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        prompts._say_if_waiting()
    assert "waiting for standard input to end" in capsys.readouterr().err
    os.close(told)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_prompt_file(scripted, tmp_path, piped, capsys):
    model = scripted()
    file = tmp_path / "p.txt"
    file.write_text("from a file, Zürich\n", encoding="utf-8")
    assert run(["generate", "-q", "--raw", "--prompt-file", str(file)]) == 0
    assert prompt_text(model) == "from a file, Zürich\n"
    piped(b"and a pipe")
    assert run(["generate", "-q", "--raw", "--prompt-file", str(file)]) == 0
    assert prompt_text(model) == "from a file, Zürich\n\nand a pipe"
    assert run(["generate", "hi", "--prompt-file", str(file)]) == 2
    assert run(["generate", "--prompt-file", str(tmp_path / "none")]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err
    file.write_bytes(b"ab\xff")
    assert run(["generate", "--prompt-file", str(file)]) == 1
    assert "not UTF-8 text (byte 2)" in capsys.readouterr().err


MARK = b"\xef\xbb\xbf"


def test_a_byte_order_mark_is_no_part_of_a_prompt(scripted, tmp_path, piped):
    model = scripted("one", "two", "three", "four")
    file = tmp_path / "p.txt"
    file.write_bytes(MARK + "Zürich".encode())
    assert run(["generate", "-q", "--raw", "--prompt-file", str(file)]) == 0
    assert prompt_text(model) == "Zürich"
    piped(MARK + b"and a pipe")
    assert run(["generate", "-q", "--raw", "--prompt-file", str(file)]) == 0
    assert prompt_text(model) == "Zürich\n\nand a pipe"
    piped(MARK + b"a pipe")
    assert run(["generate", "-q", "--raw", "-"]) == 0
    assert prompt_text(model) == "a pipe"
    lines = tmp_path / "p.jsonl"
    lines.write_bytes(MARK + b'{"id": 1, "prompt": "a line"}')
    assert run(["generate", "-q", "--raw", "--prompts", str(lines)]) == 0
    assert prompt_text(model) == "a line"
    piped(MARK + b"first\n" + MARK + b"second\n")
    assert list(messages.piped()) == ["first", "\ufeffsecond"]


READERS = {
    "a text": lambda file: read_text(file),
    "keys": lambda file: Keys.of_file(file)._digests,
    "a client's key": lambda file: read_key(file),
    "a chat template": lambda file: folder._jinja(file),
    "YAML": lambda file: load_yaml(file, error=SaveError),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_byte_order_mark_is_no_part_of_a_text_file(read, tmp_path):
    found = []
    for number, mark in enumerate((b"", MARK)):
        (tmp_path / str(number)).write_bytes(mark + b"0123456789abcdef0123456789abcdef")
        found.append(read(tmp_path / str(number)))
    assert found[0] == found[1]


def test_the_answer_goes_to_a_file(scripted, tmp_path, capsys):
    scripted("a fine day")
    file = tmp_path / "answer.txt"
    assert run(["generate", "hi", "--output", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "11 tokens" in err
    assert file.read_text() == "a fine day\n"
    assert run(["generate", "hi", "-o", str(file)]) == 2
    assert "exists" in capsys.readouterr().err
    assert run(["generate", "hi", "-o", str(file), "--json", "--overwrite"]) == 0
    assert json.loads(file.read_text())["text"] == "a fine day"
    assert [found.name for found in tmp_path.iterdir()] == ["answer.txt"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "."], "is a folder"),
        (["-o", "no/such/a.txt"], "no folder"),
        (["--overwrite"], "--overwrite needs --output"),
        (["-o", "a.txt", "--show-accepted"], "--show-accepted and --output exclude"),
    ],
)
def test_output_is_refused_before_anything_is_loaded(arguments, says, capsys):
    assert run(["generate", "hi", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_an_interrupted_file_keeps_another_name(scripted, tmp_path, capsys):
    scripted("one two three").interrupt_after = 8
    assert run(["generate", "hi", "-o", str(tmp_path / "a.txt")]) == 130
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".a.txt.")
    assert left.read_text() == "one two \n"
    assert f"the partial output is in {left}" in capsys.readouterr().err


def test_a_file_that_nothing_came_for_is_gone(tmp_path):
    with pytest.raises(RuntimeError), written(str(tmp_path / "a.txt")):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SaveError, match="cannot write"), written("/proc/none/a.txt"):
        pass


def test_several_prompts(scripted, tmp_path, capsys):
    model = scripted("one", "two", "three")
    file = tmp_path / "p.jsonl"
    lines = [{"id": "x", "prompt": "first"}, {"prompt": "second"}, {"id": 3, "prompt": "third"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert run(["generate", "--prompts", str(file), "--temperature", "1"]) == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [(line["id"], line["text"]) for line in found] == [("x", "one"), ("p/2", "two"), ("3", "three")]
    assert {line["seed"] for line in found} == {1234}
    assert err == ""
    assert "second" in prompt_text(model, 1)
    assert run(["generate", "--prompts", str(file), "-o", str(tmp_path / "a.jsonl")]) == 0
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 3
    assert run(["generate", "--prompts", str(file), "hi"]) == 2
    assert run(["generate", "--prompts", str(file), "--show-accepted"]) == 2


def test_a_prompt_that_cannot_be_answered_does_not_stop_the_others(scripted, tmp_path, capsys):
    from ipex_lookahead.errors import ContextLengthError

    model = scripted("one", "two")
    generate = model.generate

    def refuse_long(ids, *arguments, **options):
        if len(ids) > 100:
            raise ContextLengthError("too long")
        return generate(ids, *arguments, **options)

    model.generate = refuse_long
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": text}) for text in ("a", "b" * 100, "c")))
    assert run(["generate", "--prompts", str(file)]) == 1
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [line.get("text") for line in found] == ["one", None, "two"]
    assert found[1]["error"] == "too long"
    assert "1 of 3 prompts failed" in err


# ---- penalties and seeds ---------------------------------------------------------------------------------------------


# ---- long prompts ----------------------------------------------------------------------------------------------------


def test_a_long_prompt_shows_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    bar = PromptBar()
    for done in (0, 512, 1024, 1500):
        bar.update(done, 1500)
    shown = capsys.readouterr().err
    assert "reading the prompt" in shown
    assert "0/1500" in shown
    bar.update(0, 20)
    PromptBar(shown=False).update(0, 1500)
    assert capsys.readouterr().err == ""


def test_where_nothing_may_be_drawn_a_line_says_it_once(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    bar = PromptBar()
    for done in (0, 512, 1024, 1500):
        bar.update(done, 1500)
    assert capsys.readouterr().err == "reading the prompt (1500 tokens) ...\n"


def test_nothing_is_drawn_into_a_pipe(capsys):
    PromptBar().update(0, 1500)
    assert capsys.readouterr().err == ""


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.programs
def test_an_interrupt_in_the_prompt_ends_it_at_once():
    """Also where the core does not come back to Python for a long time."""
    code = (
        "import hashlib, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from ipex_lookahead.cli.interrupt import ends_at_once\n"
        "with ends_at_once(lambda: print('tidied', flush=True)):\n"
        "    print('busy', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha512', b'x', b'y', 10**9)\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as child:
        assert child.stdout.readline() == "busy\n"
        begun = processor_seconds(child.pid)
        while processor_seconds(child.pid) < begun + 0.1:  # until it is in the core: nothing else takes so long
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=200)
        assert (child.returncode, out, err) == (130, "tidied\n", "interrupted\n")


def test_after_the_prompt_an_interrupt_is_pythons():
    from ipex_lookahead.cli.interrupt import ends_at_once

    tidied = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs in the background inherits none
    try:
        with ends_at_once(lambda: tidied.append(1)) as in_order:
            in_order()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not tidied
    assert signal.set_wakeup_fd(-1) == -1
