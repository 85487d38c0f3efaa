"""What ipex-llm's examples for CPUs use of it, as facts: names, methods and keyword arguments; none of their code.

    python -m tests.migration.scan CLONE > tests/migration/examples.json

CLONE is a clone of github.com/intel/ipex-llm, bare or not. For each file of ``python/llm/example/CPU`` that imports
ipex-llm: what it imports from there, its calls of these names and of methods of what they return, each with the number
of positional arguments and the keyword arguments' values, where these are literals, and the formats that its own
command line offers. A value that is computed stands as ``{"computed": true}``. Beside them the environment variables
of its own that the package reads.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from typing import Any

FOLDER = "python/llm/example/CPU/"
THEIRS = ("ipex_llm", "bigdl")
COMPUTED = {"computed": True}


def main(clone: str) -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", clone, *arguments], capture_output=True, text=True, check=True).stdout

    commit = git("rev-parse", "HEAD").strip()
    paths = [p for p in git("ls-tree", "-r", "--name-only", "HEAD", FOLDER).splitlines() if p.endswith(".py")]
    found = {p.removeprefix(FOLDER): facts(git("show", f"HEAD:{p}")) for p in paths}
    examples = [{"path": path, **entry} for path, entry in found.items() if entry["imports"]]
    sources = git("grep", "-hE", "environ|getenv", "HEAD", "--", "python/llm/src/ipex_llm/*.py")
    variables = json.dumps(sorted(set(re.findall(r"[\"']((?:IPEX_LLM|BIGDL|KV_CACHE)_[A-Z0-9_]+)[\"']", sources))))
    lines = ",\n".join(json.dumps(example) for example in examples)
    print(f'{{"commit": "{commit}",\n"variables": {variables},\n"examples": [\n{lines}\n]}}')


def facts(source: str) -> dict[str, Any]:
    """Imports, calls and offered formats of one file."""
    tree = ast.parse(source)
    imports, names = _imports(tree)
    made = {**names, **_made_of(tree, names)}
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            parts = _dotted(node.func)
            if parts and parts[0] in made:
                calls.append(
                    {
                        "call": ".".join([made[parts[0]], *parts[1:]]),
                        "positional": len(node.args),
                        "keywords": {k.arg: _value(k.value) for k in node.keywords if k.arg},
                    }
                )
    return {"imports": sorted(set(imports)), "calls": calls, "formats": _formats(tree)}


def _imports(tree: ast.AST) -> tuple[list[str], dict[str, str]]:
    """``module:name`` of each import, and local name -> imported name."""
    imports: list[str] = []
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in THEIRS:
            for alias in node.names:
                imports.append(f"{node.module}:{alias.name}")
                names[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.Import):
            imports += [f"{alias.name}:" for alias in node.names if alias.name.split(".")[0] in THEIRS]
    return imports, names


def _made_of(tree: ast.AST, names: dict[str, str]) -> dict[str, str]:
    """Local name -> what made it: ``model`` -> ``<AutoModel.from_pretrained>``."""
    made: dict[str, str] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
            continue
        value = node.value
        while (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and isinstance(value.func.value, ast.Call)
        ):
            value = value.func.value  # X.from_pretrained(...).eval()
        parts = _dotted(value.func) if isinstance(value, ast.Call) else []
        if parts and parts[0] in names:
            made[node.targets[0].id] = f"<{'.'.join([names[parts[0]], *parts[1:]])}>"
    return made


def _dotted(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return [*before, node.attr]
    return []


def _value(node: ast.AST) -> Any:
    if _dotted(node)[:1] == ["torch"]:
        return ".".join(_dotted(node))
    try:
        return ast.literal_eval(node)
    except ValueError:
        return COMPUTED


def _formats(tree: ast.AST) -> list[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _value(node.args[0]) == "--low-bit":
            for keyword in node.keywords:
                if keyword.arg == "choices":
                    return list(_value(keyword.value))
    return []


if __name__ == "__main__":
    main(sys.argv[1])
