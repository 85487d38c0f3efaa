"""The classes of all commands: help in sections, lazily imported groups, suggestions for misspelled names."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from ipex_lookahead.cli.lookahead import choose_strategy
from ipex_lookahead.cli.names import NO_CONTEXT_OPTION, THEIR_COMMANDS, THEIR_OPTIONS
from ipex_lookahead.cli.options import Option, with_options
from ipex_lookahead.cli.refusals import refuse
from ipex_lookahead.cli.settings import CONFIG, use_config
from ipex_lookahead.cli.types import Refused, nearest
from ipex_lookahead.errors import InputError

SECTIONS = {
    "Model": "model shape low_bit low_bits group_size head_low_bit mixed_precision kv_cache draft_model "
    "draft_low_bit drafter draft_vocab drafter_low_bit".split(),
    "Text": "prompt_text prompt_file prompts given limit text tokens max_new_tokens stop system raw think think_budget "
    "think_sentence json_schema grammar".split(),
    "Sampling": "greedy seeds temperature top_k top_p min_p repetition_penalty presence_penalty "
    "frequency_penalty seed".split(),
    "Lookahead": "lookahead strategy mode draft_tokens spread budget no_adaptive adaptive store window ngram "
    "guesses draft_min_prob".split(),
    "Machine": "engine engines device threads deterministic gpu_layers cpu_moe n_cpu_moe".split(),
    "Server": "host port api_key_file admin_key_file allowed_hosts origins tls_cert tls_key names slots queue "
    "running_per_key queued_per_key cache_memory cache_dir cache_disk max_context drain_seconds "
    "strict_fields strict_model slot_save_path no_page models models_dir models_memory idle_unload".split(),
}
"""Section of ``--help`` -> parameter names of its options; all others are in the last section, "Options"."""
MIN_FOR_SECTIONS = 12
"""Commands with at most this number of options have no sections, and show all of them in ``--help``."""
RARE = frozenset(
    "kv_cache engine device gpu_layers cpu_moe n_cpu_moe deterministic draft_model draft_low_bit drafter draft_vocab "
    "special_tokens_in_content strategy no_adaptive store window ngram guesses draft_min_prob prompts stop raw "
    "grammar think_budget think_sentence top_k min_p repetition_penalty presence_penalty frequency_penalty output "
    "overwrite verbose show_accepted history allowed_hosts origins tls_cert tls_key queue running_per_key "
    "queued_per_key drain_seconds strict_fields strict_model slot_save_path no_page config".split()
)
"""Parameters of options that only ``--help-all`` shows."""
ALL = "ipex_lookahead.help_all"
"""Key of ``Context.meta``: whether ``--help-all`` was given."""


class Command(click.Command):
    """A command with sections and examples in its help, which checks its options together before it runs.

    ``--help`` shows the common options, ``--help-all`` all of them.

    Args:
        examples: Command lines for the help and docs/commands.md. A test runs them.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = examples
        text = "Read options from a YAML file or a preset; command line and environment override it."
        kind: Any = {"type": click.Path(), "metavar": "FILE|NAME", "help": text, "is_eager": True}
        self.params.append(Option(["--config"], expose_value=False, callback=use_config, **kind))
        self.allow_extra_args = True  # they are refused below, with a hint

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with ``--help-all`` if ``--help`` leaves any out."""
        found = super().get_params(ctx)
        if self._shortens() and not self.no_args_is_help:
            text = "Show all options and exit."
            more: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "help": text}
            found.append(click.Option(["--help-all"], callback=_print_all, **more))
        return found

    def _shortens(self) -> bool:
        """Return True if ``--help`` leaves options out."""
        names = [param.name for param in self.params if isinstance(param, click.Option)]
        return len(names) > MIN_FOR_SECTIONS and not RARE.isdisjoint(names)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = list(args)  # the parser empties args
        try:
            left = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _no_such_option(ctx, error, typed) from None
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # for the hint; click's parser does not set it
            if (
                isinstance(error, click.BadParameter)
                and error.param is not None
                and ctx.get_parameter_source(error.param.name or "") is ParameterSource.DEFAULT_MAP
            ):
                message = f"{error.message} (from {ctx.meta[CONFIG][0]})"
                raise click.BadParameter(message, error.ctx, error.param, error.param_hint) from None
            raise
        if not ctx.resilient_parsing:  # not for shell completion
            if left:
                raise unexpected(ctx, left)
            choose_strategy(ctx)
            refuse(ctx)
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        hidden = RARE if self._shortens() and not ctx.meta.get(ALL) else ()
        found: dict[str, list[tuple[str, str]]] = {section: [] for section in (*SECTIONS, "Options")}
        for option in options:
            record = None if option.name in hidden else option.get_help_record(ctx)
            if record is not None:
                found[section_of(option) if len(options) > MIN_FOR_SECTIONS else "Options"].append(record)
        for section, records in found.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


def _print_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _no_such_option(ctx: click.Context, error: click.NoSuchOption, typed: Sequence[str]) -> Refused:
    """Return the error for an option that a command does not have, with the nearest one, or other programs' name."""
    whole = (word.partition("=")[0] for word in typed)  # of "-sys" click names "-s"
    name = next((word for word in whole if word in THEIR_OPTIONS and word.startswith(error.option_name)), "")
    name = name or error.option_name
    known = [flag for param in ctx.command.get_params(ctx) for flag in (*param.opts, *param.secondary_opts)]
    near = THEIR_OPTIONS.get(name) or (nearest(name, known) if name.startswith("--") else None)
    hint = f"did you mean {near}?" if near in known else ""
    if near == "--max-context" and near not in known:
        hint = NO_CONTEXT_OPTION
    return Refused(f"unknown option {name!r}", hint=hint)


def unexpected(ctx: click.Context, extra: Sequence[str]) -> Refused:
    """Return the error for arguments that a command does not take, with the command line that was meant."""
    program, command = (ctx.find_root().info_name or "", ctx.info_name or "")
    if "prompt" in ctx.params:
        words = [*([ctx.params["prompt"]] if ctx.params["prompt"] else []), *extra]
        if command != "run" and len(words) == 2 and _is_model(words[0]):
            hint = f"{program} {command} --model {words[0]} {double_quoted(words[1])}"
            return Refused("the prompt must be one argument, got 2", hint=hint)
        if words[0] in ("on", "off") and ctx.params.get("think") is not None:
            meant = "--think" if words[0] == "on" else "--no-think"
            return Refused(f"--think takes no value, got {words[0]!r}", hint=f"write {meant} alone")
        before = f" {ctx.params['model']}" if command == "run" else ""
        hint = f"quote the prompt: {program} {command}{before} {double_quoted(' '.join(words))}"
        return Refused(f"the prompt must be one argument, got {len(words)}", hint=hint)
    if command == "chat":
        text = " ".join(extra)
        named = ctx.get_parameter_source("model") is ParameterSource.COMMANDLINE
        before = f"--model {ctx.params['model']} " if named else ""
        meant = f"run {text}" if _is_model(text) else f"generate {before}{double_quoted(text)}"
        return Refused(f"chat takes no argument, got {text!r}", hint=f"{program} {meant}")
    what = "argument" if len(extra) == 1 else "arguments"
    hint = f"{ctx.command_path} --help"
    if "--model" in {flag for param in ctx.command.params for flag in param.opts} and _is_model(extra[0]):
        hint = f"{ctx.command_path} --model {extra[0]}"
    return Refused(f"unexpected {what} {' '.join(extra)!r}", hint=hint)


def double_quoted(text: str) -> str:
    """Return a text in double quotes, as a shell reads it."""
    return '"' + re.sub(r'(["\\\\$`])', r"\\\1", text) + '"'


def _is_model(text: str) -> bool:
    from ipex_lookahead.hub import parse_name

    try:
        parse_name(text)
    except InputError:
        return False
    return True


def section_of(option: click.Option) -> str:
    """Return the section of ``--help`` for an option."""
    return next((section for section, names in SECTIONS.items() if option.name in names), "Options")


def command(*examples: str, name: str | None = None) -> Callable[[Callable[..., Any]], Command]:
    """Decorate a function as a :class:`Command` with the options of :func:`with_options`."""
    made = click.command(name, cls=Command, examples=examples)
    return lambda function: made(with_options(function))


class LazyGroup(click.Group):
    """A group that imports the module of a command when that command is used, so that ``--help`` stays fast.

    Args:
        lines: Command -> its line in ``--help``.
        module: Module of the commands, with "{}" for the name of the command (_ for -); it has an object of that name.
        modules: Command -> its module, for commands that are in other modules.
    """

    def __init__(
        self,
        *args: Any,
        lines: Mapping[str, str],
        module: str,
        modules: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.lines, self.module, self.modules = lines, module, modules or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Treat no arguments and ``help`` as ``--help``, and ``help COMMAND`` as ``COMMAND --help``."""
        if not args:
            args = ["--help"]
        elif args[0] == "help":
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.lines and not args[0].startswith("-") and not ctx.resilient_parsing:
            near, path = THEIR_COMMANDS.get(args[0]) or nearest(args[0], self.lines), ctx.command_path
            hint = f"did you mean {path} {near}?" if near in self.lines else f"{path} --help"
            raise Refused(f"unknown command {args[0]!r}: choose one of {', '.join(self.lines)}", hint=hint)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lines)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.lines:
            return None
        attribute = name.replace("-", "_")
        module = self.modules.get(name, self.module.format(attribute))
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lines.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=line) for name, line in self.lines.items() if name.startswith(incomplete)]
