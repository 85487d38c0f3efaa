"""``--json-schema`` and ``--grammar``: the form of an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.prompts import read_text
from ipex_lookahead.errors import InputError, MissingPackageError
from ipex_lookahead.system.extras import installing

if TYPE_CHECKING:
    from ipex_lookahead.conversation.image_parts import Picture
    from ipex_lookahead.conversation.model import ChatModel
    from ipex_lookahead.conversation.request import Form
    from ipex_lookahead.engines.images import PromptImage
    from ipex_lookahead.runtime.text_model import Constrain

_JSON = re.compile(r"^\s*[{\[]")
_GRAMMAR = re.compile(r"::=|^\s*(start\s*:|%llguidance)")
"""Texts that are a schema or a grammar, and not the name of a file."""


@dataclass
class FormOptions:
    """The form of the answer."""

    json_schema: str | None = option(
        "Answer in JSON that matches this schema: a file, or the schema itself.",
        type=click.Path(),
        metavar="FILE|JSON",
    )
    grammar: str | None = option(
        "Answer in this grammar, GBNF or llguidance's Lark: a file, or the grammar itself.",
        type=click.Path(),
        metavar="FILE|TEXT",
    )

    def read(self) -> Form | None:
        """Return the form in the file or in the text, or None.

        Raises:
            UsageError: both options are given.
            MissingPackageError: llguidance is not installed.
            InputError: the file cannot be read, or is not a JSON schema.
        """
        if self.json_schema is not None and self.grammar is not None:
            raise click.UsageError("--json-schema and --grammar exclude each other; leave one of them out")
        if self.json_schema is None and self.grammar is None:
            return None
        name = "--grammar" if self.json_schema is None else "--json-schema"
        if find_spec("llguidance") is None:
            raise MissingPackageError(f"{name} needs llguidance, which is not installed", hint=installing("serve"))
        from ipex_lookahead.conversation.request import Form

        if self.json_schema is None:
            assert self.grammar is not None
            text, source = _text_of(name, self.grammar, _GRAMMAR)
            return Form(source, grammar=text)
        text, source = _text_of(name, self.json_schema, _JSON)
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{source} is not valid JSON: {error}") from None
        if schema is not True and not isinstance(schema, dict):
            raise InputError(f"{source} must hold a JSON schema, which is an object, got {text.strip()[:40]!r}")
        return Form(source, schema)


def _text_of(name: str, given: str, inline: re.Pattern[str]) -> tuple[str, str]:
    """Return the text of an option and its source for messages: the text itself, or the file of this name."""
    if inline.search(given):
        return given, name
    return read_text(Path(given)), f"{name} {given}"


def constrained(
    model: ChatModel,
    form: Form,
    messages: Sequence[Mapping[str, str]],
    variables: Mapping[str, Any],
    images: Sequence[Picture],
) -> tuple[list[int], Sequence[PromptImage], Constrain]:
    """Return the token ids of a prompt, its images, and what keeps its answer in the form, after a possible thought.

    Raises InputError if the form cannot be compiled.
    """
    from ipex_lookahead.conversation.request import Conversation, request_for

    given = Conversation([dict(one) for one in messages], form=form, variables=variables, images=images)
    request = request_for(model, given)
    assert request.constraint is not None
    return list(request.prompt), request.images, request.constraint(model.grammars).constrain


def constrained_text(model: ChatModel, form: Form, prompt: str) -> tuple[list[int], Constrain]:
    """Return the same for a prompt without the chat template."""
    from ipex_lookahead.conversation.request import grammar_of

    return model.tokenizer.encode(prompt), grammar_of(model.grammars, form).constrain
