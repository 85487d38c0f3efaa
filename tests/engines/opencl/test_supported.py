"""The list of what the kernels run: what is not on it is refused by name. Needs no OpenCL."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, make_dataclass, replace
from typing import Any

import pytest

from ipex_lookahead.architectures.spec import Activation, ImageInputs, Linear, ModelSpec, Norm, Tensor
from ipex_lookahead.engines.opencl.supported import AT_DEFAULT, RUN, check_spec, may_divide
from ipex_lookahead.errors import UnsupportedModelError
from tests.support.recurrences import recurrent_spec
from tests.support.specs import NAMED, make_spec, tensor

MIXTURE = make_spec(
    experts=[3, 0], used=[2, 0], tied=False, q_norm="head", k_norm="head", latent=[None, (24, 20, 8, 12, None)],
    per_layer=8, activation=[Activation("silu"), Activation("xielu")],
)  # fmt: skip
MIXTURE = replace(
    MIXTURE,
    layers=(*MIXTURE.layers, *recurrent_spec("delta", "mamba", "short").layers),
    images=ImageInputs(token=1, hidden=MIXTURE.hidden),
)
"""Every part that a description may have."""


def changed(part: Any, kind: type, change: Any) -> Any:
    """The description with every part of a kind replaced by what ``change`` makes of it."""
    if isinstance(part, tuple):
        return tuple(changed(one, kind, change) for one in part)
    if not is_dataclass(part) or isinstance(part, (Tensor, type)):
        return part
    inner = {one.name: changed(getattr(part, one.name), kind, change) for one in fields(part)}
    made = replace(part, **inner)
    return change(made) if type(part) is kind else made


def refused(spec: ModelSpec) -> str:
    with pytest.raises(UnsupportedModelError, match="which the OpenCL engine does not run") as caught:
        check_spec(spec)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMED)
def test_families_of_the_kernels_are_allowed(name: str) -> None:
    check_spec(make_spec(**NAMED[name]))


@pytest.mark.parametrize("kind", RUN, ids=lambda kind: kind.__name__)
def test_a_new_field_is_refused_by_name(kind: Any) -> None:
    """A field of any part, also at its default: only the tables say that kernels may pass it over."""
    new = make_dataclass(kind.__name__, [("made_up", int, 7)], bases=(kind,), frozen=True, kw_only=True)

    def more(part: Any) -> Any:
        return new(**{one.name: getattr(part, one.name) for one in fields(part)})

    assert f"{kind.__name__}.made_up" in refused(changed(MIXTURE, kind, more))


@pytest.mark.parametrize("kind", RUN, ids=lambda kind: kind.__name__)
def test_every_field_is_on_the_list_once(kind: Any) -> None:
    names = [one.name for one in fields(kind)]
    assert sorted(names) == sorted([*RUN[kind], *AT_DEFAULT.get(kind, {})])


FIELDS = [(kind, name) for kind, names in AT_DEFAULT.items() for name in names]
OTHERS: dict[str, Any] = {
    "norm": Norm(tensor("n", 64), 1e-5), "linear": Linear(tensor("w", 64, 64)), "tensor": tensor("t", 64),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_what_is_off_the_list_is_refused(kind: Any, name: str) -> None:
    """Whatever a field holds that is not its default: a number, a switch, or a part."""
    default: Any = next(one.default for one in fields(kind) if one.name == name)
    values = [not default] if isinstance(default, bool) else [default + 1] if default is not None else OTHERS.values()
    for value in values:
        other = changed(MIXTURE, kind, lambda part, value=value: replace(part, **{name: value}))
        assert AT_DEFAULT[kind][name] in refused(other)


def test_scores_and_layers_that_no_kernel_knows() -> None:
    assert "experts with the scores 'softplus'" in refused(make_spec(experts=3, used=2, scores="softplus"))
    mixed = make_spec(experts=3, used=2, gated=False)
    ((block, *_), experts) = mixed.layers, make_spec(experts=3, used=2).mixtures[0].experts
    some = replace(mixed.mixtures[0], experts=(experts[0], *mixed.mixtures[0].experts[1:]))
    assert "with and without a gate" in refused(replace(mixed, layers=(replace(block, feed_forward=some),)))
    assert "parameters in their" in refused(make_spec(experts=3, used=2, activation=Activation("xielu")))
    for norms in (
        {"layer_norm": "plain", "latent": (24, 20, 8, 12, None)},
        {"layer_norm": "plain", "router_multiplier": 2.0},
    ):
        assert "layer norms" in refused(make_spec(experts=3, used=2, shared_expert=70, **norms))


def test_layers_that_share_more_than_hidden_states_stay_together() -> None:
    shared = make_spec(layers=4, shared=[None, None, 1, 1])
    assert [may_divide(shared, layers) for layers in (1, 2, 3, 4)] == [False, False, True, True]
    inputs = make_spec(layers=2, per_layer=8)
    assert [may_divide(inputs, layers) for layers in (1, 2)] == [False, True]
    (block, *rest) = make_spec().layers
    made_up = make_dataclass("MadeUp", [("heads", int, 4)], frozen=True)
    assert "MadeUp layers" in refused(replace(make_spec(), layers=(replace(block, mixer=made_up()), *rest)))
