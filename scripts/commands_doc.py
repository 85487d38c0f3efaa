"""Write docs/commands.md from the commands themselves: every option and its default.

python scripts/commands_doc.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ipex_lookahead.cli.commands import SECTIONS, Command, section_of
from ipex_lookahead.cli.main import cli
from ipex_lookahead.cli.options import Option

FILE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
HEAD = """\
# Commands

`ipex-lookahead COMMAND --help` prints the same. An environment variable named after the program, the command and the
option sets an option too. `IPEX_LOOKAHEAD_BENCH_DECODE_MAX_NEW_TOKENS=64` sets
`--max-new-tokens` of `bench decode`, and `1` sets an option without a value. The command line takes precedence.
`IPEX_LOOKAHEAD_DEBUG=1` (`--debug`) shows the traceback of an error.

`--config FILE.yaml` of every command reads options from a file; both others take precedence:

```yaml
model: default            # for every command that has the option
lookahead: auto
bench decode:             # for that command alone
  repeat: 5
```

The presets in `configs/lookahead` are such files. `ipex-lookahead info --config FILE` shows the effective values and
their sources.

Exit status: 0 done, 1 an error, 2 wrong usage (nothing was loaded), 130 interrupted.

This file is made by `scripts/commands_doc.py`; do not edit it.
"""


def text() -> str:
    """Return the file."""
    return "\n".join([HEAD, *(line for path, command in leaves(cli, ()) for line in described(path, command))])


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield (path, command) of all commands that are not groups."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


def described(path: tuple[str, ...], command: click.Command) -> list[str]:
    """Return the heading, description, examples and options of a command."""
    context = click.Context(command, info_name=" ".join(["ipex-lookahead", *path]))
    usage = " ".join([context.info_name or "", *command.collect_usage_pieces(context)])
    summary = " ".join((command.help or "").split())
    lines = [f"## {' '.join(path)}", "", f"`{usage}`", "", summary, ""]
    if isinstance(command, Command) and command.examples:
        lines += ["```sh", *command.examples, "```", ""]
    options = [option for option in command.params if isinstance(option, Option)]
    order = [*SECTIONS, "Options"]
    options.sort(key=lambda option: order.index(section_of(option)))
    if options:
        lines += ["| option | description | default |", "|---|---|---|"]
    for option in options:
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        takes = "" if option.is_flag else f" `{metavar_of(option, context)}`"
        cells = (names + takes, option.help or "", default_of(option))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""] if options else lines


def metavar_of(option: Option, context: click.Context) -> str:
    """Return the metavar of an option, as in ``--help``."""
    record = option.get_help_record(context)
    return record[0].rsplit(" ", 1)[-1] if record else ""


def default_of(option: Option) -> str:
    """Return the default as typed on the command line."""
    value = option.to_info_dict()["default"]
    if value is None or option.is_flag and not option.secondary_opts:
        return ""
    if option.is_flag:
        return f"`{(option.opts if value else option.secondary_opts)[0]}`"
    return " ".join(f"`{one}`" for one in value) if isinstance(value, tuple | list) else f"`{value}`"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
