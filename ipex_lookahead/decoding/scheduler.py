"""Many callers' sequences in the same forwards: parties are submitted, a step moves all of them on, and they leave.

A forward carries the last tokens and the drafts of the sequences that decode, and pieces of prompts. Rows never see
their neighbours, so who shares a forward with whom shows in the times only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter

from ipex_lookahead.decoding.crowd import Crowd, Piece
from ipex_lookahead.decoding.party import DecodingSequence, Party, StepEvent
from ipex_lookahead.decoding.prefix_cache import PAGE, PrefixCache, pages_of
from ipex_lookahead.decoding.rule_price import RulePrice
from ipex_lookahead.decoding.shares import QUANTUM, Shares, by_owner, dispensable
from ipex_lookahead.engines.base import Batch, Engine, StepOutput
from ipex_lookahead.engines.prefill import PREFILL_ROWS
from ipex_lookahead.errors import ContextLengthError, EngineError

DELAY = 4.0
"""Pieces of prompts may make a step of sequences that decode take so many times as long as it would take alone."""
LEAST_PIECE = 8
"""But so many rows of prompts are always read, where any are waiting."""
SHOWN_ROWS = 64
"""Most rows of prompts in a step whose logits are shown: each row takes as many floats as the vocabulary has tokens."""

_NONE: Sequence[Piece] = ()

Time = Callable[[int, int], float]
"""(rows, positions of context) -> what a forward takes, in any unit."""


class Scheduler:
    """Steps over the sequences of many parties. One thread at a time.

    Args:
        engine: where the model runs.
        slots: most parties at a time; None = all. Owners that want more than there are have equal shares of the rows
            (:class:`~ipex_lookahead.decoding.shares.Shares`): whoever has more puts parties back, where ``memory`` is.
        per_owner: most of them of one owner; None = all.
        memory: bounds keys and values, and keeps those of prompts for later ones; then a party has one sequence, whose
            ``committed`` tells its tokens, and caches are made and changed here. None: caches are the sequences' own.
        time: what a forward takes (:class:`~ipex_lookahead.decoding.cost.CostCurve`), for ``DELAY``.
        prefill_rows: most prompt rows in a forward.
        forward: runs a batch in place of ``engine.forward``.

    Attributes:
        steps: forwards so far.
        put_back: how often a party had to give its memory to older ones, or its slot to another owner's.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        slots: int | None = None,
        per_owner: int | None = None,
        memory: PrefixCache | None = None,
        time: Time | None = None,
        prefill_rows: int = PREFILL_ROWS,
        forward: Callable[[Batch], StepOutput] | None = None,
    ) -> None:
        self._engine = engine
        self._forward = engine.forward if forward is None else forward
        self.steps = self.put_back = 0
        self._slots = slots
        self._shares = Shares(slots, per_owner)
        self._memory = memory
        self._time = time
        self._prefill_rows = prefill_rows
        self._parties: dict[int, Party] = {}
        self._waiting: list[Party] = []  # by number
        self._reading: list[Party] = []
        self._decoding: list[Party] = []
        self._crowd = Crowd((), engine)
        self._stale = False  # whether the crowd is another one by now
        self._rules = RulePrice()
        self._sitting_out: frozenset[Party] = frozenset()
        self._events: list[StepEvent] = []
        self._submitted = 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to do, or to tell."""
        return bool(self._parties or self._events)

    @property
    def _running(self) -> list[Party]:
        return [*self._reading, *self._decoding]

    @property
    def running(self) -> int:
        """Parties that read or decode."""
        return len(self._reading) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Parties that wait for a slot or for memory."""
        return len(self._waiting)

    def submit(self, party: Party) -> int:
        """Take a party; returns its ``id``. A later step starts it.

        Raises ContextLengthError where its keys and values would not fit in the memory.
        """
        if self._memory is not None:
            (sequence,) = party.sequences
            if pages_of(sequence.limit) > self._memory.pages:
                raise ContextLengthError(
                    f"{sequence.limit} positions take {pages_of(sequence.limit)} pages of keys and values, and the"
                    f" memory for them has {self._memory.pages}",
                    hint="ask for fewer new tokens, or give the service more cache_memory",
                )
        self._submitted += 1
        party.id = self._submitted
        party.news = self._events
        self._parties[party.id] = party
        self._shares.join(party)
        self._waiting.append(party)
        return party.id

    def cancel(self, party: int) -> None:
        """End a party now, unless it has ended; a party that is ``told`` hears it with the next step's news."""
        found = self._parties.get(party)
        if found is not None:
            found.cancel()
            self._leave(found)

    def step(self) -> Sequence[StepEvent]:
        """One forward: each sequence that decodes emits at least one token, and the next pieces of prompts are read.

        What one party's rules, proposer or rows raise ends that party alone.

        Returns:
            What happened to parties that are ``told``, each one's news in order.
        """
        if self._waiting:
            self._admit()
        if self._memory is not None:
            self._make_room(self._memory)
        sitting_out = self._rules.sitting_out(self._decoding)
        if self._stale or sitting_out != self._sitting_out:
            self._sitting_out = sitting_out
            taking_part = [party for party in self._decoding if party not in sitting_out]
            self._crowd, self._stale = Crowd(taking_part, self._engine), False
        crowd = self._crowd
        drafted, proposing = False, 0.0
        if crowd.drafting:
            began = perf_counter()
            drafted = crowd.propose(self._memory, self._fail)
            proposing = perf_counter() - began
            if self._stale:  # a proposer has failed
                return self._told()
        pieces = self._pieces() if self._reading else _NONE
        if crowd.live or pieces:
            batch = crowd.batch(drafted, pieces)
            asked = perf_counter()
            try:
                output = self._forward(batch)
            except Exception as error:
                self._one_by_one(pieces, error, drafted=drafted)
            else:
                self._took(crowd, pieces, output, proposing, perf_counter() - asked)
        return self._told() if self._events else ()

    # ---- a step's answers --------------------------------------------------------------------------------------------

    def _took(
        self, crowd: Crowd, pieces: Sequence[Piece], output: StepOutput, proposing: float, forward: float
    ) -> None:
        """Hand a forward's answers out."""
        self.steps += 1
        if self._shares.counts:
            self._shares.took(_rows_of(crowd, pieces), self._waiting, self._running)
        if not pieces:
            self._rules.took(forward)
        argmax = output.argmax.tolist()
        first, alone = 0, len(crowd.tables) == 1 and not pieces and not output.shared
        for table in crowd.tables:
            drafts, at, before = table.drafts, 0, first
            for party in table.parties:
                count = len(party.live)
                own = drafts if drafts is None or table.of_one else drafts[at : at + count]
                try:
                    first = party.take(own, argmax, output, first, proposing, forward, table.idle)
                except Exception as error:
                    first += count if own is None else count + sum(map(len, own))
                    self._fail(party, error)
                at += count
                if party.thinner and not party.ended:
                    self._settle(party)
            if table.drafting and not table.idle:
                longest = max([sequence.length for sequence in table.live])
                rows, seconds, experts = (
                    (first - before, forward, output.experts) if alone else (first - before, 0.0, 0)
                )
                table.controller.timed(rows, longest, seconds, proposing, experts)
        if pieces:
            self._read(pieces, argmax, output)

    def _read(self, pieces: Sequence[Piece], argmax: list[int], output: StepOutput) -> None:
        """Hand out what came of pieces of prompts."""
        by_party: dict[Party, list[Piece]] = {}
        for piece in pieces:
            by_party.setdefault(piece.party, []).append(piece)
        for party, own in by_party.items():
            try:
                party.read([(piece.reader, piece.rows, piece.done, piece.answer) for piece in own], argmax, output)
                if not party.readers:
                    if self._memory is not None:
                        self._keep(self._memory, party.sequences[0], party.key, goes_on=True)
                    party.begin()
                    self._reading.remove(party)
                    self._decoding.append(party)
                    self._decoding.sort(key=_number)
                    self._settle(party)
            except Exception as error:
                self._fail(party, error)

    def _one_by_one(self, pieces: Sequence[Piece], error: Exception, *, drafted: bool) -> None:
        """A forward has failed: run each party's rows by themselves and without drafts, so that it ends whose it is."""
        parties = list(dict.fromkeys([*self._decoding, *(piece.party for piece in pieces)]))
        if len(parties) == 1 and not (drafted and isinstance(error, EngineError)):
            self._fail(parties[0], error)
            return
        for party in parties:
            own = [piece for piece in pieces if piece.party is party]
            crowd = Crowd([] if own else [party], self._engine)
            batch = crowd.batch(False, own)
            asked = perf_counter()
            try:
                output = self._forward(batch)
            except Exception as its:
                self._fail(party, its)
            else:
                self._took(crowd, own, output, 0.0, perf_counter() - asked)

    def _told(self) -> Sequence[StepEvent]:
        found = self._events.copy()
        self._events.clear()  # parties have this list
        return found

    # ---- coming and going --------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start what waits, owners by their shares and each one's in its order, as far as slots and memory reach."""
        passed: set[Party] = set()  # they wait for another one to read the same prompt
        while True:
            full = self._slots is not None and self.running >= self._slots
            if full and not self._shares.several:
                return
            party = self._shares.next_of((one for one in self._waiting if one not in passed), self._running)
            if party is None or (full and self._ahead_of(party) is None):
                return
            if self._memory is not None:
                needs = self._needs(self._memory, party)
                if needs < 0:
                    passed.add(party)
                    continue
                while full or (needs > 0 and self.running and needs > self._memory.available - self.running):
                    ahead = self._ahead_of(party)
                    if ahead is None:
                        return  # nobody overtakes: it would wait for ever
                    self._put_back(self._memory, ahead)
                    full = False
                self._prepare(self._memory, party)
            self._waiting.remove(party)
            party.start()
            self._reading.append(party)

    def _ahead_of(self, party: Party) -> Party | None:
        """Who makes way for one that waits; nobody where caches are not ours to take."""
        if self._memory is None or not self._shares.several:
            return None
        return self._shares.ahead_of(party, self._running)

    def _prepare(self, memory: PrefixCache, party: Party) -> None:
        """Give a party what is kept of its text."""
        sequence = party.sequences[0]
        self._release(sequence)
        found = None if sequence.shows_prompt else memory.take(party.to_read(sequence), party.key)
        sequence.cache, sequence.pages = (self._engine.new_cache(), []) if found is None else found
        if party.furthest:  # it gets on further than it fell back, or two could take turns for ever
            again = party.furthest - sequence.cache.length
            party.spared = party.furthest + max(QUANTUM, again)

    def _needs(self, memory: PrefixCache, party: Party) -> int:
        """Pages that a party needs to begin with; -1: it should wait, since another one is reading the same prompt."""
        tokens = party.to_read(party.sequences[0])
        if party.sequences[0].shows_prompt:
            return pages_of(len(tokens) + 1)
        held = memory.match(tokens, party.key)
        end = (held + 1) * PAGE
        for other in self._reading:
            same = other.readers[0].tokens
            if other.key == party.key and min(len(same), len(tokens) - 1) >= end and (same[:end] == tokens[:end]).all():
                return -1
        return pages_of(len(tokens) + 1) - held

    def _settle(self, party: Party) -> None:
        """Some of its sequences have ended, or it begins to decode."""
        self._stale, party.thinner = True, False
        party.live = [sequence for sequence in party.live if sequence.finish is None]
        if not party.live:
            self._leave(party)

    def _fail(self, party: Party, error: Exception) -> None:
        party.error = error
        self._leave(party)

    def _leave(self, party: Party) -> None:
        """A party is over."""
        if self._memory is not None:
            sequence = party.sequences[0]
            if party.error is None and party not in self._waiting:
                self._keep(self._memory, sequence, party.key)
            self._release(sequence)
        self._remove(party)
        self._shares.leave(party)
        del self._parties[party.id]
        party.close()
        if party.told:
            self._events.append(StepEvent(party.id, "finish" if party.error is None else "error"))

    def _remove(self, party: Party) -> None:
        for some in (self._waiting, self._reading, self._decoding):
            if party in some:
                some.remove(party)
        if party.controller is not None:
            for sequence in party.sequences:
                party.controller.leave(sequence.index)
        self._stale = True

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _make_room(self, memory: PrefixCache) -> None:
        """Pages for the next token of each sequence that decodes, from the oldest on; the youngest may lose theirs."""
        for party in sorted(self._decoding, key=_number):
            sequence = party.sequences[0]
            while party in self._decoding and not memory.extend(sequence.pages, sequence.length):
                self._put_one_back(memory)

    def _put_one_back(self, memory: PrefixCache) -> None:
        """There is no room for all that run."""
        if self.running == 1:
            raise EngineError("the only sequence does not fit in the memory that was checked to have room for it")
        self._put_back(memory, dispensable(self._running))

    def _put_back(self, memory: PrefixCache, party: Party) -> None:
        """It waits again, and is computed again later as far as its pages are gone by then."""
        sequence = party.sequences[0]
        party.furthest = max(party.furthest, sequence.cache.length)
        self._keep(memory, sequence, party.key)
        self._release(sequence)
        sequence.cache = self._engine.new_cache()
        self._remove(party)
        party.pause()
        self._waiting.append(party)
        self._waiting.sort(key=_number)
        self.put_back += 1

    def _keep(self, memory: PrefixCache, sequence: DecodingSequence, key: str, *, goes_on: bool = False) -> None:
        assert sequence.committed is not None
        length = sequence.cache.length
        if goes_on:
            length -= length % PAGE
        memory.keep(sequence.committed()[:length], sequence.cache, sequence.pages, key)

    def _release(self, sequence: DecodingSequence) -> None:
        if self._memory is not None:
            self._memory.release(sequence.pages)
            sequence.pages = []

    # ---- prompts -----------------------------------------------------------------------------------------------------

    def _pieces(self) -> list[Piece]:
        """The next rows of prompts, in equal shares for owners, and of each for its parties.

        What those with little left do not need others get.
        """
        pieces: list[Piece] = []
        while not pieces:
            room, shown = self._room(), SHOWN_ROWS
            groups = [sorted(some, key=_left) for some in by_owner(self._reading)]
            groups.sort(key=lambda some: sum(map(_left, some)))
            for place, parties in enumerate(groups):
                own = _share(room, len(groups) - place)
                for number, party in enumerate(parties):
                    share = _share(own, len(parties) - number)
                    for reader in party.readers:
                        rows = min(share, reader.left)
                        if reader.sequence.shows_prompt:
                            rows = min(rows, shown)
                            shown -= rows
                        if self._memory is not None:
                            rows = self._memory.extend_to(reader.sequence.pages, reader.sequence.cache.length, rows)
                        if rows > 0:
                            pieces.append(Piece(party, reader, rows, rows == reader.left))
                            share, own, room = share - rows, own - rows, room - rows
            if self._decoding or pieces or self._memory is None:
                break
            self._put_one_back(self._memory)
        return pieces

    def _room(self) -> int:
        """Rows of prompts in a step."""
        most = self._prefill_rows
        live = self._crowd.live
        if not live or self._time is None:
            return most
        rows, length = self._crowd.rows, max(sequence.length for sequence in live)
        read = max((reader.sequence.cache.length for party in self._reading for reader in party.readers), default=0)
        allowed, least = DELAY * self._time(rows, length), LEAST_PIECE
        while least < most:
            middle = (least + most + 1) // 2
            if self._time(rows + middle, max(length, read + middle)) <= allowed:
                least = middle
            else:
                most = middle - 1
        return least


def _number(party: Party) -> int:
    return party.id


def _left(party: Party) -> int:
    """Tokens of its prompts that are to be read."""
    return sum(reader.left for reader in party.readers)


def _share(room: int, among: int) -> int:
    """What the first of so many gets of some rows."""
    return min(room, max(LEAST_PIECE, room // among))


def _rows_of(crowd: Crowd, pieces: Sequence[Piece]) -> Counter[str]:
    """Rows of a forward, by owner."""
    found: Counter[str] = Counter()
    for table in crowd.tables:
        at = 0
        for party in table.parties:
            end = at + len(party.live)
            found[party.owner] += len(party.live)
            if table.drafts is not None:
                found[party.owner] += sum(len(draft.tokens) for draft in table.drafts[at:end])
            at = end
    for piece in pieces:
        found[piece.party.owner] += piece.rows
    return found
