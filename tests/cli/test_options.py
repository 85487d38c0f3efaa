"""Options from dataclasses: what a command's function gets, and where bounds and words come from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.main import cli
from ipex_lookahead.cli.options import Option, attribute_doc, option
from ipex_lookahead.config import LookaheadConfig, bounds_of
from ipex_lookahead.runtime.sampling_params import SamplingParams
from tests.cli.test_main import every_option


@dataclass
class Inner:
    window: int | None = option(like=LookaheadConfig)


@dataclass
class Outer:
    max_new_tokens: int = option("Most tokens.", 4, "-n", low=1, high=9)
    kind: Literal["a", "b"] = option("One of two.", "a")
    stop: tuple[str, ...] = option("Texts.", ())
    file: Path | None = option("A file.", None, "--to")
    inner: Inner = field(default_factory=Inner)
    raw: bool = option("A flag.", False)
    history: bool = option("A switch.", True)
    either: bool | None = option("A switch that may be left out.")


got: list[object] = []


@command("ipex-lookahead answer")
@click.argument("prompt")
def answer(prompt: str, outer: Outer, as_json: bool = option("JSON.", False, "--json")) -> None:
    got[:] = [prompt, outer, as_json]


def test_a_function_gets_the_objects():
    given = ["hi", "-n", "7", "--kind", "b", "--stop", "x", "--stop", "y", "--to", "f", "--window", "3", "--raw"]
    found = CliRunner().invoke(answer, [*given, "--no-history", "--no-either", "--json"])
    assert found.exit_code == 0, found.output
    outer = Outer(7, "b", ("x", "y"), Path("f"), Inner(3), raw=True, history=False, either=False)
    assert got == ["hi", outer, True]


def test_what_is_left_out_has_the_default_of_the_field():
    assert CliRunner().invoke(answer, ["hi"]).exit_code == 0
    assert got == ["hi", Outer(4, "a", (), None, Inner(None), raw=False, history=True, either=None), False]


@pytest.mark.parametrize("wrong", [["-n", "0"], ["-n", "10"], ["--window", "61"], ["--kind", "c"], ["--max", "x"]])
def test_what_a_field_may_not_be_is_refused(wrong):
    assert CliRunner().invoke(answer, ["hi", *wrong]).exit_code == 2


def test_help_comes_from_the_field_or_from_the_docstring_of_the_settings():
    said = {one.name: one.help for one in answer.params if isinstance(one, Option)}
    assert said["max_new_tokens"] == "Most tokens."
    assert said["window"] == "jacobi: columns of the window (the paper's W), 1 to 60."
    assert attribute_doc(LookaheadConfig, "draft_min_prob").startswith("A draft model ends its draft")
    assert attribute_doc(LookaheadConfig, "occurrence").endswith("as in transformers.")


def test_every_option_says_what_it_does():
    assert all(one.help for one in every_option() if isinstance(one, Option))


@pytest.mark.parametrize("name", [one.name for one in fields(SamplingParams) if "bounds" in one.metadata])
def test_the_command_the_chat_and_the_server_have_one_range(name):
    pytest.importorskip("fastapi")
    from ipex_lookahead.cli.slash import LIMITS
    from ipex_lookahead.serving.sampling import Sampled

    bounds = bounds_of(SamplingParams, name)
    assert LIMITS[name] == bounds
    generate = cli.get_command(click.Context(cli), "generate")
    kind = next(one.type for one in generate.params if one.name == name)
    assert (kind.min, kind.max, kind.min_open) == (bounds.low, bounds.high, bounds.above)
    limits = {key: value for rule in Sampled.model_fields[name].metadata for key, value in asdict(rule).items()}
    low = -1 if name in ("top_k", "seed") else bounds.low  # -1: vLLM's for all, and for a seed that is drawn
    assert limits == {
        key: value for key, value in (("gt" if bounds.above else "ge", low), ("le", bounds.high)) if value is not None
    }
