"""The public names. Removing or renaming one breaks people's programs: it must be on purpose."""

from __future__ import annotations

import subprocess
import sys

import ipex_lookahead
from ipex_lookahead import errors

PUBLIC = {
    "LLM",
    "AutoModelForCausalLM",
    "AutoModelForEmbedding",
    "AutoModelForImageTextToText",
    "LookaheadConfig",
    "LookaheadDecoding",
    "LookaheadError",
    "ModelFormatError",
    "UnsupportedModelError",
    "LowBitFormatError",
    "MissingPackageError",
    "InputError",
    "ContextLengthError",
    "EngineError",
    "BusyError",
    "CacheFileError",
    "MissingWeightError",
    "NonFiniteError",
    "OutOfMemoryError",
    "QueueFullError",
    "ServiceError",
    "DownloadError",
    "SaveError",
    "__version__",
    "optimize_model",
    "wrap",
}


def test_all_is_pinned():
    assert set(ipex_lookahead.__all__) == PUBLIC
    assert len(ipex_lookahead.__all__) == len(PUBLIC)
    for name in PUBLIC:
        assert getattr(ipex_lookahead, name) is not None


def test_dir_shows_the_public_names():
    """Also those that are imported only when they are asked for."""
    code = "import ipex_lookahead; print(*dir(ipex_lookahead))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(shown) == PUBLIC


def test_model_methods_are_there():
    for name in ("from_pretrained", "from_gguf", "load_low_bit"):
        assert callable(getattr(ipex_lookahead.AutoModelForCausalLM, name))


def test_every_error_is_public_and_of_one_tree():
    own = {n: e for n, e in vars(errors).items() if isinstance(e, type) and issubclass(e, Exception)}
    assert set(own) <= PUBLIC
    assert all(issubclass(e, errors.LookaheadError) for e in own.values())


def test_version_is_the_distributions():
    from importlib.metadata import PackageNotFoundError, version

    try:
        assert version("ipex-lookahead") == ipex_lookahead.__version__
    except PackageNotFoundError:  # run from the sources: then pyproject.toml says it
        from pathlib import Path

        text = (Path(ipex_lookahead.__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
        assert f'version = "{ipex_lookahead.__version__}"' in text


def test_importing_the_package_imports_nothing_large():
    """Torch never, and the engine with the first name that needs it: the command starts in milliseconds."""
    code = "import sys, ipex_lookahead; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
