"""How much of each reader of files the gates alone run: a table, and status 1 where one is below 90 % of its lines.

Called by ``make gates-coverage`` after the set-up. The ``coverage`` package goes into build/coverage, not into .venv.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "build" / "coverage"
LEAST = 90
GATES = [
    *("model_files", "family_files", "open_files", "text_files", "templates", "torch_numbers"),
    *("imatrix_files", "ipex_llm_folders", "quantized_folders", "yaml_files"),
]
READERS = [
    *(
        f"checkpoints/{name}.py"
        for name in (
            *("__init__", "base", "config_json", "files", "gguf", "gguf_config", "gguf_decoded"),
            *("gguf_parts", "gguf_reader", "imatrix", "license", "low_bit", "mxfp4_blocks", "placed"),
            *("awq", "bitsandbytes", "compressed_tensors", "gptq", "quantized", "quantized_layers"),
            *("ipex_llm", "ipex_llm_blocks", "ipex_llm_convert", "torch_pickle"),
            *("safetensors", "safetensors_reader"),
        )
    ),
    *(
        f"tokenization/{name}.py"
        for name in (
            *("byte_pair", "chat_template", "folder", "gguf", "growth", "pieces", "sentencepiece_model", "splitting"),
            *("text", "tokenizer_json"),
        )
    ),
    *(
        path.relative_to(ROOT / "ipex_lookahead").as_posix()
        for path in sorted((ROOT / "ipex_lookahead" / "architectures").rglob("*.py"))
    ),
    "config.py",
    "drafting/store.py",
    "engines/foreign.py",
    "files/safe_json.py",
    "files/safe_yaml.py",
    "formats/rules.py",
]
"""Modules that read untrusted bytes. Writers, and what only hands on what these have read, are not here; nor are the
processes of templates and of some tokenizers (tokenization/isolated, process, worker), which end without a count."""
SETTINGS = """
[run]
source_pkgs = ipex_lookahead
parallel = true
patch =
    _exit
    fork
"""


def run(*arguments, quiet=False):
    """``python -m coverage`` in this environment; its exit status."""
    settings = ["--rcfile", str(PACKAGE / "settings.ini")]
    path = os.pathsep.join([str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])])
    files = {"COVERAGE_FILE": str(PACKAGE / "data"), "PYTHONPATH": path}
    command = [sys.executable, "-m", "coverage", arguments[0], *settings, *arguments[1:]]
    out = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **files}, stdout=out, check=False).returncode


def main():
    """Measure and report; the exit status."""
    if not (PACKAGE / "coverage").is_dir():
        wanted = ["install", "--quiet", "--target", str(PACKAGE), "coverage>=7.10"]
        subprocess.run([sys.executable, "-m", "pip", *wanted], check=True)
    (PACKAGE / "settings.ini").write_text(SETTINGS)
    run("erase")
    if run("run", "-m", "pytest", *(f"tests/gates/test_{name}.py" for name in GATES), *sys.argv[1:]):
        return 1
    run("combine", "--quiet")
    readers = [f"ipex_lookahead/{name}" for name in READERS]
    if absent := [name for name in readers if not (ROOT / name).is_file()]:
        print(f"error: READERS in {Path(__file__).name} names what is not there: {', '.join(absent)}", file=sys.stderr)
        return 1
    run("report", "--show-missing", "--skip-empty", f"--include={','.join(readers)}")
    below = 0
    for name in readers:
        below += bool(run("report", f"--include={name}", f"--fail-under={LEAST}", quiet=True))
    print(f"{len(readers) - below} of {len(readers)} readers: at least {LEAST} % of their lines")
    return int(below > 0)


if __name__ == "__main__":
    sys.exit(main())
