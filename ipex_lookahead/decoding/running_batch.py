"""The decoding sequences: their drafts, and the batch of a forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.prefix_cache import PrefixCache
from ipex_lookahead.decoding.sequence import NO_DRAFT, DraftFilter
from ipex_lookahead.decoding.sequence import Sequence as TokenSequence
from ipex_lookahead.decoding.sequence_group import PrefillChunk, SequenceGroup
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.engines.api import AppliedAdapter, Batch, Engine, OutputRequest, TakesImages
from ipex_lookahead.engines.prefill import image_inputs, settled_rows
from ipex_lookahead.errors import InputError

LOGITS = OutputRequest(logits=True)


class DraftBatch:
    """Groups with one controller, which chooses the rows of all their drafts together.

    Attributes:
        live: their sequences.
        drafts: this step's draft of each of ``live``; None = there are none.
        drafting: whether any sequence has a proposer.
        idle: whether the controller skips this step.
        of_one: whether there is a single group.

    ``barred`` is an id that is never drafted: the model's placeholder for rows of images.
    """

    def __init__(self, groups: Sequence[SequenceGroup], controller: Controller, barred: int = -1) -> None:
        self.groups = groups
        self._barred = barred
        self.controller = controller
        self.live = [sequence for group in groups for sequence in group.live]
        self.numbers = [sequence.index for sequence in self.live]
        self.drafting = any(sequence.proposer is not None for sequence in self.live)
        self.drafts: Sequence[Draft] | None = None
        self.idle = False
        self.of_one = len(groups) == 1

    def propose(self, engine: Engine, other_rows: int, fail: Callable[[SequenceGroup, Exception], None]) -> int:
        """Draft for the sequences, cut to the length that the controller chooses; return the number of rows.

        A draft ends before the sequence's limit: the bonus token needs a place too.
        """
        self.drafts = None
        controller = self.controller
        self.idle = controller.idle()
        if self.idle:
            return 0
        drafts: list[Draft] = []
        rows, live = 0, len(self.live) + other_rows
        for sequence in self.live:
            draft = NO_DRAFT
            proposer = sequence.proposer
            if proposer is not None:
                budget = min(controller.budget(live), sequence.limit - sequence.length - 1)
                sequence.proposed = budget > 0
                if budget > 0:
                    try:
                        for outcome in sequence.outcomes():
                            proposer.observe(outcome)
                        draft = proposer.propose(budget)
                        if self._barred >= 0 and self._barred in draft.tokens:
                            draft = draft.without(self._barred)
                        if sequence.draft_filter is not None and draft.tokens:
                            draft = _filtered(draft, sequence.draft_filter, sequence)
                        count = len(draft.tokens)
                        if count > budget or not engine.supports_tree:
                            draft = _checked(draft, proposer, budget, engine)
                        rows += count
                    except Exception as error:
                        fail(self._group_of(sequence), error)
                        return 0
            drafts.append(draft)
        if not rows:
            return 0
        try:
            self.drafts = controller.select(self.numbers, drafts, other_rows)
        except Exception as error:
            self._fail_of(drafts, error, fail)
            return 0
        if len(drafts) == 1:
            return len(self.drafts[0].tokens)
        return sum([len(draft.tokens) for draft in self.drafts])

    def fit(self, memory: PrefixCache, fail: Callable[[SequenceGroup, Exception], None]) -> None:
        """Cut the drafts to the free memory."""
        fitted: list[Draft] = []
        for sequence, draft in zip(self.live, self.drafts or (), strict=True):
            try:
                fitted.append(draft.first(memory.extend_to(sequence.pages, sequence.length, len(draft))))
            except Exception as error:
                fail(self._group_of(sequence), error)
                fitted.append(NO_DRAFT)
        self.drafts = fitted

    def _group_of(self, sequence: TokenSequence) -> SequenceGroup:
        return next(group for group in self.groups if sequence in group.live)

    def _fail_of(
        self, drafts: Sequence[Draft], error: Exception, fail: Callable[[SequenceGroup, Exception], None]
    ) -> None:
        """Fail the groups with a draft that the controller rejects; all groups, if it accepts each draft alone."""
        found: dict[SequenceGroup, Exception] = {}
        for sequence, draft in zip(self.live, drafts, strict=True):
            try:
                self.controller.select([sequence.index], [draft])
            except Exception as its:
                found[self._group_of(sequence)] = its
        for group in found or self.groups:
            fail(group, found.get(group, error))


class RunningBatch:
    """The decoding sequences, and the parts of a batch that stay the same until one joins or leaves.

    Args:
        groups: the decoding groups.
        engine: the model's engine.

    Attributes:
        draft_batches: the groups by controller.
        live: their sequences, in their order.
        rows: number of rows of the sequences and their drafts in this step.
        drafting: whether any sequence has a proposer.
    """

    def __init__(self, groups: Sequence[SequenceGroup], engine: Engine) -> None:
        by_controller: dict[int, list[SequenceGroup]] = {}
        for group in groups:
            by_controller.setdefault(id(group.controller), []).append(group)
        images = engine.images if isinstance(engine, TakesImages) else None
        barred = -1 if images is None else images.token
        self.draft_batches = [DraftBatch(some, some[0].decided_by, barred) for some in by_controller.values()]
        self.live = [sequence for part in self.draft_batches for sequence in part.live]
        self.drafting = any(part.drafting for part in self.draft_batches)
        self.rows = len(self.live)
        self._engine = engine
        self._caches = [sequence.cache for sequence in self.live]
        self._counts = [1] * len(self.live)
        self._parents = np.full(len(self.live), -1, np.int32)
        self._adapters = adapters_of(self.live)
        offsets = [0 if one.images is None else one.images.offset(len(one.prompt)) for one in self.live]
        self._offsets = tuple(offsets) if any(offsets) else ()
        self._plain = OutputRequest(logits=any(sequence.needs_logits for sequence in self.live))
        self._wants = self._plain
        for sequence in self.live:
            if sequence.proposer is not None:
                self._wants |= sequence.proposer.wants
        if self._wants.hidden:
            self._plain = replace(self._plain, hidden=self._wants.hidden)
        self._observed = True  # whether proposers observe more of a step than its tokens

    def propose(self, memory: PrefixCache | None, fail: Callable[[SequenceGroup, Exception], None]) -> bool:
        """Make drafts; return True if there are any. A proposer that raises ends its group."""
        rows, drafting = 0, False
        for part in self.draft_batches:
            if part.drafting:
                rows += part.propose(self._engine, len(self.live) - len(part.live) + rows, fail)
                drafting = drafting or not part.idle
                if rows and memory is not None and part.drafts is not None:
                    part.fit(memory, fail)
        self._observed = drafting
        self.rows = len(self.live) + rows
        return rows > 0

    def batch(self, drafted: bool, chunks: Sequence[PrefillChunk]) -> Batch:
        """Return the batch of the sequences, their drafts and prompt chunks; sets the chunks' ``answer``."""
        if drafted:
            batch = self._drafted()
        else:
            tokens = np.array([sequence.last for sequence in self.live], np.int32)
            wants = self._wants if self._observed else self._plain
            batch = Batch(self._caches, self._counts, tokens, self._parents, wants, (), self._adapters, self._offsets)
        return _with_chunks(batch, chunks) if chunks else batch

    def rows_by_owner(self, chunks: Sequence[PrefillChunk]) -> Counter[str]:
        """Return the number of rows of a forward by owner."""
        found: Counter[str] = Counter()
        for part in self.draft_batches:
            at = 0
            for group in part.groups:
                end = at + len(group.live)
                found[group.owner] += len(group.live)
                if part.drafts is not None:
                    found[group.owner] += sum(len(draft.tokens) for draft in part.drafts[at:end])
                at = end
        for chunk in chunks:
            found[chunk.group.owner] += chunk.rows
        return found

    def _drafted(self) -> Batch:
        """Return the batch of each sequence's last token and draft."""
        counts: list[int] = []
        tokens: list[int] = []
        parents: list[int] = []
        for part in self.draft_batches:
            drafts = part.drafts
            for number, sequence in enumerate(part.live):
                draft = NO_DRAFT if drafts is None else drafts[number]
                counts.append(1 + len(draft.tokens))
                tokens.append(sequence.last)
                parents.append(-1)
                if draft.tokens:
                    tokens.extend(draft.tokens)
                    parents.extend([parent + 1 for parent in draft.parents])
        rows, links = np.array(tokens, np.int32), np.array(parents, np.int32)
        return Batch(self._caches, counts, rows, links, self._wants, (), self._adapters, self._offsets)


def _filtered(draft: Draft, draft_filter: DraftFilter, sequence: TokenSequence) -> Draft:
    """Return the part of a draft that may follow, without scratch rows, at its share of the price."""
    draft = draft.first(len(draft.tokens) - draft.scratch)
    if not draft.tokens:
        return draft
    found = draft_filter(sequence.prefix(), draft)
    return replace(found, seconds=draft.seconds * len(found) / len(draft)) if draft.seconds else found


def adapters_of(sequences: Sequence[TokenSequence]) -> Sequence[AppliedAdapter | None]:
    """Return the adapters of sequences for a batch; () if there are none."""
    found = [sequence.adapter for sequence in sequences]
    return found if any(found) else ()


def _with_chunks(batch: Batch, chunks: Sequence[PrefillChunk]) -> Batch:
    """Append prompt rows; the last row of each prompt has an output, and all rows of a prompt that is shown."""
    answers = len(batch.tokens)
    caches, counts, want = list(batch.caches), list(batch.counts), list(range(answers))
    settled = [0] * len(counts) + [settled_rows(chunk.rows, last=chunk.cut) for chunk in chunks]
    tokens, parents = [batch.tokens], [batch.parents]
    end, wants = answers, batch.wants
    for chunk in chunks:
        sequence = chunk.sequence
        first = sequence.cache.length
        caches.append(sequence.cache)
        counts.append(chunk.rows)
        tokens.append(sequence.to_read[first : first + chunk.rows])
        parents.append(np.arange(-1, chunk.rows - 1, dtype=np.int32))
        chunk.first = end
        end += chunk.rows
        if hidden := sequence.hidden_layers:
            wants |= OutputRequest(hidden=hidden)
        shown = sequence.shows_prompt
        if shown or (chunk.done and sequence.fresh):
            want.extend(range(end - chunk.rows if shown else end - 1, end))
            chunk.answer = len(want) - 1
            if shown or chunk.group.logits:
                wants |= LOGITS
    answered = replace(wants, rows=np.array(want, np.int32))
    read = adapters_of([chunk.sequence for chunk in chunks])
    adapters: Sequence[AppliedAdapter | None] = ()
    if batch.adapters or read:
        adapters = [*(batch.adapters or [None] * len(batch.counts)), *(read or [None] * len(chunks))]
    parts = [(chunk.sequence.images, chunk.sequence.cache.length, chunk.rows) for chunk in chunks]
    offsets, given = image_inputs(parts, len(batch.counts))
    if offsets or batch.offsets:
        offsets = [*(batch.offsets or [0] * len(batch.counts)), *(offsets or [0] * len(chunks))]
    rows, links = np.concatenate(tokens), np.concatenate(parents)
    return Batch(caches, counts, rows, links, answered, settled, adapters, offsets, given)


def _checked(draft: Draft, proposer: Proposer, budget: int, engine: Engine) -> Draft:
    """Return a draft that the engine can run. Raises InputError for one over the budget, or one that needs trees."""
    if len(draft.tokens) > budget:
        name = type(proposer).__name__
        raise InputError(
            f"{name} proposed {len(draft)} tokens with a budget of {budget}; propose no more than the budget"
        )
    if draft.scratch:
        raise InputError(
            f"this strategy evaluates scratch rows in addition to its draft, for which the {engine.name} engine needs"
            " trees, and this model takes none; use prompt_lookup, suffix, recycling, auto or a draft model"
        )
    return draft.best_chain()
