"""What people fill in when they report something asks for commands that there are."""

from __future__ import annotations

import re

import click
import yaml

from ipex_lookahead.cli.main import cli
from tests.docs.pages import ROOT

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_forms_are_whole():
    assert len(FORMS) >= 4
    for form in FORMS:
        read = yaml.safe_load(form.read_text(encoding="utf-8"))
        if form.name == "config.yml":
            continue
        assert {"name", "description", "body"} <= set(read), form.name
        ids = [one["id"] for one in read["body"] if one["type"] != "markdown"]
        assert len(ids) == len(set(ids)) > 0, form.name


def test_commands_and_files_named_are_there():
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in (*FORMS, ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md")
    )
    for name in re.findall(r"`ipex-lookahead ([a-z-]+)", text):
        assert cli.get_command(click.Context(cli), name) is not None, name
    for name in re.findall(r"\b(docs/\w+\.md|[A-Z]+\.md)\b", text):
        assert (ROOT / name).is_file(), name
