"""Files of text, mutated by somebody who knows their formats: tokenizers, settings, templates, generation, stores.

``case(number, seed)`` makes one, always the same; ``attempt(case, folder)`` says "loaded" or "refused", and raises
whatever is neither.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ipex_lookahead.checkpoints.config_json import read_generation_config
from ipex_lookahead.drafting.store import Store
from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.tokenization.chat_template import render_chats
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.sentencepiece_model import read_model
from ipex_lookahead.tokenization.splitting import KNOWN_PATTERNS, SPLITTINGS
from ipex_lookahead.tokenization.text import TextTokenizer

ROWS = 512
SENTENCES = [
    "Once upon a time there was a little cat named Tim.",
    "It's 1234 o'clock: café, straße — aaaa bb a banana.",
]
TEXTS = ["", " ", *SENTENCES, "a" * 2000, "日本語 🙂 e\u0301\0\ufdfa <s>x</s>", " \n\t " * 40, "<|start|>user\n<|end|>"]
CHATML = "{% for m in messages %}{{ '<|start|>' + m['role'] + m['content'] + '<|end|>' }}{% endfor %}"
MESSAGES = [{"role": "user", "content": "a cat"}]
KINDS = {"json": 38, "model": 26, "settings": 16, "gguf": 10, "generation": 5, "store": 5}
SLOW = 60
"""One in so many cases also renders a template, in a process of its own, or becomes a transformers tokenizer."""

SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 255, 511, 512, 513, 2**16, 2**20, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63)),
    *(10**60, 1e308, -1e308, 5e-324, 0.0, -0.0, 1.5, "", " ", "a", "\0", "\ufdfa", "▁", "é" * 3, "<s>", "x" * 5000),
    *("many", [], {}, [[]], [1], ["a"], {"a": 1}, {"content": "a"}, {"id": "A"}, {"String": "a"}, {"Regex": "(a+)+$"}),
)


@dataclass
class Case:
    """One attack. ``files`` go into a folder; ``metadata`` is a GGUF's."""

    number: int
    kind: str
    done: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    slow: bool = False

    def __str__(self) -> str:
        return f"case {self.number} ({self.kind}): {'; '.join(self.done)}"


# ---- sound files, to begin with ----------------------------------------------------------------------------------------


@lru_cache
def byte_pair() -> str:
    """A ``tokenizer.json`` of 300 tokens, two of them special."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|start|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(SENTENCES, trainer)
    return core.to_str()


@lru_cache
def pieces(kind: str) -> bytes:
    """A ``tokenizer.model``: "bpe", "unigram", or "rules" that rewrite text."""
    model = io.BytesIO()
    rules = {"normalization_rule_name": "identity"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 5),
        model_writer=model,
        vocab_size=300,
        model_type="unigram" if kind == "unigram" else "bpe",
        byte_fallback=kind != "rules",
        user_defined_symbols=["cat", "[INST]"],
        hard_vocab_limit=False,
        minloglevel=2,
        **rules,
    )
    if kind != "rules":
        return model.getvalue()
    sound = read_model(model.getvalue(), "rules")
    sound.precompiled_charsmap = charsmap()
    return sound.serialize()


def charsmap() -> bytes:
    """A map of "a" to "bb": a root, the node of "a", and its text's place."""
    units = [0] * 512
    units[0] = 256 << 10  # the root's children lie from 256 on
    units[256 ^ 0x61] = 0x61 | 1 << 8 | (256 ^ 0x61 ^ 2) << 10  # "a", a leaf; its value is in unit 2
    units[2] = 1 << 31
    return struct.pack("<I", 2048) + struct.pack("<512I", *units) + b"bb\0"


# ---- JSON --------------------------------------------------------------------------------------------------------------


def _parts(chance: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Parts of every stage, well formed but for their sizes."""
    flag, text = (
        chance.random() < 0.5,
        chance.choice(["a", "▁", " ", "b" * 15, "b" * 61, "é", "", "\ufdfa" * 5, "a" * 5000]),
    )
    pattern: dict[str, Any] = {"String": chance.choice(["a", " ", "▁", "b", "ab", "", "\ufdfa"])}
    if chance.random() < 0.2:
        pattern = {"Regex": chance.choice([*sorted(KNOWN_PATTERNS), "a*", "(a|aa)+$"])}
    replace = {"type": "Replace", "pattern": pattern, "content": text}
    scheme = chance.choice(["always", "never", "first"])
    metaspace = {"type": "Metaspace", "replacement": chance.choice("▁_ 🙂"), "prepend_scheme": scheme, "split": flag}
    level = {"type": "ByteLevel", "add_prefix_space": flag, "trim_offsets": flag, "use_regex": chance.random() < 0.5}
    behaviour = chance.choice(["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
    sequence, special = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "!", "type_id": 0}}
    ids = [chance.choice([0, 1, 299, 511])] * chance.choice([1, 1, 2, 64, 65])
    template = {
        "type": "TemplateProcessing",
        "single": chance.choices([sequence, special], k=chance.choice([1, 2, 3, 64, 65])),
        "pair": [sequence, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"!": {"id": "!", "ids": ids, "tokens": ["<|start|>"] * len(ids)}},
    }
    if chance.random() < 0.6:
        template["single"] = chance.choice([[sequence], [special, sequence], [sequence, special]])
    strip = {"type": "Strip", "content": chance.choice(["a", " ", "ab", ""]), "start": chance.choice([0, 1, 65535])}
    return {
        "normalizer": [
            *({"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")),
            {"type": "Prepend", "prepend": text},
            replace,
            replace,
            {"type": "Strip", "strip_left": flag, "strip_right": True},
        ],
        "pre_tokenizer": [
            level,
            metaspace,
            {"type": "Digits", "individual_digits": flag},
            {"type": "Punctuation", "behavior": behaviour},
            {"type": "Split", "pattern": pattern, "behavior": behaviour, "invert": flag},
            {"type": "WhitespaceSplit"},
        ],
        "decoder": [
            *({"type": name} for name in ("ByteFallback", "Fuse")),
            level,
            metaspace,
            replace,
            {**strip, "stop": chance.choice([0, 0, 1, 5, 65535])},
        ],
        "post_processor": [level, template, template],
    }


_MEMBERS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
_MEMBERS["post_processor"] = "processors"


def _some_part(chance: random.Random, stage: str, depth: int = 0) -> dict[str, Any]:
    if depth < 3 and chance.random() < 0.4:
        repeat = chance.choice([1, 1, 1, 2, 5, 40])
        members = [_some_part(chance, stage, depth + 1) for _ in range(chance.randrange(4))] * repeat
        return {"type": "Sequence", _MEMBERS[stage]: members}
    return copy.deepcopy(chance.choice(_parts(chance)[stage]))


def _part(tree: Any, chance: random.Random) -> str:
    stage = chance.choice(sorted(_MEMBERS))
    tree[stage] = _some_part(chance, stage)
    return f"{stage} = {json.dumps(tree[stage])[:300]}"


def _added(tree: Any, chance: random.Random) -> str:
    count = chance.choice([1, 1, 2, 3, 50, 300])
    tokens = tree.setdefault("added_tokens", [])
    if not isinstance(tokens, list):
        return "nothing"
    for n in range(count):
        content = chance.choice(["<x>", "cat", "a", " ", "\n", "e\u0301", "<|end|>", "x" * 300, "x" * 5000, f"<{n}>"])
        flags = {name: chance.random() < 0.4 for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        tokens.append({"id": chance.choice([300 + n, 300 + n, n, 511, 512]), "content": content, **flags})
    return f"{count} added tokens, the last {tokens[-1]}"


def _vocabulary(tree: Any, chance: random.Random) -> str:
    model = tree.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict) or not isinstance(model.get("merges"), list):
        return "nothing"
    deed = chance.choice(["renumber", "long", "drop", "gap", "empty", "merge", "reverse", "flags", "odd"])
    some = chance.choice(sorted(vocab) or ["a"])
    if deed == "renumber":
        vocab[some] = chance.choice(SCALARS)
    elif deed == "long":
        vocab["x" * chance.choice([300, 4096, 4097, 10**6])] = len(vocab)
    elif deed == "drop":
        vocab.pop(some, None)
    elif deed == "gap":
        vocab[some] = 511
    elif deed == "empty":
        vocab[""] = len(vocab)
    elif deed == "merge":
        model["merges"].append(chance.choice([["a", "b"], "a b", ["", "a"], ["a"], [], "ab", ["a", 1], ["c", "a"]]))
    elif deed == "reverse":
        model["merges"].reverse()
    elif deed == "flags":
        model[chance.choice(["fuse_unk", "byte_fallback", "ignore_merges"])] = chance.random() < 0.8 or 1
        model["unk_token"] = chance.choice([None, some, "nowhere"])
    else:
        vocab.update({chance.choice(["\0", "\u0301", "🙂", " ", "\n"]): len(vocab)})
    return f"vocabulary: {deed} {some!r}"


def _walk(tree: Any, chance: random.Random) -> tuple[Any, Any]:
    """A container and a key in it, at any depth."""
    at, found = tree, (tree, None)
    while isinstance(at, dict | list) and at:
        key = chance.choice(list(at)) if isinstance(at, dict) else chance.randrange(len(at))
        found, at = (at, key), at[key]
        if chance.random() < 0.35:
            break
    return found


def _value(tree: Any, chance: random.Random) -> str:
    outer, key = _walk(tree, chance)
    if key is None:
        return "nothing"
    deed = chance.choice(["replace", "replace", "drop", "deep", "grow", "copy"])
    if deed == "drop":
        del outer[key]
    elif deed == "deep":
        levels = chance.choice([1, 63, 64, 500])
        for _ in range(levels):
            outer[key] = [outer[key]] if chance.random() < 0.5 else {"a": outer[key]}
    elif deed == "grow" and isinstance(outer[key], str | list):
        outer[key] = outer[key] * chance.choice([2, 100, 3000 // (1 + len(str(outer[key])) // 50)])
    elif deed == "copy":
        other, name = _walk(tree, chance)
        if name is not None:
            outer[key] = copy.deepcopy(other[name])
    else:
        outer[key] = copy.deepcopy(chance.choice(SCALARS))
    return f"{deed} {str(key)[:40]!r}"


def _spelled(tree: Any, chance: random.Random) -> tuple[bytes, str]:
    """The tree as text, which is sometimes hurt."""
    data = json.dumps(tree, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    if chance.random() < 0.85:
        return data, ""
    at = chance.randrange(len(data) + 1)
    hurts: list[tuple[str, Callable[[], bytes]]] = [
        ("cut", lambda: data[:at]),
        ("surrogate", lambda: data.replace(b'"a"', b'"\\ud800"', 1)),
        ("pair", lambda: data.replace(b'"a"', b'"\\ud83d\\ude42"', 1)),
        ("key twice", lambda: data[:-1] + b',"version":1,"version":2}'),
        ("not UTF-8", lambda: data[:at] + b"\xff\xc0" + data[at:]),
        ("mark", lambda: b"\xef\xbb\xbf" + data),
        ("NaN", lambda: data.replace(b"null", b"NaN", 1)),
        ("digits", lambda: data.replace(b"0", b"9" * 5000, 1)),
        ("behind", lambda: data + b" {}"),
        ("brackets", lambda: b"[" * 10**5),
        ("no object", lambda: b"[1]"),
        ("empty", lambda: b""),
    ]
    name, hurt = chance.choice(hurts)
    return hurt(), name


_JSON_DEEDS = (_part, _part, _part, _added, _vocabulary, _value, _value)


def _json(case: Case, chance: random.Random) -> None:
    tree = json.loads(byte_pair())
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        case.done.append(chance.choice(_JSON_DEEDS)(tree, chance))
    case.files["tokenizer.json"], hurt = _spelled(tree, chance)
    case.done.append(hurt)


# ---- tokenizer.model ---------------------------------------------------------------------------------------------------

Fields = list[tuple[int, int, Any]]


def _number(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _written(fields: Fields) -> bytes:
    """A message of (number, wire type, value): an int, bytes, or fields of a message inside."""
    out = []
    for number, wire, value in fields:
        body = _written(value) if isinstance(value, list) else value
        packed = _number(body) if isinstance(body, int) else _number(len(body)) + body if wire == 2 else body
        out.append(_number(number << 3 | wire) + packed)
    return b"".join(out)


def _message(chance: random.Random) -> Fields:
    """A sound model as fields."""
    model = read_model(pieces(chance.choice(["bpe", "bpe", "unigram", "rules"])), "sound")
    body: Fields = [
        (1, 2, [(1, 2, p.text.encode()), (2, 5, struct.pack("<f", p.score)), (3, 0, p.type)]) for p in model.pieces
    ]
    body.append((2, 2, [(3, 0, model.model_type), (35, 0, int(model.byte_fallback))]))
    flags = [(3, 0, 1), (4, 0, chance.randrange(2)), (5, 0, 1)]
    body.append((3, 2, [(1, 2, b"identity"), (2, 2, model.precompiled_charsmap), *flags]))
    return body


_FLOATS = (0.0, -0.0, -1.0, 3e38, -3e38, 1e-45, float("nan"), float("inf"), float("-inf"))
_BYTES = (b"", b"a", b"\0", b"\xff", b"cat", b"<0x41>", b"<0xZZ>", "▁".encode(), b"x" * 300, b"x" * 4097, b"x" * 10**5)
_NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, 127, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 2**64, 2**80)


def _field(body: Fields, chance: random.Random) -> str:
    at = chance.choice([chance.randrange(len(body)), len(body) - 1, len(body) - 2])
    number, wire, value = body[at]
    if not isinstance(value, list) or not value:
        return "nothing"
    inner = chance.randrange(len(value))
    name, kind, old = value[inner]
    deed = chance.choice(["value", "value", "value", "drop", "twice", "wire", "foreign", "size"])
    if deed == "value" and (name, number) == (2, 3) and old:
        new = _map(old, chance)
    elif deed == "value":
        floats = struct.pack("<f", chance.choice(_FLOATS))
        new = chance.choice(_NUMBERS) if kind == 0 else floats if kind == 5 else chance.choice(_BYTES)
    else:
        new = old
    value[inner] = (name, kind, new)
    if deed == "drop":
        del value[inner]
    elif deed == "twice":
        value.append(value[inner])
    elif deed == "wire":
        value[inner] = (name, chance.choice([0, 1, 2, 3, 4, 5, 6, 7]), b"\1" * chance.choice([0, 1, 4, 8]))
    elif deed == "foreign":
        number_of_it = chance.choice([44, 45, 48, 9, 99, 2**28, 2**29])
        value.append((number_of_it, chance.choice([0, 2]), chance.choice([1, b"x" * 5000])))
        if isinstance(value[-1][2], int) != (value[-1][1] == 0):
            value[-1] = (value[-1][0], 2, b"x" * chance.choice([1, 5000]))
    elif deed == "size":
        body[at] = (number, 2, _written(value))
        raw = _number(number << 3 | 2) + _number(
            len(body[at][2]) + chance.choice([-1, 1, 100, 2**40, 2**62]) & 2**64 - 1
        )
        body[at] = (9, 2, b"")
        body.append((15, 2, raw))
    return f"{deed} of field {number}.{name}, message {at}"


def _map(old: bytes, chance: random.Random) -> bytes:
    """A charsmap with units, sizes or texts changed."""
    data = bytearray(old)
    deed = chance.randrange(4)
    if deed == 0:
        struct.pack_into("<I", data, 4 * chance.randrange(1, len(data) // 4), chance.getrandbits(32))
    elif deed == 1:
        struct.pack_into("<I", data, 0, chance.choice([0, 1, 4, 2044, 2048, 2052, 2**31, 2**32 - 1]))
    elif deed == 2:
        return bytes(data[:-1]) + b"b" * chance.choice([1, 10, 14, 15, 100, 10**6]) + b"\0"
    else:
        return bytes(data[: chance.randrange(len(data))])
    return bytes(data)


def _pieces(body: Fields, chance: random.Random) -> str:
    deed = chance.choice(["copy", "drop", "swap", "ladder", "type", "spelled"])
    at, other = chance.randrange(len(body) - 2), chance.randrange(len(body) - 2)
    if deed == "copy":
        body.insert(at, body[other])
    elif deed == "drop":
        del body[at]
    elif deed == "swap":
        body[at], body[other] = body[other], body[at]
    elif deed == "type":
        body[at][2][2] = (3, 0, chance.randrange(9))
    else:
        most = chance.choice([10, 200])
        kind, end = chance.choice([1, 5]), "z" if deed == "spelled" else ""
        for n in range(2, most):
            piece: Fields = [
                (1, 2, ("a" * n + end).encode()),
                (2, 5, struct.pack("<f", -n)),
                (3, 0, 4 if end else kind),
            ]
            body.insert(-2, (1, 2, piece))
    return f"pieces: {deed}"


def _model(case: Case, chance: random.Random) -> None:
    body = _message(chance)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        case.done.append(chance.choice([_field, _field, _pieces])(body, chance))
    data = _written(body)
    if chance.random() < 0.15:
        at = chance.randrange(len(data))
        hurt = chance.choice(
            [data[:at], data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :], data + b"\xff" * 11]
        )
        data, _ = hurt, case.done.append(f"bytes at {at}")
    case.files["tokenizer.model"] = data
    if chance.random() < 0.3:
        settings: dict[str, Any] = {"added_tokens_decoder": {"0": {"content": "<unk>"}}}
        case.done.append(_setting(settings, chance))
        case.files["tokenizer_config.json"] = json.dumps(settings).encode("utf-8", "surrogatepass")


# ---- settings and templates --------------------------------------------------------------------------------------------

TEMPLATES = (
    *(CHATML, "", "{{ messages }}", "{% for %}", "{{ 1 // 0 }}", "{{ 'a' * 10**9 }}", "{{ 'a' * 400000 }}", "\0"),
    *("{{ raise_exception('a' * 10**7) }}", "{% for i in range(10**9) %}{% endfor %}", "{{ messages.append(1) }}"),
    *("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "{{ ''.__class__.__mro__ }}", "{{ undefined.x }}", "x" * 300_000),
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
)
_TOKENS = (
    "<|start|>",
    "<|end|>",
    "a",
    "cat",
    "nowhere",
    "",
    {"content": "<|end|>"},
    {"content": 5},
    {},
    0,
    None,
    True,
    [],
)


def _setting(settings: dict[str, Any], chance: random.Random) -> str:
    key = chance.choice(["role", "role", "role", "flag", "length", "special", "template", "decoder", "marker", "any"])
    if key == "role":
        name, value = chance.choice(["bos_token", "eos_token", "unk_token", "pad_token"]), chance.choice(_TOKENS)
    elif key == "flag":
        name, value = chance.choice(["add_bos_token", "add_eos_token"]), chance.choice([True, False, None, 1, "yes"])
    elif key == "length":
        name, value = "model_max_length", chance.choice(SCALARS)
    elif key == "special":
        name = chance.choice(["additional_special_tokens", "extra_special_tokens"])
        value = chance.choice([list(_TOKENS[:3]), ["a"] * 1000, list(_TOKENS), {"x": "a"}, "a", [[]], None])
    elif key == "template":
        name, text = "chat_template", chance.choice(TEMPLATES)
        value = chance.choice([text, text, [{"name": "default", "template": text}], [text], {"default": text}, 5])
    elif key == "decoder":
        name = "added_tokens_decoder"
        key_of = chance.choice(["0", "1", "300", "301", "511", "512", "-1", "x", "१", "9" * 30, "00"])
        value = {
            key_of: {
                "content": chance.choice(["<x>", "<unk>", "a", "x" * 300, ""]),
                "special": chance.choice([0, True]),
            }
        }
        value = chance.choice([value, value, {str(n): {"content": f"<{n}>"} for n in range(300, 340)}, [value]])
    elif key == "marker":
        name, value = (
            "ipex_lookahead",
            chance.choice([{"vocabulary": "../x"}, {"vocabulary": []}, {"vocabulary": "tokenizer.model"}, 1]),
        )
    else:
        name = chance.choice(
            ["tokenizer_class", "auto_map", "backend", "added_tokens_decoder", "clean_up_tokenization_spaces"]
        )
        value = chance.choice(SCALARS)
    settings[name] = value
    return f"{name} = {str(value)[:80]!r}"


def _settings(case: Case, chance: random.Random) -> None:
    kind = chance.choice(["tokenizer.json", "tokenizer.model", "both"])
    if kind != "tokenizer.model":
        case.files["tokenizer.json"] = byte_pair().encode()
    if kind != "tokenizer.json":
        case.files["tokenizer.model"] = pieces(chance.choice(["bpe", "unigram"]))
    settings: dict[str, Any] = {"chat_template": CHATML}
    for _ in range(chance.choice([1, 1, 2])):
        case.done.append(_setting(settings, chance))
    if chance.random() < 0.1:
        case.done.append(_value(settings, chance))
    name = chance.choice(["tokenizer_config.json", "tokenizer_config.json", "special_tokens_map.json"])
    case.files[name], hurt = _spelled(settings, chance)
    case.done.append(f"{name} {hurt}")
    if chance.random() < 0.1:
        case.files["chat_template.jinja"] = chance.choice(TEMPLATES).encode() + chance.choice([b"", b"", b"\xff"])
        case.done.append(f"template {case.files['chat_template.jinja'][:60]!r}")


# ---- GGUF, generation, stores ------------------------------------------------------------------------------------------


_ROLE_IDS = ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id")
_FLAGS = ("add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces")


def _gguf(case: Case, chance: random.Random) -> None:
    if chance.random() < 0.5:
        model = json.loads(byte_pair())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        made = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": merges}
        made |= {"token_type": [3, 3] + [1] * (len(tokens) - 2), "bos_token_id": 0, "eos_token_id": 1}
    else:
        sound = read_model(pieces(chance.choice(["bpe", "rules"])), "sound")
        made = {"model": "llama", "tokens": [p.text for p in sound.pieces], "scores": [p.score for p in sound.pieces]}
        made |= {"token_type": [p.type for p in sound.pieces], "bos_token_id": 1, "eos_token_id": 2}
        if sound.precompiled_charsmap:
            octets = list(sound.precompiled_charsmap)
            made["precompiled_charsmap"] = list(_map(bytes(octets), chance)) if chance.random() < 0.5 else octets
    deeds = ["scalar", "array", "item", "item", "long", "types", "template", *["role", "flag", "pre"] * 2]
    for _ in range(chance.choice([1, 1, 2])):
        deed = chance.choice(deeds)
        key = chance.choice(sorted(made))
        arrays = [name for name, value in made.items() if isinstance(value, list) and value]
        if deed == "scalar":
            made[key] = copy.deepcopy(chance.choice(SCALARS))
        elif deed == "role":
            made[chance.choice(_ROLE_IDS)] = chance.choice([0, 1, 2, 299, 600, -1])
        elif deed == "flag":
            made[chance.choice(_FLAGS)] = chance.random() < 0.5
        elif deed == "pre":
            made["pre"] = chance.choice([*SPLITTINGS, "other"])
        elif deed == "long" and isinstance(made.get("tokens"), list) and made["tokens"]:
            made["tokens"][chance.randrange(len(made["tokens"]))] = "x" * chance.choice([300, 4096, 4097, 10**6])
        elif deed == "types" and isinstance(made.get("token_type"), list):
            made["token_type"] = [chance.choice([0, 1, 2, 3, 4, 5, 6, 7])] * len(made["token_type"])
        elif deed == "template":
            made["tokenizer.chat_template"] = chance.choice([*TEMPLATES, 5])
        elif arrays:
            key = chance.choice(arrays)
            if deed == "array":
                made[key] = chance.choice([made[key][:-1], made[key] * 2, made[key][::-1], []])
            else:
                made[key][chance.randrange(len(made[key]))] = copy.deepcopy(chance.choice(SCALARS))
        case.done.append(f"{deed} {key}")
    case.metadata = {key if "." in key else f"tokenizer.ggml.{key}": value for key, value in made.items()}


_GENERATION = ("temperature top_k top_p do_sample max_new_tokens max_length eos_token_id bos_token_id pad_token_id"
               " repetition_penalty min_p num_beams typical_p stop_strings watermarking_config to_diff_dict validate"
               " no_repeat_ngram_size cache_implementation compile_config suppress_tokens").split()  # fmt: skip


def _generation(case: Case, chance: random.Random) -> None:
    settings: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "eos_token_id": [2]}
    for _ in range(chance.choice([1, 2, 3])):
        key = chance.choice(_GENERATION)
        settings[key] = copy.deepcopy(chance.choice([*SCALARS, 0.5, 2.0, 50, [0, 2], [0, 600], [1.0]]))
        case.done.append(f"{key} = {str(settings[key])[:60]!r}")
    case.files["generation_config.json"], hurt = _spelled(settings, chance)
    case.done.append(hurt)


def _store(case: Case, chance: random.Random) -> None:
    texts = [[chance.randrange(ROWS) for _ in range(chance.randrange(1, 30))] for _ in range(chance.randrange(6))]
    head: list[Any] = [b"ipex-lookahead S", 1, ROWS, bytes(32), len(texts), sum(map(len, texts))]
    lengths, ids = [len(text) for text in texts], [i for text in texts for i in text]
    deed = chance.choice(["none", "none", "head", "length", "id", "cut", "behind", "digest", "byte", "both"])
    huge = (0, 1, 3, 511, 512, 2**24, 2**31, 2**32 - 1)
    if deed == "head":
        at = chance.choice([0, 1, 2, 3, 4, 5])
        head[at] = b"\1" * 16 if at == 0 else b"\1" * 32 if at == 3 else chance.choice(huge)
    if deed in ("length", "both") and lengths:
        lengths[chance.randrange(len(lengths))] = chance.choice(huge)
    if deed == "both" and len(lengths) > 1:  # lengths that overflow to the right sum
        lengths[0], lengths[1] = 2**32 - 1, (lengths[0] + lengths[1] + 1) % 2**32
    if deed == "id" and ids:
        ids[chance.randrange(len(ids))] = chance.choice(huge)
    body = struct.pack("<16sII32sQQ", *head) + struct.pack(f"<{len(lengths) + len(ids)}I", *lengths, *ids)
    data = body + (bytes(32) if deed == "digest" else hashlib.sha256(body).digest())
    if deed == "cut":
        data = data[: chance.randrange(len(data))]
    elif deed == "behind":
        data += b"\0" * chance.choice([1, 4, 32])
    elif deed == "byte":
        at = chance.randrange(len(data))
        data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    case.files["store"] = data
    case.done.append(deed)


_MAKERS: dict[str, Callable[[Case, random.Random], None]] = {
    "json": _json,
    "model": _model,
    "settings": _settings,
    "gguf": _gguf,
    "generation": _generation,
    "store": _store,
}


def case(number: int, seed: int) -> Case:
    """The attack of that number."""
    chance = random.Random(f"{seed} {number}")
    made = Case(number, chance.choices(list(KINDS), list(KINDS.values()))[0], slow=number % SLOW == 0)
    _MAKERS[made.kind](made, chance)
    return made


# ---- the attempt -------------------------------------------------------------------------------------------------------


def attempt(made: Case, folder: Path) -> str:
    """ "loaded" or "refused"; an AssertionError or whatever else was raised where it is neither."""
    for file in folder.iterdir():
        file.unlink()
    for name, data in made.files.items():
        (folder / name).write_bytes(data)
    try:
        _load(made, folder)
    except LookaheadError as error:
        assert "panicked" not in str(error), error
        return "refused"
    return "loaded"


def _load(made: Case, folder: Path) -> None:
    if made.kind == "generation":
        from ipex_lookahead.engines.torch.load import checked_defaults

        with contextlib.suppress(LookaheadError):  # an engine that reads more keys
            checked_defaults(folder / "generation_config.json")
        read_generation_config(folder / "generation_config.json", ROWS)
    elif made.kind == "store":
        store = Store.open(folder / "store", ROWS)
        assert len(store) == sum(map(len, store.texts()))
        store.add([1, 2, 3])
    else:
        config = {"vocab_size": ROWS}
        tokenizer = text_from_gguf(made.metadata, "x.gguf") if made.metadata else text_from_folder(folder, config)
        assert tokenizer is not None
        _use(tokenizer, made.slow)


def _use(tokenizer: TextTokenizer, slow: bool) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert all(type(i) is int and 0 <= i < ROWS for i in ids), (text, ids)
        assert len(ids) <= 64 * len(text) + 5000
        for skip in (False, True):
            assert type(tokenizer.decode(ids, skip_special_tokens=skip)) is str
    assert type(tokenizer.decode(range(ROWS))) is str
    assert tokenizer.bos_token_id is None or tokenizer.bos_token_id in tokenizer.all_special_ids
    assert isinstance(tokenizer.silent_ids, frozenset)
    if slow:
        full = tokenizer.for_transformers()
        for text in TEXTS:
            assert full.decode(full.encode(text)) == tokenizer.decode(tokenizer.encode(text)), text
        if tokenizer.chat_template:
            template = tokenizer.chat_template
            source = template if isinstance(template, str) else next(iter(template.values()), "")
            for text in render_chats(source, [MESSAGES], {}):
                tokenizer.encode(text)
