"""``tokenizer.json``, mutated by parts, tokens, merges and values; and JSON that is spelled wrongly."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Callable
from typing import Any

from ipex_lookahead.tokenization.splitting import KNOWN_PATTERNS
from tests.support.mutated.sound import SCALARS, Case, byte_pair
from tests.support.mutated.sound import charsmap as charsmap_bytes


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


def value_anywhere(tree: Any, chance: random.Random) -> str:
    outer, key = _walk(tree, chance)
    if key is None:
        return "nothing"
    deed = chance.choice(["replace", "replace", "drop", "deep", "grow", "copy"])
    if deed == "drop":
        del outer[key]
    elif deed == "deep":
        levels = chance.choice([1, 63, 64, 100])
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


def spelled(tree: Any, chance: random.Random) -> tuple[bytes, str]:
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


def _apart(tree: Any, chance: random.Random) -> str:
    """A part, or a model, that runs in a process of its own; some of them hostile."""
    flag, number = chance.random() < 0.5, chance.choice([0, 1, 1, 3, 100, 2**16, 2**64])
    expressions = [
        r"\p{L}+|\p{N}",
        "a*",
        "(a|aa)+$",
        "(x+x+)+y",
        "x+y|.",
        "(?=.)",
        "",
        "(",
        "\\",
        "(?:a{1000}){1000}",
        "[^a]",
    ]
    expressions += ["(?<=a)b", "(a)\\1", "\ud83d\ude42|\ufdfa", "a" * 5000, "$", "^", "(?i:straße)|K", r"\X", r"\R|\b"]
    regex = {"Regex": chance.choice(expressions)}
    behaviour = chance.choice(["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", "Odd"])
    names = chance.choice([["[CLS]", 0], ["x", 511], ["", -1], ["<|start|>", 2**33], 5])
    charsmap = base64.b64encode(chance.choice([charsmap_bytes(), charsmap_bytes()[:-9], b"", b"\xff" * 40])).decode()
    tokens = sorted(tree["model"]["vocab"], key=str)[: chance.choice([5, 300])]
    scores = [-1.0, 0, -1e308, 1e308, -5, chance.choice(SCALARS)]
    made: dict[str, list[dict[str, Any]]] = {
        "normalizer": [
            {"type": "Replace", "pattern": regex, "content": chance.choice(["", "b", "b" * 15])},
            {"type": "BertNormalizer", "clean_text": flag, "handle_chinese_chars": True,
             "lowercase": flag,
             "strip_accents": chance.choice([None, flag, 5])},
            {"type": "Precompiled", "precompiled_charsmap": chance.choice([charsmap, charsmap, 5, "?"])},
            {"type": "StripAccents"}, {"type": "Nmt"}, {"type": "ByteLevel"},
        ],
        "pre_tokenizer": [
            {"type": "Split", "pattern": regex, "behavior": behaviour, "invert": flag},
            {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False},
            {"type": "CharDelimiterSplit", "delimiter": chance.choice(["a", " ", "", "ab", 5])},
            {"type": "FixedLength", "length": chance.choice([number, -1, "x"])},
            {"type": "BertPreTokenizer"}, {"type": "UnicodeScripts"}, {"type": "Whitespace"},
        ],
        "decoder": [
            {"type": "WordPiece", "prefix": chance.choice(["##", "", 5]), "cleanup": flag},
            {"type": "BPEDecoder", "suffix": chance.choice(["</w>", "", "a"])},
            {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": chance.choice(["|", ""]), "cleanup": flag},
            {"type": "Replace", "pattern": regex, "content": "b" * 9},
        ],
        "post_processor": [
            {"type": "BertProcessing", "sep": names, "cls": ["x", 1]},
            {"type": "RobertaProcessing", "sep": ["x", 1], "cls": names, "trim_offsets": flag,
             "add_prefix_space": flag},
        ],
        "model": [
            {"type": "WordPiece", "vocab": tree["model"]["vocab"], "unk_token": chance.choice(["a", "nowhere"]),
             "continuing_subword_prefix": chance.choice(["##", ""]), "max_input_chars_per_word": number},
            {"type": "WordLevel", "vocab": tree["model"]["vocab"], "unk_token": chance.choice(["a", "nowhere"])},
            {"type": "Unigram", "unk_id": chance.choice([0, 1, None, number]), "byte_fallback": flag,
             "vocab": [[token, chance.choice(scores) if chance.random() < 0.01 else -5.0] for token in tokens]},
            tree["model"] | {"end_of_word_suffix": chance.choice(["</w>", "a", 5])},
            tree["model"] | {"continuing_subword_prefix": chance.choice(["##", "a", "Ġ"])},
        ],
    }  # fmt: skip
    stage = chance.choice(list(made))
    tree[stage] = chance.choice(made[stage])
    return f"{stage} = {json.dumps(tree[stage])[:300]}"


_JSON_DEEDS = (_part, _part, _part, _added, _vocabulary, value_anywhere, value_anywhere)


def tokenizer_apart(case: Case, chance: random.Random) -> None:
    tree = json.loads(byte_pair())
    case.done.append(_apart(tree, chance))
    if chance.random() < 0.3:
        case.done.append(chance.choice([_part, _added, value_anywhere])(tree, chance))
    case.files["tokenizer.json"] = json.dumps(tree).encode()


def tokenizer_json(case: Case, chance: random.Random) -> None:
    tree = json.loads(byte_pair())
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        case.done.append(chance.choice(_JSON_DEEDS)(tree, chance))
    case.files["tokenizer.json"], hurt = spelled(tree, chance)
    case.done.append(hurt)
