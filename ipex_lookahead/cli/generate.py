"""``ipex-lookahead generate``: answer one prompt, or each prompt of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.adapters import AdapterOptions
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.form import FormOptions, constrained, constrained_text
from ipex_lookahead.cli.loading import TextModelOptions, fetch_vision_part, template_note
from ipex_lookahead.cli.lookahead import Lookahead
from ipex_lookahead.cli.names import in_options
from ipex_lookahead.cli.options import json_alone_option, option
from ipex_lookahead.cli.prompts import read_prompt, read_prompts
from ipex_lookahead.cli.sampling import Sampling
from ipex_lookahead.cli.tables import print_line
from ipex_lookahead.cli.thinking import ThinkOptions, ThoughtLimit, think_variables
from ipex_lookahead.cli.writing import check_output, written
from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from ipex_lookahead.cli.stream import Answer
    from ipex_lookahead.conversation.image_parts import Picture
    from ipex_lookahead.conversation.model import ChatModel
    from ipex_lookahead.runtime.text_model import TextModel


@dataclass
class Text:
    """The prompt, and the length of the answer."""

    prompt_text: str | None = option("The prompt, instead of PROMPT.", None, "-p", "--prompt", metavar="TEXT")
    prompt_file: str | None = option("Read the prompt from this file.", None, "-f", type=click.Path(), metavar="FILE")
    prompts: str | None = option(
        'Answer each {"id": ..., "prompt": ...} of a file, one line of JSON per answer.',
        type=click.Path(),
        metavar="FILE.jsonl",
    )
    max_new_tokens: int = option("Maximum number of tokens per answer.", 256, "-n", low=0)
    stop: tuple[str, ...] = option("Stop at this text. Repeatable.", (), metavar="TEXT")
    system: str | None = option("System prompt.", metavar="TEXT")
    raw: bool = option("Continue the prompt without the chat template.", False)
    image: tuple[str, ...] = option("Image file before the prompt. Repeatable.", (), type=click.Path(), metavar="FILE")

    def check(self, prompt: str | None, thinking: ThinkOptions) -> str | None:
        """Return the prompt of the command line. Raise UsageError for options that exclude each other."""
        if self.raw and self.system is not None:
            raise click.UsageError("--system needs the chat template, which --raw leaves out")
        if self.raw and self.image:
            raise click.UsageError("--image needs the chat template, which --raw leaves out")
        if self.raw:
            thinking.without_template()
        if prompt is not None and self.prompt_text is not None:
            raise click.UsageError("PROMPT and --prompt are both given; leave one of them out")
        given = self.prompt_text if prompt is None else prompt
        if self.prompts is not None and (given is not None or self.prompt_file is not None):
            raise click.UsageError("--prompts has the prompts; leave out PROMPT and --prompt-file")
        return given

    def read(self, prompt: str | None) -> list[tuple[str, str]]:
        """Return (id, prompt) of each line of --prompts, or of the one prompt."""
        if self.prompts is None:
            return [("", read_prompt(prompt, self.prompt_file))]
        return [(found.id, found.text) for found in read_prompts([self.prompts])]

    def encode(
        self,
        loaded: TextModel,
        text: str,
        think: bool | None = None,
        rewrite: Callable[[str], str] | None = None,
    ) -> list[int]:
        """Return the token ids of a prompt."""
        if self.raw:
            return loaded.tokenizer.encode(text)
        from ipex_lookahead.tokenization.prompts import conversation_prompt

        variables = think_variables(think)
        return conversation_prompt(loaded.tokenizer, loaded.config, self.messages(text), variables, rewrite)

    def messages(self, text: str) -> list[dict[str, Any]]:
        """Return the messages of a prompt."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        parts = [*({"type": "image"} for _ in self.image), {"type": "text", "text": text}]
        return [*system, {"role": "user", "content": parts if self.image else text}]


@dataclass
class Output:
    """The output of the answer and of statistics."""

    output: str | None = option(
        "Write to this file instead of standard output.", None, "-o", type=click.Path(), metavar="FILE"
    )
    overwrite: bool = option("Replace an existing --output file.", False)
    as_json: bool = json_alone_option
    quiet: bool = option("Print only the answer: no progress, no statistics.", False, "-q")
    verbose: bool = option("Print more statistics: drafts by source and position, time per step.", False, "-v")
    show_accepted: bool = option("Color tokens accepted from a draft; the answer is printed at the end.", False)

    def check(self, *, many: bool) -> None:
        """Raise UsageError for options that exclude each other, or a file that cannot be written."""
        if self.show_accepted and (self.as_json or many):
            raise click.UsageError("--show-accepted and JSON output exclude each other; leave one of them out")
        if self.show_accepted and self.output is not None:
            raise click.UsageError("--show-accepted and --output exclude each other; leave one of them out")
        check_output(self.output, overwrite=self.overwrite)


@command(
    'ipex-lookahead generate "Why is the sky blue?"',
    'cat notes.txt | ipex-lookahead generate "Summarize this:"',
    'ipex-lookahead generate -m path/to/model --lookahead auto --show-accepted "Hi"',
)
@click.argument("prompt", required=False)
def generate(
    prompt: str | None,
    loading: TextModelOptions,
    ahead: Lookahead,
    text: Text,
    thinking: ThinkOptions,
    shape: FormOptions,
    sampling: Sampling,
    adapters: AdapterOptions,
    out: Output,
) -> None:
    """Answer PROMPT. Piped input is appended to it; '-' or no PROMPT reads piped input only."""
    sampling.check()
    ahead.check()
    prompt = text.check(prompt, thinking)
    out.check(many=text.prompts is not None)
    if len(adapters.check()) > 1:
        raise click.UsageError("--lora: generate applies one adapter; give one")
    prompts, form = text.read(prompt), shape.read()
    loaded = loading.load_text(progress=not out.quiet)
    adapter = next(iter(adapters.load(loaded, progress=not out.quiet)), None)
    sampling.check(loaded)
    thinking.check(loaded)
    if not text.raw and not out.quiet and (note := template_note(loaded)):
        click.echo(note, err=True)
    thoughts = ThoughtLimit(loaded, thinking.think_budget, thinking.think_sentence)
    params, drafting = sampling.params(text.max_new_tokens, text.stop), ahead.arguments()
    if adapter is not None:
        drafting["adapter"] = loaded.runtime.adapters.applied(adapter)
    engine = loaded.engine.describe()
    facts = {"model": loading.model, **{key: engine.get(key) for key in ("engine", "low_bit", "isa", "threads")}}
    facts |= {"lookahead": ahead.lookahead, **({} if adapter is None else {"adapter": adapter})}

    from ipex_lookahead.cli.stream import Answer, Painter
    from ipex_lookahead.conversation.model import ChatModel
    from ipex_lookahead.conversation.pictures import Expansion

    with ExitStack() as opened:
        chat = None
        if text.image:
            fetch_vision_part(loaded, loading.model)
        if form is not None or text.image:
            chat = opened.enter_context(closing(ChatModel(loaded)))
        files = _image_files(chat, text.image)

        def answering(prompt: str, write: Callable[[str], None]) -> tuple[Answer, Callable[..., object]]:
            """Encode a prompt; return its empty answer, and a function that generates it."""
            more: dict[str, Any] = {}
            if form is None or chat is None:
                expansion = Expansion(chat, files) if chat is not None and files else None
                ids = text.encode(loaded, prompt, thinking.think, None if expansion is None else expansion.text)
                if expansion is not None:
                    ids, more["images"] = expansion.prompt(ids)
                more |= {**drafting, **thoughts.arguments(ids)}
                return Answer(loaded.tokenizer, write), partial(loaded.generate, ids, params, **more)
            if text.raw:
                ids, constrain = constrained_text(chat, form, prompt)
            else:
                messages, variables = text.messages(prompt), think_variables(thinking.think)
                ids, more["images"], constrain = constrained(chat, form, messages, variables, files)
            more |= {**drafting, **thoughts.arguments(ids)}
            generate = partial(loaded.generate, ids, params, constrain=constrain, **more)
            return Answer(loaded.tokenizer, write, lambda thought: None, ids), generate

        write = opened.enter_context(nullcontext(Painter().write) if out.output is None else written(out.output))
        if text.prompts is not None:
            _answer_many(loaded, prompts, answering, facts, write, shown=not out.quiet)
            return
        silent = out.as_json or out.show_accepted
        answer, generating = answering(prompts[0][1], (lambda part: None) if silent else write)
        _answer(loaded, answer, generating, out, write)
        if out.as_json:
            write(json.dumps({**facts, **_answer_facts(loaded, answer)}) + "\n")
    if not out.quiet and not out.as_json:
        from ipex_lookahead.cli.report import ending, is_loop, print_details, stats_line

        loop = is_loop(loaded.stats, answer.ids)
        print_line(stats_line(loaded.stats, loop=loop, verbose=out.verbose))
        limit = f"--max-new-tokens {text.max_new_tokens}"
        for line in ending(loaded.stats, answer.ids, limit=limit, setting=lambda name: f"--{name.replace('_', '-')} "):
            print_line(line)
        if out.verbose:
            print_details(loaded.stats)


def _image_files(chat: ChatModel | None, paths: Sequence[str]) -> list[Picture]:
    """Return the images of files. Raises InputError for a model that takes none."""
    from ipex_lookahead.conversation.image_parts import Picture
    from ipex_lookahead.conversation.pictures import image_file

    if chat is None or not paths:
        return []
    chat.check_images()
    return [Picture(image_file(path, "--image"), place=f"--image {path[:100]}") for path in paths]


def _answer(
    loaded: TextModel, answer: Answer, generate: Callable[..., object], out: Output, write: Callable[[str], None]
) -> None:
    """Generate and print one answer; with --show-accepted it is printed at the end."""
    from ipex_lookahead.cli.interrupt import ends_at_once
    from ipex_lookahead.cli.progress import PromptBar

    bar = PromptBar(shown=not out.quiet)
    try:
        with ends_at_once(bar.close) as restore:

            def put(token: int) -> None:
                if not answer.ids:
                    restore()
                answer.put(token)

            generate(on_token=put, on_prefill=bar.update)
    finally:
        bar.close()
        answer.end()
        if out.show_accepted:
            from ipex_lookahead.cli.stream import print_accepted

            print_accepted(loaded.tokenizer, answer.ids, loaded.stats.origins())
        elif not out.as_json and (answer.text or loaded.stats.finish_reasons):  # not after an early error
            write("\n")


def _answer_many(
    loaded: TextModel,
    prompts: list[tuple[str, str]],
    answering: Callable[[str, Callable[[str], None]], tuple[Answer, Callable[..., object]]],
    facts: dict[str, Any],
    write: Callable[[str], None],
    *,
    shown: bool,
) -> None:
    """Write one line of JSON for each prompt, with the answer or an error. Exit with status 1 after an error."""
    from ipex_lookahead.cli.progress import progress_bar

    failed = 0
    with progress_bar(len(prompts), "answering") if shown else nullcontext(lambda: None) as advance:
        for name, text in prompts:
            try:
                answer, generate = answering(text, lambda part: None)
                generate(on_token=answer.put)
                answer.end()
                found = {**facts, **_answer_facts(loaded, answer)}
            except LookaheadError as error:
                failed += 1
                found = {"error": in_options(error)[0]}
            write(json.dumps({"id": name, **found}) + "\n")
            advance()
    if failed:
        click.echo(f"error: {failed} of {counted(len(prompts), 'prompt')} failed; the output has the reasons", err=True)
        raise click.exceptions.Exit(1)


def _answer_facts(loaded: TextModel, answer: Answer) -> dict[str, Any]:
    from ipex_lookahead.cli.report import is_loop, stats_json

    stats = loaded.stats
    facts = {"text": answer.text, "token_ids": answer.ids, "finish_reason": stats.finish_reasons[0]}
    return {**facts, "repeats_itself": is_loop(stats, answer.ids), **stats_json(stats)}
