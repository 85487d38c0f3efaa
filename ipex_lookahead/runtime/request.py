"""A request for one answer: the record that goes from an API's body to the scheduler's slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ipex_lookahead.config import LookaheadConfig, is_memory
from ipex_lookahead.decoding.events import OnEvent, TokenLogprob
from ipex_lookahead.decoding.sampling import Processor
from ipex_lookahead.decoding.sequence import DraftFilter, Force
from ipex_lookahead.decoding.sequence_group import SequenceGroup, prefix_key
from ipex_lookahead.engines.api import AppliedAdapter
from ipex_lookahead.engines.images import PromptImage, row_keys
from ipex_lookahead.runtime.drafting import Drafting
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.stop_texts import Stop


@dataclass(slots=True, eq=False)
class Request:
    """A request for one answer.

    The caller sets the first block of attributes, and the server those about text. ``Service.submit`` copies the
    request and sets the last block in its copy.

    Attributes:
        prompt: token ids.
        params: how tokens are chosen.
        adapter: a low-rank adapter of the model, from ``Runtime.adapters.applied``; None: the base model.
        images: the images of the prompt, ascending, where it has the model's placeholder id for each of their rows.
        lookahead: how to draft, as for :func:`~ipex_lookahead.runtime.lookahead.resolve_lookahead`; it never changes
            the answer.
        adaptive: False always drafts the largest allowed number of tokens.
        processors: change the logits after the model's own processors; called once per emitted position, in order.
        draft_filter: cuts a draft to what may follow, before it costs a row.
        force: see ``decoding.sequence.Sequence``; it takes its turn before ``stop`` sees the token.
        stop: called after each emitted token, in order, with the tokens so far; True ends the answer. It is checked in
            addition to the stops of ``params``.
        prediction: ids that the answer may resemble: one more source of drafts, named "prediction".
        key: tenant of the stores and of the prefix cache; one tenant cannot observe another, not even by latency. Only
            letters and digits: a store file has one file per key, with the key behind its name.
        salt: separates users of one key in the same way.
        sequence: number of the answer in the sampling noise, for several answers with one seed, 0 to 2**32 - 1.
        top_logprobs: number of most likely tokens, 0 to 64, that each token's log probability comes with; None reports
            no log probabilities.
        prompt_logprobs: the same for the prompt's tokens; the whole prompt is computed for it, also on a cache hit.
        answered: number of tokens at the end of the prompt that begin the answer, because it continues an earlier one.
            Penalties and the grammar count from the answer's first token, so the continuation is the rest of the answer
            that one request would have made; ``params`` limit the new tokens.
        turns: positions in the prompt where the user's messages begin; None finds them by the chat template. Models
            with recurrent layers store their state there for later prompts. The answer does not depend on it.

        reader: finds thoughts and tool calls in the answer's text, and may end it with the first call; a
            ``conversation.reader.Reader``, or None for an answer without either.
        think_budget: most tokens of the answer that may be thought; None: no limit. See ``conversation.answer``.
        think_ending: token ids that end the thought at the budget.
        markers, silent_too: see ``conversation.text.AnswerText``.
        echo: whether the reported answer begins with the ``answered`` tokens.
        grammar: a ``conversation.grammar.Grammar`` of the answer; None for any text.
        constraint: compiles the grammar, called with ``Grammars``; None where there is nothing to compile.

        number: the service's number of the request.
        on_event: receives the request's events; the last one after ``cancel`` is "finish" with reason "cancelled".
        cancel: ends the request within a step, from any thread.
        group: the request in the scheduler, a group of one sequence.
        drafting: what drafts for it.
        store: name of the store that it drafts from and adds to, or None.
        prompt_found: log probabilities of the prompt's tokens until they are reported.
        failure: exception of reporting its events; the request ends with it.
    """

    prompt: Sequence[int]
    params: SamplingParams = SamplingParams(0)
    adapter: AppliedAdapter | None = None
    images: Sequence[PromptImage] = ()
    lookahead: int | str | LookaheadConfig | None = None
    adaptive: bool | None = None
    processors: Sequence[Processor] = ()
    draft_filter: DraftFilter | None = None
    force: Force | None = None
    stop: Stop | None = None
    prediction: Sequence[int] = ()
    key: str = ""
    salt: str = ""
    sequence: int = 0
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    turns: Sequence[int] | None = None
    answered: int = 0

    reader: Any = None
    think_budget: int | None = None
    think_ending: Sequence[int] = ()
    markers: Mapping[int, str] | None = None
    silent_too: bool = False
    echo: bool = False
    grammar: Any = None
    constraint: Any = None

    number: int = field(init=False, default=0)
    on_event: OnEvent = field(init=False)
    cancel: Callable[[], None] = field(init=False)
    group: SequenceGroup = field(init=False)
    drafting: Drafting = field(init=False)
    store: str | None = field(init=False, default=None)
    prompt_found: list[TokenLogprob | None] | None = field(init=False, default=None)
    failure: Exception | None = field(init=False, default=None)

    @property
    def tenant(self) -> str:
        """Owner of its texts: one tenant cannot observe another."""
        return f"{self.key}#{self.salt}" if self.salt else self.key

    @property
    def keys(self) -> list[int]:
        """The prompt by which caches find it: its ids, and numbers of the content of images at their rows."""
        found: list[int] = row_keys(np.asarray(self.prompt, np.int64), self.images).tolist()
        return found

    @property
    def prefix_key(self) -> str:
        """Key of the prefix cache: its tenant, and the adapter with its scale."""
        return prefix_key(self.tenant, self.adapter)


def store_of(name: str | None, applied: AppliedAdapter | None) -> str | None:
    """Return the name of the store of earlier answers: each adapter and scale has its own."""
    if name is None or applied is None:
        return name
    return f"{name}:{applied.key}" if is_memory(name) else f"{name}.{applied.key}"
