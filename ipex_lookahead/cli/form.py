"""``--json-schema`` and ``--grammar``: the form of an answer."""

from __future__ import annotations

import json
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
    from ipex_lookahead.conversation.model import ChatModel
    from ipex_lookahead.conversation.request import Form
    from ipex_lookahead.runtime.text_model import Constrain


@dataclass
class FormOptions:
    """The form of the answer."""

    json_schema: Path | None = option(
        "Answer in JSON that matches the schema in this file.",
        type=click.Path(path_type=Path),
        metavar="FILE.json",
    )
    grammar: Path | None = option(
        "Answer in the grammar in this file: GBNF or llguidance's Lark.",
        type=click.Path(path_type=Path),
        metavar="FILE",
    )

    def read(self) -> Form | None:
        """Return the form in the file, or None.

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
            return Form(f"{name} {self.grammar}", grammar=read_text(self.grammar))
        text = read_text(self.json_schema)
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}: {self.json_schema} is not valid JSON: {error}") from None
        if schema is not True and not isinstance(schema, dict):
            said = f"{name}: {self.json_schema} must hold a JSON schema, which is an object, got {text.strip()[:40]!r}"
            raise InputError(said)
        return Form(f"{name} {self.json_schema}", schema)


def constrained(
    model: ChatModel, form: Form, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any]
) -> tuple[list[int], Constrain]:
    """Return the token ids of a prompt, and what keeps its answer in the form, after a thought if the model thinks.

    Raises InputError if the form cannot be compiled.
    """
    from ipex_lookahead.conversation.request import Conversation, request_for

    request = request_for(model, Conversation([dict(one) for one in messages], form=form, variables=variables))
    assert request.constraint is not None
    return list(request.prompt), request.constraint(model.grammars).constrain


def constrained_text(model: ChatModel, form: Form, prompt: str) -> tuple[list[int], Constrain]:
    """Return the same for a prompt without the chat template."""
    from ipex_lookahead.conversation.request import grammar_of

    return model.tokenizer.encode(prompt), grammar_of(model.grammars, form).constrain
