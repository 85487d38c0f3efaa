"""YAML of a few lines, from anybody: plain values, or an error; never much more memory or time than the file's size."""

from __future__ import annotations

from os import PathLike
from typing import Any

from ipex_lookahead.errors import LookaheadError, ModelFormatError
from ipex_lookahead.files.safe_json import read_file

MOST_BYTES = 64 << 10
"""Of a file: the largest preset has 2 KiB, and PyYAML takes a second for a hundred."""


def load_yaml(path: str | PathLike[str], source: str = "", *, error: type[LookaheadError]) -> Any:
    """The value that a file holds. Raises ``error``, which names ``source`` or else the path, for anything else.

    Beside what YAML does not allow, that is: aliases, whose copies of copies (``<<: [*a, *a]``) may be any number, keys
    that are there twice, and files of more than ``MOST_BYTES``.
    """
    import yaml

    source = source or str(path)
    try:
        text = read_file(path, MOST_BYTES).decode("utf-8-sig")
    except ModelFormatError as wrong:
        raise error(f"{source}: {wrong.problem}") from None
    except UnicodeDecodeError as wrong:
        raise error(f"{source}: is no YAML: byte {wrong.start} is not UTF-8") from None
    try:
        return yaml.load(text, _loader())
    except Exception as wrong:  # tags may ask for what a text is not (!!int ""), and PyYAML does not look
        raise error(f"{source}: is no YAML: {' '.join(str(wrong).split())[:200]}") from None


def _loader() -> Any:
    import yaml

    class Plain(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.get_event()
                raise yaml.composer.ComposerError(
                    None, None, f"*{event.anchor}: aliases are not read", event.start_mark
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            found = super().construct_mapping(node, deep)
            if len(found) < len(node.value):
                raise yaml.constructor.ConstructorError(None, None, "a key is there twice", node.start_mark)
            return found

    return Plain
