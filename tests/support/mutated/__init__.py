"""Files of text, mutated by somebody who knows their formats: tokenizers, settings, templates, generation, stores.

``case(number, seed)`` makes one, always the same; ``attempt(case, folder)`` says "loaded" or "refused", and raises
whatever is neither.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

from ipex_lookahead.checkpoints.generation_config import read_generation_config
from ipex_lookahead.drafting.store import Store, Stores
from ipex_lookahead.errors import InputError, LookaheadError
from ipex_lookahead.tokenization.chat_template import chat_template_of, render_chats
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.text import TextTokenizer
from tests.support.mutated.arrays import metadata, store
from tests.support.mutated.json_text import tokenizer_apart, tokenizer_json
from tests.support.mutated.piece_model import tokenizer_model
from tests.support.mutated.settings import generation, settings_files
from tests.support.mutated.sound import ROWS, SENTENCES, Case

TEXTS = ["", " ", *SENTENCES, "a" * 2000, "日本語 🙂 e\u0301\0\ufdfa <s>x</s>", " \n\t " * 40, "<|start|>user\n<|end|>"]
MESSAGES = [{"role": "user", "content": "a cat"}]
KINDS = {"json": 34, "apart": 4, "model": 26, "settings": 16, "gguf": 10, "generation": 5, "store": 5}
SLOW = 60
"""One in so many cases also renders a template, in a process of its own, or becomes a transformers tokenizer."""

_MAKERS: dict[str, Callable[[Case, random.Random], None]] = {
    "json": tokenizer_json,
    "apart": tokenizer_apart,
    "model": tokenizer_model,
    "settings": settings_files,
    "gguf": metadata,
    "generation": generation,
    "store": store,
}


def case(number: int, seed: int) -> Case:
    """The attack of that number."""
    chance = random.Random(f"{seed} {number}")
    made = Case(number, chance.choices(list(KINDS), list(KINDS.values()))[0], slow=number % SLOW == 0)
    _MAKERS[made.kind](made, chance)
    return made


def attempt(made: Case, folder: Path) -> str:
    """ "loaded" or "refused"; an AssertionError or whatever else was raised where it is neither."""
    for file in folder.iterdir():
        file.unlink()
    for name, data in made.files.items():
        (folder / name).write_bytes(data)
    try:
        _load(made, folder)
    except LookaheadError as error:
        if "panicked" in str(error):  # typed, but the file should have been refused before
            raise
        return "refused"
    return "loaded"


def _load(made: Case, folder: Path) -> None:
    if made.kind == "generation":
        read_generation_config(folder / "generation_config.json", ROWS)
    elif made.kind == "store":
        stores = Stores(ROWS)
        store = stores.get(str(folder / "store"))
        assert len(store) == sum(map(len, store.texts()))
        stores.add(str(folder / "store"), [[1, 2, 3]])
        stores.close()
        assert Store.open(folder / "store", ROWS).texts() == store.texts()
        small = Store.open(folder / "store", ROWS, capacity=16)
        small.add([5] * 10)
        assert small.texts()[-1] == [5] * 10
        assert len(small) <= 16
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
    for asked, for_tools in ((None, False), (None, True), ("default", False), ("{{ messages }}", False)):
        with contextlib.suppress(InputError):
            assert type(chat_template_of(tokenizer, asked, for_tools)) is str
    if slow:
        full = tokenizer.for_transformers()
        for text in TEXTS:
            assert full.decode(full.encode(text)) == tokenizer.decode(tokenizer.encode(text)), text
        if tokenizer.chat_template:
            template = tokenizer.chat_template
            source = template if isinstance(template, str) else next(iter(template.values()), "")
            for text in render_chats(source, [MESSAGES], {}):
                tokenizer.encode(text)
