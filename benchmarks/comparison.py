"""The same weights and prompts here and in other programs: prompt, plain decoding, and each one's own drafting.

Every program is a process of its own (:mod:`.peers`), all are loaded at once, and every prompt is answered by all of
them before the next one, the order turning round from prompt to prompt: what else the machine does falls on all alike.
All get the same token ids. What cannot run is named with the reason; nothing is estimated.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.peers import OURS, PEERS
from ipex_lookahead.errors import InputError, LookaheadError

FOLDER = Path(__file__).with_name("peers")
LOAD_SECONDS, ANSWER_SECONDS, END_SECONDS = 1800.0, 900.0, 10.0
"""How long a peer may take before it is given up; and at its end, before it is killed."""
MOST_REPLY = 64 << 20
FOREIGN_ENVIRONMENT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that are about this interpreter's packages and must not reach another one."""


class PeerError(LookaheadError):
    """A peer cannot run, or does not go on."""


@dataclass(slots=True)
class Row:
    """One program in one mode: "plain", "lookahead", or ours with "auto"."""

    peer: str
    mode: str
    answers: list[dict[str, Any]] = field(default_factory=list)
    """One for each prompt and repetition, as ``peers/child.py`` describes them."""


@dataclass(slots=True)
class Comparison:
    """The measurements, the description of each program, and the reasons why others did not run."""

    rows: list[Row] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    prompt_tokens: list[int] = field(default_factory=list)


class Peer:
    """A program in a process of its own; ``PeerError`` wherever it does not answer as it should.

    Args:
        name: key of ``PEERS``.
        python: the interpreter that has it.
        file: its file, that of ``PEERS`` if None.
    """

    def __init__(self, name: str, python: str | None = None, file: Path | None = None) -> None:
        self.name, self.python = name, python or sys.executable
        environment = dict(os.environ)
        if python is not None:
            environment = {key: value for key, value in environment.items() if key not in FOREIGN_ENVIRONMENT}
        if name == OURS:  # also from a folder of sources
            root = str(Path(__file__).resolve().parents[1])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - until close()
        self._buffer = b""
        command = [self.python, str(FOLDER / "child.py"), str(file or FOLDER / f"{PEERS[name]}.py")]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, env=environment
            )
        except OSError as error:
            self._said.close()
            raise PeerError(f"{self.python} cannot be run: {error.strerror}") from error

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a line and wait for the reply."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except OSError:
            pass  # it has ended; reading raises the error
        try:
            reply = json.loads(self._line(monotonic() + seconds))
        except ValueError as error:
            raise PeerError(f"its process answered no JSON: {error}") from error
        if "missing" in reply:
            hint = f"name the interpreter that has it: --python {self.name}=PATH"
            raise PeerError(f"{self.python} has no module {reply['missing']!r}", hint=hint)
        if "error" in reply:
            raise PeerError(reply["error"])
        found: dict[str, Any] = reply
        return found

    def _line(self, until: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([stdout], [], [], max(0.0, until - monotonic()))
            if not ready:
                raise PeerError("it did not answer in time")
            if not (piece := os.read(stdout.fileno(), 1 << 16)):
                raise PeerError(self._end())
            self._buffer += piece
            if len(self._buffer) > MOST_REPLY:
                raise PeerError("its reply has no end")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _end(self) -> str:
        """How its process ended, and the last that it said."""
        code = self._process.wait(30)
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        self._said.seek(0)
        last = self._said.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return f"its process ended {how}" + (f": {last[-1]}" if last else "")

    def close(self) -> None:
        """End it, and wait for that."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


class Programs:
    """The programs that run, each in its own process. A peer that fails is ended and named in ``absent``.

    Ours makes the token ids of all prompts. As a context manager it ends every process.

    Args:
        request: Settings that each program loads with: ``model`` (a path), ``threads``, ``lookahead``, ``low_bit``, and
            whatever one program needs in addition.
        texts: User messages.
        pythons: Name -> interpreter, for programs that this interpreter does not have.
        models: Name -> path of the same weights in a form that only that program reads.
        max_new_tokens: Maximum length of an answer, for the size of each context.
        start: Returns a process for a name and an interpreter; for tests.
        began: Called with the name of each step.

    Raises:
        PeerError: Ours does not run.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        texts: Sequence[str],
        *,
        pythons: Mapping[str, str] | None = None,
        models: Mapping[str, str] | None = None,
        max_new_tokens: int = 128,
        start: Callable[[str, str | None], Peer] = Peer,
        began: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.facts: dict[str, dict[str, Any]] = {}
        self.absent: dict[str, str] = {}
        self.running: dict[str, Peer] = {}
        self.began = began
        self._request, self._start = request, start
        self._pythons, self._models = pythons or {}, models or {}
        try:
            ours = self._load(OURS, context=0)
            encoded = ours.ask({"call": "encode", "texts": list(texts)}, ANSWER_SECONDS)
        except BaseException:
            self.close()
            raise
        self.prompts: list[list[int]] = encoded["prompts"]
        self.end: list[int] = encoded["end"]
        # Drafts follow the last token, too; llama.cpp rounds its context up to a multiple of 256 anyway.
        self._context = max(map(len, self.prompts)) + max_new_tokens + request["lookahead"] + 64

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def load(self, name: str) -> bool:
        """Load a peer and return True if it runs."""
        try:
            self._load(name, context=self._context)
        except PeerError as error:
            self.drop(name)
            self.absent[name] = _sentence(error)
        return name in self.running

    def answer(
        self, name: str, mode: str, prompt: list[int], new: int, sampling: dict[str, float] | None = None
    ) -> dict[str, Any] | None:
        """Return an answer as ``child.Loaded`` describes it, or None from a program that does not run (any more).

        Raises:
            PeerError: Ours fails.
        """
        if name not in self.running:
            return None
        settings = {"prompt": prompt, "max_new_tokens": new, "end": self.end, "mode": mode, "sampling": sampling}
        try:
            return self.running[name].ask({"call": "answer", **settings}, ANSWER_SECONDS)
        except PeerError as error:
            if name == OURS:
                raise
            self.drop(name)
            self.absent[name] = f"{mode}: {_sentence(error)}"
            return None

    def drop(self, name: str) -> None:
        """End a program if it runs."""
        if (peer := self.running.pop(name, None)) is not None:
            peer.close()

    def close(self) -> None:
        """End every program."""
        for name in list(self.running):
            self.drop(name)

    def _load(self, name: str, **more: Any) -> Peer:
        self.began(f"loading {name}")
        peer = self.running[name] = self._start(name, self._pythons.get(name))
        model = self._models.get(name, self._request["model"])
        self.facts[name] = peer.ask({**self._request, "model": model, **more}, LOAD_SECONDS)
        return peer


def compare(
    peers: Sequence[str],
    request: Mapping[str, Any],
    texts: Sequence[str],
    *,
    max_new_tokens: int = 128,
    repeat: int = 1,
    began: Callable[[str], None] = lambda name: None,
    **programs: Any,
) -> Comparison:
    """Answer the texts with ours and with each peer, plain and with its lookup.

    Args:
        peers: Keys of ``PEERS``; ``OURS`` always runs.
        request: See :class:`Programs`, as for ``texts``, ``began`` and the other settings.
        max_new_tokens: Maximum length of an answer.
        repeat: Rounds over all prompts.

    Raises:
        PeerError: Ours does not run.
    """
    with Programs(request, texts, max_new_tokens=max_new_tokens, began=began, **programs) as running:
        names = [OURS, *(name for name in peers if running.load(name))]
        rows = [Row(name, mode) for name in names for mode in ("plain", "lookahead", *(["auto"] * (name == OURS)))]

        def attempt(row: Row, prompt: list[int], new: int, *, keep: bool) -> None:
            answer = running.answer(row.peer, row.mode, prompt, new)
            if keep and answer is not None:
                row.answers.append(answer)

        for row in rows:  # warm-up: pages, threads, and what calibrates itself
            attempt(row, running.prompts[0], min(max_new_tokens, 16), keep=False)
        for turn in range(repeat):
            for number, prompt in enumerate(running.prompts):
                began(f"prompt {number + 1} of {len(texts)}" + (f", round {turn + 1}" if repeat > 1 else ""))
                for row in rows if (number + turn) % 2 == 0 else rows[::-1]:
                    attempt(row, prompt, max_new_tokens, keep=True)
        kept = [row for row in rows if row.peer in running.running]
        return Comparison(kept, running.facts, running.absent, [len(prompt) for prompt in running.prompts])


def _sentence(error: PeerError) -> str:
    return f"{error}; {error.hint}" if error.hint else str(error)


def report(found: Comparison) -> list[dict[str, Any]]:
    """One entry for each row: speeds in tokens per second, and answers with the same tokens as its own plain ones.

    ``prefill_tok_s`` counts until the first token; ``decode_tok_s`` what comes after the first piece.
    """
    by_name = {(row.peer, row.mode): row for row in found.rows}
    entries = []
    for row in found.rows:
        plain, ours = by_name[row.peer, "plain"], by_name[OURS, "plain"]
        rounds = len(row.answers) // len(found.prompt_tokens)
        speed, base = _speed(row), _speed(plain)
        first = sum(answer["first_seconds"] for answer in row.answers)
        entries.append(
            {
                "peer": row.peer,
                "mode": row.mode,
                **{key: found.facts[row.peer][key] for key in ("version", "weights")},
                "lookup": described(found.facts[row.peer]["modes"]),
                "prefill_tok_s": rounds * sum(found.prompt_tokens) / first if first else 0.0,
                "decode_tok_s": speed,
                "ratio": speed / base if base else 0.0,
                "identical_to_plain": f"{_equal(row, plain)}/{len(row.answers)}",
                "identical_to_ours": f"{_equal(row, ours)}/{len(row.answers)}",
                "answers": row.answers,
            }
        )
    return entries


def described(modes: Mapping[str, str]) -> str:
    """Return the drafting of a program's lookup and, for ipex-lookahead, of "auto"."""
    kinds = [kind for kind in ("lookahead", "auto") if kind in modes]
    return "; ".join(modes[kind] if kind == "lookahead" else f"{kind}: {modes[kind]}" for kind in kinds)


def _speed(row: Row) -> float:
    """Tokens per second after the first piece of each answer."""
    seconds = sum(answer["seconds"] - answer["first_seconds"] for answer in row.answers)
    tokens = sum(len(answer["tokens"]) - answer["first_tokens"] for answer in row.answers)
    return tokens / seconds if seconds > 0 else 0.0


def _equal(row: Row, other: Row) -> int:
    return sum(a["tokens"] == b["tokens"] for a, b in zip(row.answers, other.answers, strict=True))


def named(values: Sequence[str], option: str) -> dict[str, str]:
    """``NAME=PATH`` of ``--python`` and ``--peer-model`` by name. Raises InputError for any other text."""
    found = {}
    for value in values:
        name, sign, path = value.partition("=")
        if name not in PEERS or not sign or not path:
            raise InputError(f"{option}: {value!r} is not NAME=PATH", hint=f"NAME is one of {', '.join(PEERS)}")
        if not Path(path).expanduser().exists():
            raise InputError(f"{option}: there is no {path}")
        found[name] = str(Path(path).expanduser().absolute())  # a link to an interpreter is its environment
    return found
