"""What ipex-llm has and this package has not: an import of it says what to use."""

from __future__ import annotations

import importlib

import pytest

import ipex_lookahead
from ipex_lookahead.hf.ipex_llm_names.absent import ABSENT_MODULES, ABSENT_NAMES


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in ABSENT_NAMES.items() for n in names])
def test_an_absent_name_is_an_import_error_with_a_sentence(module, name):
    theirs = module.replace("ipex_lookahead", "ipex_llm")
    with pytest.raises(ImportError, match=f"{theirs}.{name} is not in ipex-lookahead: .* .* ") as caught:
        exec(f"from {module} import {name}")
    assert caught.value.name == name


@pytest.mark.parametrize("module", ABSENT_MODULES)
def test_an_absent_module_is_an_import_error_with_a_sentence(module):
    for statement in (f"import {module}", f"from {module}.cpu.engine import Anything"):
        with pytest.raises(ImportError, match="ipex_llm.* is not in ipex-lookahead: .* .* "):
            exec(statement)


def test_who_looks_for_vllm_is_shown_the_server():
    with pytest.raises(ImportError, match="`ipex-lookahead serve` provides the OpenAI API"):
        exec("import ipex_lookahead.vllm")


def test_other_names_are_plain_attribute_errors():
    for module in ABSENT_NAMES:
        assert not hasattr(importlib.import_module(module), "no_such_name")


def test_star_gives_the_classes():
    found: dict[str, object] = {}
    exec("from ipex_lookahead.transformers import *", found)
    assert found["AutoModelForCausalLM"] is ipex_lookahead.AutoModelForCausalLM
    assert {name for name in found if name.startswith("AutoModel")} >= {"AutoModel", "AutoModelForSpeechSeq2Seq"}
    assert found["get_enable_ipex"]() is False


def test_optimize_model_is_one_function():
    from ipex_lookahead.hf.optimize import optimize_model

    assert ipex_lookahead.optimize_model is optimize_model
