"""The known patterns that split a text before byte-pair merging.

A tokenizer file may have any regular expression as a pattern. The engine backtracks, so a malicious pattern may not
terminate; therefore only these patterns, which take linear time, run in this process. They are the published patterns
of the tokenizers, with the names of ``tokenizer.ggml.pre`` in GGUF files (``llama-vocab.cpp`` in llama.cpp). llama.cpp
simplifies some of them (upper and lower case for Latin letters only, suffixes without the long s, runs of digits that
DeepSeek's first models split); this file has the original patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACE = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACE
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
QWEN2 = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL
QWEN35 = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(suffixes: str, digits: str) -> str:
    """Return a pattern that splits words before an upper-case letter after a lower-case one."""
    words = (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}{lower}{suffixes}" for upper, lower in
             ((_UPPER + "*", _LOWER + "+"), (_UPPER + "+", _LOWER + "*")))  # fmt: skip
    return "|".join(words) + rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _SPACE


TEKKEN = _cased("", r"\p{N}")
GPT4O = _cased(_SUFFIXES + "?", r"\p{N}{1,3}")
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGIT, _DIGITS = r"\p{N}", r"\p{N}{1,3}"
_HAN = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ"
    "\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ"
    "Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK = (
    r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"(?<!\s)\s++$", _HAN, _DIGIT,
)  # fmt: skip
"""DeepSeek's first models and V2. The published pattern for white space at the end, ``\\s+$``, takes quadratic time; it
is equivalent after the split at line breaks."""
SEED = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + _SPACE
_FIRST_DIGITS = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})++(?!\p{N}))"
"""The first one or two of more than three digits, so that groups of three follow (Trinity). The published pattern looks
at all further digits for each group, which takes quadratic time; it is equivalent."""
_SCRIPTS = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff\u1780-\u17ff"
    r"\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
"""Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese. In llama.cpp the range of compatibility ideographs begins at
U+8C48, the composed form of its first."""
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
"""Ling and Ring."""
MINICPM5 = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|" + _TAIL
_LINES = r"[^\n]+|[\n]+"
_NO_HAN = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_UPPER, _KIMI_LOWER = rf"[\p{{Lu}}\p{{Lt}}{_NO_HAN}", rf"[\p{{Ll}}{_NO_HAN}"
KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_SUFFIXES}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_SUFFIXES}?|{_DIGITS}|{_TAIL}"
)
_HAN_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


@dataclass(frozen=True, slots=True)
class Splitting:
    """A way to split text.

    Attributes:
        patterns: The first splits the text into matches and the text between; each further one splits the pieces.
        whole_words: A piece that is a token is not merged from its bytes (``ignore_merges``).
        compose: Normalize the text to Unicode form C first.
        bos: Default of ``add_bos_token``.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    compose: bool = False
    bos: bool = False


SPLITTINGS: dict[str, Splitting] = {
    name: splitting
    for names, splitting in (
        ("default", Splitting((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
        ("gpt-2 phi-2 exaone4 gigachat a.x-4.0 mellum jais trillion granite-docling", Splitting((GPT2,))),
        ("mpt olmo", Splitting((GPT2,), compose=True)),  # both are GPT-NeoX's
        ("smollm starcoder refact codeshell exaone minerva-7b mellum2", Splitting((_DIGIT, GPT2))),
        ("command-r", Splitting((_DIGIT, GPT2), compose=True)),
        ("falcon", Splitting((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"))),
        (
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
            Splitting((LLAMA3,), whole_words=True, bos=True),
        ),
        ("dbrx smaug-bpe chatglm-bpe", Splitting((LLAMA3,))),
        ("glm4 glm5", Splitting((LLAMA3,), whole_words=True)),
        ("qwen2 deepseek-r1-qwen kormo megrez", Splitting((QWEN2,), compose=True)),
        ("qwen35", Splitting((QWEN35,), compose=True)),
        ("stablelm2 hunyuan solar-open grok-2", Splitting((QWEN2,))),
        ("tekken", Splitting((TEKKEN,), whole_words=True, bos=True)),
        ("gpt-4o llama4 kanana2 minimax-m2", Splitting((GPT4O,))),
        ("seed-coder", Splitting((SEED,))),
        ("bailingmoe bailingmoe2 llada-moe", Splitting((BAILING,))),
        ("minicpm5", Splitting((_DIGITS, MINICPM5), whole_words=True)),
        ("laguna", Splitting((_LINES, QWEN2))),
        ("kimi-k2", Splitting((KIMI,), whole_words=True)),
        ("deepseek-llm", Splitting(DEEPSEEK)),
        ("deepseek-coder", Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, _DIGIT))),
        ("afmoe", Splitting((_FIRST_DIGITS, _DIGITS, _SCRIPTS, _DEEPSEEK3))),
        ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", Splitting((_DIGITS, _HAN_KANA, _DEEPSEEK3))),
    )
    for name in names.split()
}
"""Value of ``tokenizer.ggml.pre`` -> splitting."""

_BEGINNING, _END = "<｜begin▁of▁sentence｜>", "<|endoftext|>"
_BY_TOKEN: tuple[tuple[str, int, str], ...] = (
    (_END, 151643, "qwen2"),
    ("<｜end▁of▁sentence｜>", 151643, "deepseek-r1-qwen"),
    ("<|begin_of_text|>", 128000, "llama-bpe"),
    (_BEGINNING, 128000, "llama-bpe"),  # DeepSeek's distillations of Llama
    ("<|begin_of_text|>", 200000, "llama4"),
    (_BEGINNING, 0, "deepseek-v3"),
    (_BEGINNING, 100000, "deepseek-llm"),
    (_BEGINNING, 32013, "deepseek-coder"),
    ("[INST]", 3, "tekken"),
    (_END, 199999, "gpt-4o"),
    (_END, 100257, "dbrx"),
    (_END, 50256, "gpt-2"),
)
"""A control token, its id, and the splitting of vocabularies with that token at that id."""
_BY_ARCHITECTURE = {
    "bailingmoe2": "bailingmoe2", "laguna": "laguna",
    "command-r": "command-r", "cohere2": "command-r", "exaone": "exaone", "exaone4": "exaone4", "falcon": "falcon",
    "glm4": "glm4", "glm4moe": "glm4", "gpt-oss": "gpt-4o", "hunyuan-dense": "hunyuan-dense", "lfm2": "lfm2",
    "lfm2moe": "lfm2", "qwen2": "qwen2", "qwen2moe": "qwen2", "qwen2vl": "qwen2", "qwen3": "qwen2", "qwen3moe": "qwen2",
    "qwen3next": "qwen2", "qwen3vl": "qwen2", "qwen3vlmoe": "qwen2", "qwen35": "qwen35", "qwen35moe": "qwen35",
    "seed_oss": "seed-coder", "starcoder2": "starcoder",
}  # fmt: skip
"""``general.architecture`` -> splitting, for families with one tokenizer."""
_CODE_TOKENS = range(49_000, 50_000)
"""Vocabulary sizes of StarCoder and its successors (SmolLM, Granite code); their token 0 ends a text."""


def implied_splitting(architecture: object, tokens: Sequence[str]) -> str | None:
    """Return the name of the splitting of a file without ``tokenizer.ggml.pre``, or None if it is unknown.

    Args:
        architecture: ``general.architecture``.
        tokens: The vocabulary.
    """
    if isinstance(architecture, str) and (known := _BY_ARCHITECTURE.get(architecture)) is not None:
        return known
    if architecture == "stablelm":  # early ones have GPT-NeoX's vocabulary
        return "stablelm2" if len(tokens) > 100_000 else None
    if tokens and tokens[0] == _END and len(tokens) in _CODE_TOKENS:
        return "smollm"
    return next((name for token, i, name in _BY_TOKEN if i < len(tokens) and tokens[i] == token), None)


KNOWN_PATTERNS = frozenset(pattern for splitting in SPLITTINGS.values() for pattern in splitting.patterns)
"""The regular expressions of a ``tokenizer.json`` that run in this process."""
