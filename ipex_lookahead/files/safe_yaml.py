"""Strict YAML for small untrusted files: plain values only, with memory and time limited by the file's size."""

from __future__ import annotations

from os import PathLike
from typing import Any

from ipex_lookahead.errors import LookaheadError, ModelFormatError
from ipex_lookahead.files.safe_json import read_file

MAX_BYTES = 64 << 10
"""Maximum file size: the largest preset has 2 KiB, and PyYAML takes a second for 100 KiB."""


def load_yaml(path: str | PathLike[str], source: str = "", *, error: type[LookaheadError]) -> Any:
    """Return the value in a file.

    Aliases (nested copies such as ``<<: [*a, *a]`` grow exponentially), duplicate keys and files of more than
    ``MAX_BYTES`` are errors.

    Args:
        path: the file.
        source: name of the file in errors; by default the path.
        error: class of all errors.
    """
    import yaml

    source = source or str(path)
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8-sig")
    except ModelFormatError as wrong:
        raise error(f"{source}: {wrong.problem}") from None
    except UnicodeDecodeError as wrong:
        raise error(f"{source}: is not YAML: byte {wrong.start} is not UTF-8") from None
    try:
        return yaml.load(text, _loader())
    except Exception as wrong:  # PyYAML raises many types, for example for the tag in !!int ""
        raise error(f"{source}: is not YAML: {' '.join(str(wrong).split())[:200]}") from None


def _loader() -> Any:
    import yaml

    class Plain(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.get_event()
                raise yaml.composer.ComposerError(
                    None, None, f"*{event.anchor}: aliases are not supported", event.start_mark
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            found = super().construct_mapping(node, deep)
            if len(found) < len(node.value):
                raise yaml.constructor.ConstructorError(None, None, "a key appears twice", node.start_mark)
            return found

    return Plain
