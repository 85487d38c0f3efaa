"""Answers in a grammar, by llguidance: what a schema forbids is never said, and a draft that leaves it costs no row."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from ipex_lookahead.conversation.compiling import PARSER, Client, GrammarProcess, NotCompiled, RefusedError
from ipex_lookahead.conversation.gbnf import is_lark, lark_of
from ipex_lookahead.conversation.reasons import placed, reason, without_place
from ipex_lookahead.conversation.schema_keys import closed
from ipex_lookahead.conversation.schema_numbers import check_numbers, schemas_of
from ipex_lookahead.conversation.vocabulary import TextVocabulary, control_ids
from ipex_lookahead.decoding.sampling import Ids, Logits, Processor
from ipex_lookahead.decoding.sequence import DraftFilter
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.errors import InputError, LookaheadError, MissingPackageError
from ipex_lookahead.system.extras import installing
from ipex_lookahead.tokenization.text import TextTokenizer

_OPTIONS: Any = {"whitespace_pattern": r"( |\n[ \t]{0,24})?"}
"""White space between two parts of JSON: none, a space, or one line's end and an indentation. A model that would go on
with empty lines or spaces, as small ones do, has to come to the next part."""
_CALL_OPTIONS: Any = {"whitespace_pattern": " ?"}
"""The same in calls: none, or a space."""

MAX_KEPT_BYTES = 64 << 20
"""Of compiled grammars that are kept, as the trial measured them; the latest stay."""
MAX_STEP_SECONDS = 2.0
SECONDS_PER_TOKEN = 0.02
"""Processor time that the tokens of an answer may take in its grammar: on average, and in addition to that at once.

The library bounds the steps of its lexer. In an ambiguous grammar a token takes time by the square of the text's
length.
"""
_SIZE = 256 << 10
"""Bytes of a small grammar, about."""


def inlined(schema: Any, *, in_call: bool = True) -> str:
    """Return a JSON schema as written in a Lark grammar after ``%json``.

    Args:
        schema: the schema, closed as by :func:`closed`.
        in_call: whether it is of a call's arguments, with at most one space between two tokens of JSON.

    Raises InputError as :func:`check_numbers`.
    """
    check_numbers(schema)
    options = _CALL_OPTIONS if in_call else _OPTIONS
    return json.dumps({"x-guidance": options, **({} if schema is True else closed(schema))})


def pattern(regex: str) -> str:
    """Return a pattern as written between the slashes of a Lark grammar."""
    return str(_llguidance().regex_to_lark(regex, ""))


def _llguidance() -> Any:
    """Return the library, which is part of an extra. Raises MissingPackageError."""
    try:
        import llguidance
    except ModuleNotFoundError:
        said = "a schema, a grammar or tools need llguidance, which is not installed"
        raise MissingPackageError(said, hint=installing("serve")) from None
    return llguidance


class Grammars:
    """Compiles grammars for one model. For any number of threads.

    Args:
        compiler: the model's.
        client: who wants them.
    """

    def __init__(self, compiler: Compiler, client: Client | None = None) -> None:
        self._compiler = compiler
        self._client = client or Client()

    def of(self, client: Client) -> Grammars:
        """The same for another client."""
        return Grammars(self._compiler, client)

    def json_schema(self, schema: Any) -> Grammar:
        """JSON that the schema allows. Raises InputError where it cannot be compiled."""
        schema = {} if schema is True else schema
        check_numbers(schema)
        return self._compile(
            lambda: _llguidance().LLMatcher.grammar_from_json_schema(json.dumps(closed(schema)), overrides=_OPTIONS)
        )

    def lark(self, grammar: str, form: str = "", *, given: bool = False) -> Grammar:
        """What a grammar in llguidance's dialect of Lark allows. Raises InputError as well.

        Args:
            grammar: the grammar.
            form: another one, with names of its own, which the first calls ``@form``.
            given: whether ``form`` is the caller's: in GBNF, unless it is Lark, and errors name the place in it.
        """
        if given and not is_lark(form):
            form, given = self._compiler.lark_of(form), False
        elif given:
            for schema in schemas_of(form):
                check_numbers(schema)
        # Thousands of empty lines take the library long.
        lines = [(at, line) for at, line in enumerate(form.split("\n"), 1) if line.strip()]
        both = [{"lark_grammar": grammar}, {"name": "form", "lark_grammar": "\n".join(line for _, line in lines)}]
        try:
            return self._compile(lambda: json.dumps({"grammars": both if form else both[:1]}))
        except InputError as error:
            said = placed(str(error), [at for at, _ in lines]) if given else without_place(str(error))
            raise type(error)(said, hint=error.hint) from None

    def _compile(self, write: Callable[[], str]) -> Grammar:
        try:
            written = write()
        except (ValueError, RecursionError, TypeError) as error:
            raise InputError(f"the grammar cannot be compiled: {reason(error)}") from None
        return self._compiler.compile(written, self._client)


class Compiler:
    """Compiled grammars of one model, and what makes them: first in another process, then here.

    The latest are kept, each for its owner, and so are the reasons why grammars were refused.

    Args:
        tokenizer: the model's.
        tokens: its tokens' bytes, by id.
        ends: ids that end an answer.

    Raises MissingPackageError if llguidance is not installed.
    """

    def __init__(self, tokenizer: TextTokenizer, tokens: Sequence[bytes], ends: Collection[int]) -> None:
        _llguidance()  # an error here, not one of the process below
        self._tokens = tokens
        self._ends = sorted(ends)
        self._encode = tokenizer.encode_text
        self._encode_all = tokenizer.encode
        self._control = control_ids(tokenizer) | frozenset(ends)
        self._lock = threading.Lock()
        self._made: Any = None
        self._process = GrammarProcess(tokens, self._ends, sorted(self._control))
        self._kept: OrderedDict[tuple[str, bytes], tuple[Grammar | tuple[str, str], int]] = OrderedDict()
        self._kept_bytes = 0

    def warm(self) -> None:
        """Make llguidance's view of the vocabulary now: half a second, in which Python does nothing else."""
        if self._ends:
            self._process.start()
            self._tokenizer()

    def close(self) -> None:
        """End the other process."""
        self._process.close()

    def compile(self, grammar: str, client: Client) -> Grammar:
        """Compile a grammar as ``LLMatcher.grammar_from_...`` writes it.

        Raises:
            InputError: it cannot be compiled, or not within the limits.
            NotCompiled: it is not among those that are kept, and the client does not wait.
            Cancelled: the client left.
        """
        if not self._ends:
            raise InputError("this model has no end token, so its answers cannot follow a grammar")
        text = grammar.encode("utf-8", "surrogatepass")
        key = (client.owner, hashlib.sha256(text).digest())
        found = self._known(key)
        if found is None:
            if not client.waits:
                raise NotCompiled
            size = _SIZE + 8 * len(text)
            try:
                size += self._process.tried(grammar, client)
                found = Grammar(self._matcher(grammar), len(self._tokens), self._ends)
            except RefusedError as error:
                found = str(error), error.hint
            self._keep(key, found, size)
        if isinstance(found, tuple):
            raise RefusedError(found[0], hint=found[1])
        return found

    def lark_of(self, gbnf: str) -> str:
        """A grammar in GBNF as Lark. Raises InputError, which names the line and the column."""
        return lark_of(gbnf, lambda text: self._encode_all(text, add_special_tokens=False), self._ends)

    def _tokenizer(self) -> Any:
        """llguidance's view of the vocabulary, created on first use."""
        with self._lock:
            if self._made is None:
                vocabulary = TextVocabulary(self._tokens, self._ends, self._control, self._encode)
                library = _llguidance()
                wrapper = library.TokenizerWrapper(vocabulary)
                self._made = library.LLTokenizer(wrapper, n_vocab=len(self._tokens), eos_token=self._ends)
            return self._made

    def _matcher(self, grammar: str) -> Any:
        library = _llguidance()
        limits = library.LLParserLimits(**PARSER)
        try:
            matcher = library.LLMatcher(self._tokenizer(), grammar, log_level=0, limits=limits)
        except (ValueError, RecursionError, TypeError) as error:
            raise InputError(f"the grammar cannot be compiled: {reason(error)}") from None
        if matcher.is_error():
            raise RefusedError(f"the grammar cannot be compiled: {reason(matcher.get_error())}")
        return matcher

    def _known(self, key: tuple[str, bytes]) -> Grammar | tuple[str, str] | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def _keep(self, key: tuple[str, bytes], found: Grammar | tuple[str, str], size: int) -> None:
        with self._lock:
            _, before = self._kept.pop(key, (None, 0))
            self._kept[key] = (found, size)
            self._kept_bytes += size - before
            while self._kept_bytes > MAX_KEPT_BYTES:
                _, (_, less) = self._kept.popitem(last=False)
                self._kept_bytes -= less


class Grammar:
    """A compiled grammar; each answer has a state of its own in it."""

    def __init__(self, matcher: Any, size: int, ends: Sequence[int]) -> None:
        self._matcher = matcher
        self._size = size
        self._ends = ends

    def constrain(self, prompt_length: int) -> tuple[Processor, DraftFilter]:
        """What keeps one answer in it: a processor of logits and a filter of drafts."""
        state = _State(self._matcher.deep_copy(), self._size, frozenset(self._ends), prompt_length)
        return state.process, state.filter


_OUTGROWN = ("too many", "Too many", "limit", "too complex", "TooComplex")
"""Words of the errors that llguidance's own limits end in."""


class _State:
    """How far an answer is in its grammar. Both of its methods see the answer's tokens in order."""

    def __init__(self, matcher: Any, size: int, ends: frozenset[int], start: int) -> None:
        self._matcher = matcher
        self._size = size
        self._ends = ends
        self._at = start
        self._seconds = MAX_STEP_SECONDS

    @contextlib.contextmanager
    def _within_time(self) -> Iterator[None]:
        """Take the processor time of what is done from what is left. Raises InputError where none is."""
        began = time.thread_time()
        yield
        self._seconds -= time.thread_time() - began
        if self._seconds < 0:
            raise InputError(
                f"the grammar is too complex to continue: a token may take {1000 * SECONDS_PER_TOKEN:g} ms of processor"
                f" time on average, and this answer has exceeded that by {MAX_STEP_SECONDS:g} s",
                hint="rewrite it without ambiguous rules",
            )

    def _advance(self, ids: Ids) -> None:
        new = ids[self._at :].tolist()
        self._seconds = min(MAX_STEP_SECONDS, self._seconds + SECONDS_PER_TOKEN * len(new))
        for token in new:
            if not self._matcher.consume_token(token):
                raise self._failure()
        self._at = len(ids)

    def _failure(self) -> LookaheadError:
        """Return why the answer cannot continue: the grammar's limits, or an internal error."""
        said = reason(self._matcher.get_error())
        if any(word in said for word in _OUTGROWN):
            return InputError(
                f"the grammar is too complex to continue: {said}", hint="simplify its patterns and lengths"
            )
        return LookaheadError(f"the answer cannot be continued in its grammar: {said}")

    def process(self, ids: Ids, logits: Logits) -> Logits:
        """Forbid what the grammar does."""
        with self._within_time():
            self._advance(ids)
            mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._failure()
        allowed = np.unpackbits(mask, bitorder="little")[: logits.size].view(np.bool_)
        logits[: allowed.size][~allowed] = -np.inf
        logits[allowed.size :] = -np.inf
        return logits

    def filter(self, ids: Ids, draft: Draft) -> Draft:
        """The part of a draft that the grammar allows; scratch rows are left out, for there is nothing to accept."""
        with self._within_time():
            return self._allowed(ids, draft)

    def _allowed(self, ids: Ids, draft: Draft) -> Draft:
        self._advance(ids)
        count = len(draft) - draft.scratch
        if not count or self._matcher.is_stopped():
            return Draft()
        tokens, parents = draft.tokens, draft.parents
        if all(parents[at] == at - 1 for at in range(count)):
            return draft.first(self._matcher.validate_tokens([int(token) for token in tokens[:count]]))
        paths: dict[int, list[int]] = {-1: []}
        for at in range(count):
            before = paths.get(parents[at])
            if before is not None:
                path = [*before, int(tokens[at])]
                if self._matcher.validate_tokens(path) == len(path):
                    paths[at] = path
        kept = [at for at in range(count) if at in paths]
        place = {-1: -1, **{at: number for number, at in enumerate(kept)}}
        return Draft(
            [tokens[at] for at in kept],
            [place[parents[at]] for at in kept],
            0,
            [draft.probs[at] for at in kept] if draft.probs else (),
            [draft.sources[at] for at in kept] if draft.sources else (),
        )
