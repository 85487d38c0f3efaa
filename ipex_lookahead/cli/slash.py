"""The slash commands of ``chat``: functions of the session and of the text after the name."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ipex_lookahead.cli.report import stats_line
from ipex_lookahead.cli.sampling import Sampling
from ipex_lookahead.cli.tables import fact_lines, terminal_width
from ipex_lookahead.cli.thinking import NO_SWITCH, SWITCH
from ipex_lookahead.config import Bounds, LookaheadConfig, bounds_of
from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.files.temporary import temporary_file
from ipex_lookahead.runtime.recommended import SEED
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from ipex_lookahead.cli.session import Session

MOST_BYTES = 64 << 20
"""Maximum size of a saved conversation."""
LIMITS = {one.name: bounds_of(SamplingParams, one.name) for one in fields(Sampling)} | {
    "max_new_tokens": Bounds(int, 1)
}
"""Setting -> its bounds."""


@dataclass(frozen=True, slots=True)
class Slash:
    """A command: its arguments, one line of help, and its function."""

    takes: str
    help: str
    run: Callable[[Session, str], None]


def run_slash(session: Session, line: str) -> None:
    """Run ``/name rest``. For an unknown name, suggest the nearest one; it is not sent to the model."""
    name, _, rest = line[1:].partition(" ")
    name = name.strip().lower()
    command = SLASHES.get(name)
    if command is None:
        near = difflib.get_close_matches(name, SLASHES, 1)
        session.tell(f"unknown command /{name}; " + (f"did you mean /{near[0]}?" if near else "/help lists commands"))
        return
    try:
        command.run(session, rest.strip())
    except InputError as error:
        session.tell(f"error: {error}")
    except OSError as error:
        session.tell(f"error: {error.filename or name}: {error.strerror}")


def _help(session: Session, _: str) -> None:
    entries = [(f"  /{name} {command.takes}".rstrip(), command.help) for name, command in SLASHES.items()]
    entries.append(('  """', "start and end a message of several lines; or Alt-Enter for a new line"))
    entries.append(("  Ctrl-C", "stop the answer; its text is kept"))
    entries.append(("  Ctrl-D", "exit"))
    for line in fact_lines(entries, terminal_width(to_stderr=True)):
        session.tell(line)


def _system(session: Session, text: str) -> None:
    if text:
        session.conversation.system = None if text == "none" else text
    session.tell(f"system: {session.conversation.system or '(none)'}")


def _reset(session: Session, _: str) -> None:
    session.conversation.turns.clear()
    session.tell("conversation cleared")


def _retry(session: Session, _: str) -> None:
    """Answer again with another seed; keep the earlier answer if there is no new one."""
    if not session.conversation.turns:
        raise InputError("there is no answer to retry")
    if session.temperature == 0:
        session.tell("at temperature 0 the answer stays the same; try /set temperature=0.7")
    elif session.sampling.seed is not None or session.sampling.temperature is None:
        session.sampling.seed = ((session.sampling.seed or SEED) + 1) % 2**63
        session.tell(f"seed: {session.sampling.seed}")
    before = session.conversation.turns.pop()
    if not session.answer(before.user):
        session.conversation.turns.append(before)


def _undo(session: Session, _: str) -> None:
    if not session.conversation.turns:
        raise InputError("there is nothing to undo")
    session.tell(f"removed: {session.conversation.turns.pop().user}")


def _stats(session: Session, _: str) -> None:
    if session.last_stats is None:
        raise InputError("nothing has been generated yet")
    session.tell(stats_line(session.last_stats, verbose=True))
    turns = session.conversation.turns
    used = len(session.conversation.prompt(turns)) + len(turns[-1].ids) if turns else 0
    session.tell(f"context: {used:,} of {session.context:,} tokens in {counted(len(turns), 'turn')}")


def _lookahead(session: Session, text: str) -> None:
    if text:
        session.lookahead = (
            "auto" if text == "auto" else _number("lookahead", text, bounds_of(LookaheadConfig, "num_draft_tokens"))
        )
    session.tell(f"lookahead: {session.lookahead} (never changes the text)")


def _accepted(session: Session, text: str) -> None:
    if text not in ("", "on", "off"):
        raise InputError(f"/accepted {text}: must be on or off")
    session.show_accepted = text == "on" if text else session.show_accepted
    session.tell(f"accepted: {'on' if session.show_accepted else 'off'}")


def _think(session: Session, text: str) -> None:
    if text not in ("", "on", "off"):
        raise InputError(f"/think {text}: must be on or off")
    if text:
        if not session.can_switch_thinking:
            raise InputError(f"/think {text} has no effect: {NO_SWITCH}")
        session.variables[SWITCH] = text == "on"
    thinking = session.variables.get(SWITCH)
    session.tell(f"think: {'chat template default' if thinking is None else 'on' if thinking else 'off'}")


def _set(session: Session, text: str) -> None:
    if text:
        separator = "=" if "=" in text else " "
        key, found, value = text.removeprefix("parameter ").strip().partition(separator)  # Ollama: parameter NAME VALUE
        key, value = key.strip().replace("-", "_"), value.strip()
        if key not in LIMITS or not found:
            raise InputError(f"/set {text}: give one of {', '.join(LIMITS)} as name=value, such as temperature=0.7")
        chosen = None if value in ("", "none") and key != "max_new_tokens" else _number(key, value, LIMITS[key])
        if key == "max_new_tokens":
            session.max_new_tokens = int(chosen or 0)
        else:
            setattr(session.sampling, key, chosen)
    shown = {f.name: getattr(session.sampling, f.name) for f in fields(Sampling)}
    shown["max_new_tokens"] = session.max_new_tokens
    session.tell(", ".join(f"{name}={value}" for name, value in shown.items() if value is not None))
    if session.sampling.temperature is None:
        session.tell(session.sampling_in_words())
    if session.temperature == 0 and session.sampling.given():
        session.tell("at temperature 0 the other settings have no effect")


def _number(name: str, text: str, bounds: Bounds) -> float:
    try:
        value = bounds.kind(text)
    except ValueError:
        value = None
    if value is None or not bounds.allow(value):
        raise InputError(f"{name} must be {bounds}, got {text!r}")
    return value


def _save(session: Session, text: str) -> None:
    if not text:
        raise InputError("/save needs a file name, such as /save chat.json")
    path = given_path(text)
    content = {
        "system": session.conversation.system,
        "turns": [{"user": turn.user, "assistant": turn.answer} for turn in session.conversation.turns],
    }
    if os.path.lexists(path):
        raise InputError(f"{path} already exists; choose another name")
    try:
        with temporary_file(path) as temporary:  # a complete file or none
            temporary.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
            temporary.rename(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    session.tell(f"saved {counted(len(session.conversation.turns), 'turn')} to {path}")


def _load(session: Session, text: str) -> None:
    if not text:
        raise InputError("/load needs a file name, such as /load chat.json")
    path = given_path(text)
    try:
        found = load_object(path, MOST_BYTES)
        system, turns = found["system"], [(turn["user"], turn["assistant"]) for turn in found["turns"]]
        if not all(isinstance(text, str) for turn in turns for text in turn) or not isinstance(system, str | None):
            raise TypeError
    except ModelFormatError as error:
        raise InputError(f"{path} is not a conversation saved by /save: {error.problem}") from None
    except (KeyError, TypeError):
        raise InputError(
            f"{path} is not a conversation saved by /save: 'system' or 'turns' is missing or invalid"
        ) from None
    session.conversation.system = system
    session.conversation.turns = [session.past_turn(user, answer) for user, answer in turns]
    session.tell(f"loaded {counted(len(turns), 'turn')} from {path}")


def _bye(session: Session, _: str) -> None:
    session.over = True


SLASHES: dict[str, Slash] = {
    "help": Slash("", "show this list", _help),
    "system": Slash("[TEXT|none]", "show or set the system prompt; none removes it", _system),
    "reset": Slash("", "start a new conversation", _reset),
    "clear": Slash("", "same as /reset", _reset),
    "retry": Slash("", "answer the last message again, with a new seed when sampling", _retry),
    "regen": Slash("", "same as /retry", _retry),
    "undo": Slash("", "remove the last message and its answer", _undo),
    "stats": Slash("", "show the speed of the last answer and the context usage", _stats),
    "lookahead": Slash("[N|auto]", "show or set the maximum tokens to draft per step; 0 is off", _lookahead),
    "accepted": Slash("[on|off]", "color tokens accepted from a draft", _accepted),
    "think": Slash("[on|off]", "turn thinking on or off, if the chat template supports it", _think),
    "set": Slash("[NAME=VALUE]", "show or set temperature, top_k, top_p, min_p, seed, penalties, max_new_tokens", _set),
    "save": Slash("FILE", "save the conversation as JSON", _save),
    "load": Slash("FILE", "continue a saved conversation", _load),
    "bye": Slash("", "exit; also /exit, /quit, exit, quit", _bye),
    "exit": Slash("", "same as /bye", _bye),
    "quit": Slash("", "same as /bye", _bye),
}
