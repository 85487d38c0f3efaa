"""The slash commands of ``chat``: functions of the session and of the text after the name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ipex_lookahead.cli.chat_images import ChatImage
from ipex_lookahead.cli.names import in_options
from ipex_lookahead.cli.report import stats_line
from ipex_lookahead.cli.sampling import Sampling
from ipex_lookahead.cli.saved_sessions import read_conversation, saved_sessions, session_removal
from ipex_lookahead.cli.session import LIMITS
from ipex_lookahead.cli.tables import fact_lines, terminal_width
from ipex_lookahead.cli.thinking import NO_SWITCH, NO_THINKING, SWITCH
from ipex_lookahead.config import Bounds, LookaheadConfig, bounds_of
from ipex_lookahead.errors import InputError, LookaheadError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.runtime.recommended import SEED
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from ipex_lookahead.cli.session import Session


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
    except LookaheadError as error:
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
    if not session.answer(before.user, before.images):
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


def _model(session: Session, name: str) -> None:
    """Change the model, or list those on this machine."""
    if session.models is None:
        raise InputError("/model is not available here")
    if name:
        try:
            session.models.change(session, name)
        except LookaheadError as error:
            message, hint = in_options(error)
            session.tell(f"error: {message}")
            if hint:
                session.tell(f"hint: {hint}")
            return
        facts = session.engine_facts
        session.tell(f"model: {name} · {facts.get('low_bit')} · context {session.context:,} tokens")
        session.tell(session.sampling_in_words())
        return
    for known, size in session.models.known():
        mark = "*" if known == session.models.name else " "
        session.tell(f"{mark} {known}" + (f" ({size / 1e6:,.0f} MB)" if size else ""))
    session.tell("/model NAME changes to another one; ipex-lookahead pull lists more")


def _adapter(session: Session, text: str) -> None:
    """Change the adapter or its scale, or list the adapters."""
    from ipex_lookahead.engines.adapters import MAX_SCALE

    name, _, scale = text.partition(" ")
    if text == "none":
        session.use_adapter(None)
    elif text:
        session.use_adapter(
            name, _number("scale", scale, Bounds(float, -MAX_SCALE, MAX_SCALE)) if scale.strip() else 1.0
        )
    used = session.adapter
    for one in session.adapters:
        chosen = used is not None and used.adapter.name == one
        factor = f" (scale {used.scale:g})" if used is not None and chosen and used.scale != 1 else ""
        session.tell(f"{'*' if chosen else ' '} {one}{factor}")
    if not session.adapters:
        session.tell("no adapters; start the chat with --lora NAME=PATH")
    elif used is None:
        session.tell("adapter: none")


def _accepted(session: Session, text: str) -> None:
    if text not in ("", "on", "off"):
        raise InputError(f"/accepted {text}: must be on or off")
    session.show_accepted = text == "on" if text else session.show_accepted
    session.tell(f"accepted: {'on' if session.show_accepted else 'off'}")


def _think(session: Session, text: str) -> None:
    if text.isascii() and text.isdecimal() and len(text) < 10:
        if not session.can_think:
            raise InputError(f"/think {text} has no effect: {NO_THINKING}")
        session.limit.budget = int(text)
    elif text == "unlimited":
        session.limit.budget = None
    elif text not in ("", "on", "off"):
        raise InputError(f"/think {text}: must be on, off, a maximum number of tokens, or unlimited")
    elif text:
        if not session.can_switch_thinking:
            raise InputError(f"/think {text} has no effect: {NO_SWITCH}")
        session.variables[SWITCH] = text == "on"
    thinking = session.variables.get(SWITCH)
    switch = "chat template default" if thinking is None else "on" if thinking else "off"
    budget = session.limit.budget
    session.tell(f"think: {switch}" + ("" if budget is None else f", at most {counted(budget, 'token')}"))


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
    if os.path.lexists(path):
        raise InputError(f"{path} already exists; choose another name")
    session.saved().write(path)
    session.tell(f"saved {counted(len(session.conversation.turns), 'turn')} to {path}")


def _load(session: Session, text: str) -> None:
    if not text:
        raise InputError("/load needs a file name, such as /load chat.json")
    path = given_path(text)
    saved = read_conversation(path)
    session.load(saved)
    session.tell(f"loaded {counted(len(saved.turns), 'turn')} from {path}")


def _sessions(session: Session, text: str) -> None:
    action, _, name = text.partition(" ")
    if action == "rm" and name:
        session_removal(name.strip()).execute()
        session.tell(f"removed session {name.strip()}")
    elif text:
        session.open(text)
    else:
        current = None if session.folder is None else session.folder.name
        for one in (found := saved_sessions()):
            turns = "damaged" if one.turns is None else counted(one.turns, "turn")
            session.tell(f"{'* ' if one.name == current else '  '}{one.name}: {turns}")
        if not found:
            session.tell("no sessions yet; /sessions NAME saves this conversation")


def _image(session: Session, text: str) -> None:
    """Attach an image to the next message, list the attached ones, or remove them."""
    if text == "none":
        session.images.clear()
    elif text:
        session.attach(ChatImage.read(text))
        return
    names = ", ".join(image.name for image in session.images)
    session.tell(f"images for the next message: {names or 'none; /image PATH attaches one'}")


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
    "model": Slash("[NAME]", "list the models on this machine, or continue with another one", _model),
    "adapter": Slash("[NAME [SCALE]|none]", "list the LoRA adapters, or continue with one or none", _adapter),
    "accepted": Slash("[on|off]", "color tokens accepted from a draft", _accepted),
    "think": Slash("[on|off|N]", "turn thinking on or off, or end it after N tokens; unlimited removes N", _think),
    "set": Slash("[NAME=VALUE]", "show or set temperature, top_k, top_p, min_p, seed, penalties, max_new_tokens", _set),
    "image": Slash("[PATH|none]", "attach an image to the next message, list them, or remove them", _image),
    "save": Slash("FILE", "save the conversation as JSON", _save),
    "load": Slash("FILE", "continue a saved conversation", _load),
    "sessions": Slash("[NAME|rm NAME]", "list the sessions, continue or begin one, or remove one", _sessions),
    "bye": Slash("", "exit; also /exit, /quit, exit, quit", _bye),
    "exit": Slash("", "same as /bye", _bye),
    "quit": Slash("", "same as /bye", _bye),
}
