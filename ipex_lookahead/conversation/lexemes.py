"""Which parts of a grammar a lexer may read as one lexeme.

A lexer that takes the longest text is right about a part of a grammar without recursion, unless a text of it goes on to
a longer text of the same or another part with a character that may also come behind it: then the parts are read
character by character. The result is conservative: parts are compared even if no text reaches both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from ipex_lookahead.errors import InputError

LAST = 0x10FFFF
"""The last code point."""
ANY = ((0, 0xD7FF), (0xE000, LAST))
"""Every character: surrogates are none."""
MAX_DEPTH = 200
"""References from rule to rule in a part without recursion."""
_MAX_WORK = 100_000
"""Steps of all searches, some 0.3 s; lexemes of which more would have to be seen are taken as they are."""


class Kind(Enum):
    """What a node is."""

    CHARS = auto()
    SEQ = auto()
    ALT = auto()
    REPEAT = auto()
    RULE = auto()
    TOKEN = auto()


@dataclass(eq=False, slots=True)
class Node:
    """A part of a rule.

    Attributes:
        kind: what it is.
        parts: of a sequence, of alternatives, or the one that is repeated.
        ranges: of CHARS: first and last code points, inclusive.
        name: of the RULE that it refers to.
        low, high: of REPEAT; None for no most.
        token, negated: of TOKEN: the id, and whether any other is meant.
    """

    kind: Kind
    parts: list[Node] = field(default_factory=list)
    ranges: tuple[tuple[int, int], ...] = ()
    name: str = ""
    low: int = 0
    high: int | None = None
    token: int = 0
    negated: bool = False

    def __iter__(self) -> Iterator[Node]:
        """All nodes in it, itself first."""
        left = [self]
        while left:
            one = left.pop()
            yield one
            left += reversed(one.parts)


Rules = dict[str, Node]


def fused(rules: Rules, root: str) -> Rules:
    """Return the rules that the root needs, a rule that refers to itself at an end alone as a repetition."""
    found: Rules = {}
    left = [root]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = _repeated(name, rules[name])
            left += [one.name for one in found[name] if one.kind is Kind.RULE]
    return found


def _repeated(name: str, body: Node) -> Node:
    """``a ::= x a | y`` as ``x* y``, ``a ::= a x | y`` as ``y x*``."""
    if body.kind is Kind.REPEAT and (body.low, body.high) == (0, 1):  # a ::= (x a)?
        body = Node(Kind.ALT, [body.parts[0], Node(Kind.SEQ)])
    either = body.parts if body.kind is Kind.ALT else [body]
    for at in (-1, 0):
        again = [one for one in either if one.kind is Kind.SEQ and len(one.parts) > 1 and one.parts[at].name == name]
        others = [one for one in either if one not in again]
        steps = [Node(Kind.SEQ, one.parts[:-1] if at else one.parts[1:]) for one in again]
        if again and others and not any(one.name == name for part in (*steps, *others) for one in part):
            loop = Node(Kind.REPEAT, [Node(Kind.ALT, steps)])
            end = Node(Kind.ALT, others)
            return Node(Kind.SEQ, [loop, end] if at else [end, loop])
    return body


class Lexemes:
    """The nodes that are lexemes, as far as a root needs them.

    Args:
        rules: all of them are reached from the root.
        root: its name.
    """

    def __init__(self, rules: Rules, root: str) -> None:
        """Raises InputError where rules refer to each other too deeply."""
        self._rules = rules
        self._root = root
        self._plain = self._without_recursion()
        self._nullable: set[str] = set()
        while True:  # a rule may become nullable by another
            found = {name for name, body in rules.items() if self.is_nullable(body)}
            if found == self._nullable:
                break
            self._nullable = found
        self._apart: set[Node] = set()
        self._work = _MAX_WORK
        self._atoms = self._bounds()
        if root not in self._plain:  # else the whole answer is one lexeme, behind which nothing comes
            while self._work > 0 and (clash := self._clash()):
                self._apart |= clash

    def __contains__(self, node: Node) -> bool:
        """Whether a node in a rule is a lexeme; a character always is."""
        return node.kind is Kind.CHARS or (node not in self._apart and bool(node.parts or node.name) and self._is(node))

    def _is(self, node: Node) -> bool:
        return all(one.kind is not Kind.TOKEN and (not one.name or one.name in self._plain) for one in node)

    def is_nullable(self, node: Node) -> bool:
        """Whether a node takes the empty text."""
        if node.kind is Kind.RULE:
            return node.name in self._nullable
        if node.kind is Kind.REPEAT and node.low == 0:
            return True
        if node.kind in (Kind.CHARS, Kind.TOKEN):
            return False
        return (any if node.kind is Kind.ALT else all)(map(self.is_nullable, node.parts))

    def _without_recursion(self) -> set[str]:
        """Return the names of rules that lead to no token and not back to themselves."""
        needs = {name: {one.name for one in body if one.name} for name, body in self._rules.items()}
        tokens = {name for name, body in self._rules.items() if any(one.kind is Kind.TOKEN for one in body)}
        found: set[str] = set()
        depth = 0
        while new := {name for name in needs if name not in found | tokens and needs[name] <= found}:
            found |= new
            depth += 1
            if depth > MAX_DEPTH:
                raise InputError(f"the grammar cannot be read: its rules refer to each other over {MAX_DEPTH} deep")
        return found

    def _bounds(self) -> dict[Node, int]:
        """Return each CHARS node's set of atoms, as bits: intervals that no range of the grammar divides."""
        chars = [one for body in self._rules.values() for one in body if one.kind is Kind.CHARS]
        cuts = sorted({at for one in chars for first, last in one.ranges for at in (first, last + 1)})
        place = {at: number for number, at in enumerate(cuts)}
        return {
            one: sum((1 << place[last + 1]) - (1 << place[first]) for first, last in _disjoint(one.ranges))
            for one in chars
        }

    def _in_rules(self) -> list[Node]:
        """Return the bodies of rules that are not part of a lexeme everywhere."""
        names, left = {self._root}, [self._root]
        while left:
            for name in self._outside(self._rules[left.pop()]):
                if name not in names:
                    names.add(name)
                    left.append(name)
        return [self._rules[name] for name in names]

    def _outside(self, node: Node) -> Iterator[str]:
        """Rules that a node refers to outside of lexemes."""
        if node in self:
            return
        if node.kind is Kind.RULE:
            yield node.name
        for one in node.parts:
            yield from self._outside(one)

    def _clash(self) -> set[Node]:
        """Return the lexemes that a longest match would be wrong about."""
        follow = self._follow()
        machine = _Machine(self._rules, self._atoms, self._work)
        try:
            for node in follow:
                machine.add(node)
            return machine.clash(follow)
        except OverflowError:
            return set()
        finally:
            self._work = machine.left - len(self._rules)

    def _follow(self) -> dict[Node, int]:
        """Return for each lexeme the atoms that may come behind it."""
        firsts: dict[str, int] = dict.fromkeys(self._rules, 0)
        while (found := {name: self._first(body, firsts) for name, body in self._rules.items()}) != firsts:
            firsts = found
        behind: dict[str, int] = dict.fromkeys(self._rules, 0)
        bodies = {id(body) for body in self._in_rules()}
        while True:
            lexemes: dict[Node, int] = {}
            before = dict(behind)
            for name, body in self._rules.items():
                if id(body) in bodies:
                    self._spread(body, behind[name], firsts, behind, lexemes)
            if behind == before:
                return lexemes

    def _first(self, node: Node, firsts: dict[str, int]) -> int:
        if node.kind is Kind.RULE:
            return firsts[node.name]
        if node.kind is Kind.CHARS:
            return self._atoms[node]
        found = 0
        for one in node.parts:
            found |= self._first(one, firsts)
            if node.kind is Kind.SEQ and not self.is_nullable(one):
                break
        return found

    def _spread(
        self, node: Node, after: int, firsts: dict[str, int], behind: dict[str, int], lexemes: dict[Node, int]
    ) -> None:
        """Tell the lexemes and rules in a node what comes behind them, where ``after`` comes behind the node."""
        if node in self:
            lexemes[node] = lexemes.get(node, 0) | after
        elif node.kind is Kind.RULE:
            behind[node.name] |= after
        elif node.kind is Kind.SEQ:
            for one in reversed(node.parts):
                self._spread(one, after, firsts, behind, lexemes)
                after = self._first(one, firsts) | (after if self.is_nullable(one) else 0)
        else:
            if node.kind is Kind.REPEAT and node.high != 1:
                after |= self._first(node.parts[0], firsts)
            for one in node.parts:
                self._spread(one, after, firsts, behind, lexemes)


def _disjoint(ranges: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    """The same characters in ranges that do not overlap."""
    begin = 0
    for first, last in sorted(ranges):
        if last >= begin:
            yield max(first, begin), last
            begin = last + 1


class _Machine:
    """A nondeterministic automaton of all lexemes; those that repeat are taken to do so without an end.

    Args:
        rules: of the grammar.
        atoms: of each CHARS node.
        left: steps that it may take.

    Attributes:
        left: steps that are left of them.
    """

    def __init__(self, rules: Rules, atoms: dict[Node, int], left: int) -> None:
        self.left = left
        self._rules = rules
        self._atoms = atoms
        self._empty: list[list[int]] = []
        self._edges: list[tuple[int, int] | None] = []
        self._owner: list[Node] = []
        self._ends: dict[int, Node] = {}
        self._starts: list[int] = []
        self._adding = Node(Kind.SEQ)

    def add(self, lexeme: Node) -> None:
        """Add a lexeme. Raises OverflowError where no step is left."""
        self._adding = lexeme
        start = self._state()
        self._starts.append(start)
        self._ends[self._built(lexeme, start)] = lexeme

    def _state(self, before: int | None = None) -> int:
        self._spend(1)
        self._empty.append([])
        self._edges.append(None)
        self._owner.append(self._adding)
        if before is not None:
            self._empty[before].append(len(self._empty) - 1)
        return len(self._empty) - 1

    def _built(self, node: Node, start: int) -> int:
        """Add the states of a node behind ``start``; return the last one."""
        if node.kind is Kind.CHARS:
            begin, end = self._state(start), self._state()
            self._edges[begin] = (self._atoms[node], end)
            return end
        if node.kind is Kind.RULE:
            return self._built(self._rules[node.name], start)
        if node.kind is Kind.SEQ:
            for one in node.parts:
                start = self._built(one, start)
            return start
        begin = self._state(start)
        last = [self._built(one, self._state(begin)) for one in node.parts]
        end = self._state()
        for state in last:
            self._empty[state].append(end)
        if node.kind is Kind.REPEAT:
            if node.high != 1:
                self._empty[end].append(begin)
            if node.low == 0:
                self._empty[begin].append(end)
        return end

    def clash(self, follow: dict[Node, int]) -> set[Node]:
        """Return lexemes that end where another, or the same, goes on with what may follow.

        Raises OverflowError where no step is left.
        """
        seen = {first := self._closed(self._starts)}
        left = [first]
        while left:
            states = left.pop()
            edges = [(one, *edge) for one in states if (edge := self._edges[one]) is not None]
            if states is not first:
                for ended in {self._ends[one] for one in states if one in self._ends}:
                    either = {self._owner[one] for one, mask, _ in edges if mask & follow[ended]}
                    if either:
                        return {one for one in (*either, ended) if one.kind is not Kind.CHARS}
            for mask in _parts([mask for _, mask, _ in edges]):
                after = self._closed([to for _, wanted, to in edges if wanted & mask])
                self._spend(len(edges) + len(after))
                if after not in seen:
                    seen.add(after)
                    left.append(after)
        return set()

    def _spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise OverflowError

    def _closed(self, states: list[int]) -> frozenset[int]:
        found, left = set(states), list(states)
        while left:
            new = [one for one in self._empty[left.pop()] if one not in found]
            found.update(new)
            left += new
        return frozenset(found)


def _parts(masks: list[int]) -> list[int]:
    """The masks cut into such that each of them holds all of a part or nothing."""
    parts: list[int] = []
    for mask in dict.fromkeys(masks):
        cut = [one for part in parts for one in (part & mask, part & ~mask) if one]
        rest = mask & ~sum(parts)
        parts = [*cut, rest] if rest else cut
    return parts
