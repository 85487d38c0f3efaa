"""A tokenizer in GGUF's metadata, and stores of outputs: files that are arrays of numbers."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
from typing import Any

from ipex_lookahead.tokenization.sentencepiece_model import read_model
from ipex_lookahead.tokenization.splitting import SPLITTINGS
from tests.support.mutated.piece_model import charsmap_changed
from tests.support.mutated.settings import TEMPLATES
from tests.support.mutated.sound import ROWS, SCALARS, Case, byte_pair, pieces

_ROLE_IDS = ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id")
_FLAGS = ("add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces")


def metadata(case: Case, chance: random.Random) -> None:
    if chance.random() < 0.5:
        model = json.loads(byte_pair())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        made = {"model": chance.choice(["gpt2", "gpt2", "gemma4"]), "pre": "gpt-2", "tokens": tokens, "merges": merges}
        made |= {"token_type": [3, 3] + [1] * (len(tokens) - 2), "bos_token_id": 0, "eos_token_id": 1}
    else:
        sound = read_model(pieces(chance.choice(["bpe", "rules"])), "sound")
        made = {"model": "llama", "tokens": [p.text for p in sound.pieces], "scores": [p.score for p in sound.pieces]}
        made |= {"token_type": [p.type for p in sound.pieces], "bos_token_id": 1, "eos_token_id": 2}
        if sound.precompiled_charsmap:
            octets = sound.precompiled_charsmap
            made["precompiled_charsmap"] = list(charsmap_changed(octets, chance) if chance.random() < 0.5 else octets)
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


def store(case: Case, chance: random.Random) -> None:
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
    if chance.random() < 0.05:
        data = b"" if chance.random() < 0.5 else data[:20]
    case.files["store"] = data
    case.done.append(deed)
