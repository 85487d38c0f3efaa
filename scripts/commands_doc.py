"""Write docs/commands.md from the commands themselves: every option and its default.

python scripts/commands_doc.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import click

from ipex_lookahead.cli.commands import SECTIONS, Command, section_of
from ipex_lookahead.cli.main import cli
from ipex_lookahead.cli.options import Option

FILE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
HEAD = """\
# Commands

`ipex-lookahead COMMAND --help` shows a command's common options, `--help-all` all of them.

This page is made by `scripts/commands_doc.py` from the commands; do not edit it.

- Environment variables set options: `IPEX_LOOKAHEAD_BENCH_DECODE_MAX_NEW_TOKENS=64` sets
  `--max-new-tokens` of `bench decode`, and `1` sets an option without a value. The command line takes precedence.
- `--config FILE|NAME` of every command reads options from a YAML file or a packaged [preset](../configs/README.md);
  command line and environment override it. `ipex-lookahead info --config FILE` shows the effective values.
- `--debug`, or `IPEX_LOOKAHEAD_DEBUG=1`, shows the traceback of an error.
- Exit status: 0 success, 1 error, 2 wrong usage (nothing was loaded), 130 interrupted.

```yaml
model: default            # for every command that has the option
bench decode:             # for that command alone
  repeat: 5
```
"""
SHARED = 3
"""Number of commands from which an option is documented once, in the section "Shared options"."""


def text() -> str:
    """Return the file."""
    commands = [*leaves(cli, ())]
    counts = Counter(key for path, command in commands for key, _ in rows(path, command))
    shared = {key: None for path, command in commands for key, _ in rows(path, command) if counts[key] >= SHARED}
    lines = [HEAD, "## Shared options", "", *table(dict.fromkeys((option, text, "") for option, text in shared)), ""]
    for path, command in commands:
        lines += described(path, command, {*shared})
    return "\n".join(lines)


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


def described(path: tuple[str, ...], command: click.Command, shared: AbstractSet[Key]) -> list[str]:
    """Return the heading, description, examples and options of a command."""
    context = click.Context(command, info_name=" ".join(["ipex-lookahead", *path]))
    usage = " ".join([context.info_name or "", *command.collect_usage_pieces(context)])
    lines = [f"## {' '.join(path)}", "", f"`{usage}`", "", " ".join((command.help or "").split()), ""]
    if isinstance(command, Command) and command.examples:
        lines += ["```sh", *command.examples, "```", ""]
    if path == ("run",):
        return [*lines, "Options: those of `chat`, and `--prompt`, `-p` `TEXT`.", ""]
    found = rows(path, command)
    common = [f"{key[0].split(' ')[0].rstrip(',')}" + (f" ({default})" if default else "")
              for key, default in found if key in shared]  # fmt: skip
    if common:
        lines += [f"Shared options: {', '.join(common)}.", ""]
    own = [(*key, default) for key, default in found if key not in shared]
    return [*lines, *table(own), ""] if own else lines


Key = tuple[str, str]
"""An option as in the table: its names with the metavar, and its description."""


def rows(path: tuple[str, ...], command: click.Command) -> list[tuple[Key, str]]:
    """Return the options of a command in the order of ``--help-all``, with their defaults, without ``--config``."""
    context = click.Context(command, info_name=" ".join(["ipex-lookahead", *path]))
    order = [*SECTIONS, "Options"]
    options = [option for option in command.params if isinstance(option, Option) and option.name != "config"]
    options.sort(key=lambda option: order.index(section_of(option)))
    found = []
    for option in options:
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        takes = "" if option.is_flag else f" `{metavar_of(option, context)}`"
        found.append(((names + takes, option.help or ""), default_of(option)))
    return found


def table(cells: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return a Markdown table of options; without defaults it has two columns."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    width = 3 if any(row[2] for row in lines) else 2
    head = ["option", "description", "default"][:width]
    return ["| " + " | ".join(row[:width]) + " |" for row in (head, ["---"] * width, *lines)]


def metavar_of(option: Option, context: click.Context) -> str:
    """Return the metavar of an option, as in ``--help``."""
    record = option.get_help_record(context)
    return record[0].rsplit(" ", 1)[-1] if record else ""


def default_of(option: Option) -> str:
    """Return the default as typed on the command line."""
    value = option.to_info_dict()["default"]
    if value in (None, "") or (option.is_flag and not option.secondary_opts):
        return ""
    if option.is_flag:
        return f"`{(option.opts if value else option.secondary_opts)[0]}`"
    return " ".join(f"`{one}`" for one in value) if isinstance(value, tuple | list) else f"`{value}`"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
