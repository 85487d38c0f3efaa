"""What older releases of the tokenizers library cannot do."""

from __future__ import annotations

import pytest

from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.tokenization import release


def test_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "TOKENIZERS", (0, 15))
    assert release.merges_for_json([("a", "b")]) == ["a b"]
    with pytest.raises(UnsupportedModelError, match="spaces"):
        release.merges_for_json([("a ", "b")])
    with pytest.raises(UnsupportedModelError, match="ignore_merges"):
        release.check_whole_words(True)
    release.check_whole_words(False)
    monkeypatch.setattr(release, "TOKENIZERS", (0, 22))
    assert release.merges_for_json([("a ", "b")]) == [("a ", "b")]
    release.check_whole_words(True)
