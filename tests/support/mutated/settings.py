"""The settings beside a tokenizer, chat templates among them; and the defaults for generation."""

from __future__ import annotations

import copy
import random
from typing import Any

from tests.support.mutated.json_text import spelled, value_anywhere
from tests.support.mutated.sound import CHATML, SCALARS, Case, byte_pair, pieces

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


def setting(settings: dict[str, Any], chance: random.Random) -> str:
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


def settings_files(case: Case, chance: random.Random) -> None:
    kind = chance.choice(["tokenizer.json", "tokenizer.model", "both"])
    if kind != "tokenizer.model":
        case.files["tokenizer.json"] = byte_pair().encode()
    if kind != "tokenizer.json":
        case.files["tokenizer.model"] = pieces(chance.choice(["bpe", "unigram"]))
    settings: dict[str, Any] = {"chat_template": CHATML}
    for _ in range(chance.choice([1, 1, 2])):
        case.done.append(setting(settings, chance))
    if chance.random() < 0.1:
        case.done.append(value_anywhere(settings, chance))
    name = chance.choice(["tokenizer_config.json", "tokenizer_config.json", "special_tokens_map.json"])
    case.files[name], hurt = spelled(settings, chance)
    case.done.append(f"{name} {hurt}")
    if chance.random() < 0.1:
        case.files["chat_template.jinja"] = chance.choice(TEMPLATES).encode() + chance.choice([b"", b"", b"\xff"])
        case.done.append(f"template {case.files['chat_template.jinja'][:60]!r}")


_GENERATION = ("temperature top_k top_p do_sample max_new_tokens max_length eos_token_id bos_token_id pad_token_id"
               " repetition_penalty min_p num_beams typical_p stop_strings watermarking_config to_diff_dict validate"
               " no_repeat_ngram_size cache_implementation compile_config suppress_tokens").split()  # fmt: skip


def generation(case: Case, chance: random.Random) -> None:
    settings: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "eos_token_id": [2]}
    for _ in range(chance.choice([1, 2, 3])):
        key = chance.choice(_GENERATION)
        settings[key] = copy.deepcopy(chance.choice([*SCALARS, 0.5, 2.0, 50, [0, 2], [0, 600], [1.0]]))
        case.done.append(f"{key} = {str(settings[key])[:60]!r}")
    case.files["generation_config.json"], hurt = spelled(settings, chance)
    case.done.append(hurt)
