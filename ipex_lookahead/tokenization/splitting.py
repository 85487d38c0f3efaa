"""How text is split before byte-pair merging: the ways that models are known to have.

A splitting pattern is a regular expression, and a tokenizer file may bring any. They run on an engine that backtracks,
so a hostile one takes for ever; hence only these run in this process, which take time in proportion to the text. They
are the published patterns of the tokenizers in question, and their names those of ``tokenizer.ggml.pre`` in GGUF files,
whose meaning llama.cpp defines (``llama-vocab.cpp``). Where it writes a pattern in a simpler way than the model's own
tokenizer (letters' cases by the Latin alphabet alone, suffixes without the long s, digits in runs that DeepSeek's first
models cut), the model's own stands here.
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
    """Words cut where a capital follows a small letter."""
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
"""Of DeepSeek's first models and V2. White space at the end is published as ``\\s+$``, which takes the square of a
run's length; with line ends cut off before, both are the same."""
SEED = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + _SPACE
_HAN_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


@dataclass(frozen=True, slots=True)
class Splitting:
    """One way to split.

    Attributes:
        patterns: the first cuts the text into the pieces that it matches and those between; the others cut those.
        whole_words: a piece that is a token as it stands is not merged from its bytes (``ignore_merges``).
        compose: the text is brought to Unicode form C first.
        bos: whether a beginning-of-sequence token is added where the file does not say.
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
        ("mpt olmo", Splitting((GPT2,), compose=True)),  # both have GPT-NeoX's
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
        ("deepseek-llm", Splitting(DEEPSEEK)),
        ("deepseek-coder", Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, _DIGIT))),
        ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", Splitting((_DIGITS, _HAN_KANA, _DEEPSEEK3))),
    )
    for name in names.split()
}
"""Value of ``tokenizer.ggml.pre`` to what it means."""

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
"""A control token, its id, and the splitting of the vocabulary that has it there."""
_BY_ARCHITECTURE = {
    "command-r": "command-r", "cohere2": "command-r", "exaone": "exaone", "exaone4": "exaone4", "falcon": "falcon",
    "glm4": "glm4", "glm4moe": "glm4", "gpt-oss": "gpt-4o", "hunyuan-dense": "hunyuan-dense", "lfm2": "lfm2",
    "lfm2moe": "lfm2", "qwen2": "qwen2", "qwen2moe": "qwen2", "qwen2vl": "qwen2", "qwen3": "qwen2", "qwen3moe": "qwen2",
    "qwen3next": "qwen2", "qwen3vl": "qwen2", "qwen3vlmoe": "qwen2", "qwen35": "qwen35", "qwen35moe": "qwen35",
    "seed_oss": "seed-coder", "starcoder2": "starcoder",
}  # fmt: skip
"""``general.architecture`` of families whose models have one tokenizer."""
_CODE_TOKENS = range(49_000, 50_000)
"""Sizes of the vocabularies of StarCoder and its successors (SmolLM, Granite code); token 0 is their end of a text."""


def implied_splitting(architecture: object, tokens: Sequence[str]) -> str | None:
    """Return the name of the splitting that a file without ``tokenizer.ggml.pre`` must mean; None where nothing tells.

    Args:
        architecture: ``general.architecture``.
        tokens: the vocabulary.
    """
    if isinstance(architecture, str) and (known := _BY_ARCHITECTURE.get(architecture)) is not None:
        return known
    if architecture == "stablelm":  # the first ones have GPT-NeoX's vocabulary
        return "stablelm2" if len(tokens) > 100_000 else None
    if tokens and tokens[0] == _END and len(tokens) in _CODE_TOKENS:
        return "smollm"
    return next((name for token, i, name in _BY_TOKEN if i < len(tokens) and tokens[i] == token), None)


KNOWN_PATTERNS = frozenset(pattern for splitting in SPLITTINGS.values() for pattern in splitting.patterns)
"""The regular expressions that run in this process where a ``tokenizer.json`` spells them."""
