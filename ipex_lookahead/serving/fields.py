"""What becomes of each field of a request, said where the field is declared: honoured, without effect, or refused.

The table in docs/serving.md is made of these. A field that is not declared at all is named in the answer's header
``x-ignored-fields``, and nothing else is done about it: clients send fields of other servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from ipex_lookahead.serving.failures import refused

HONOURED, NO_EFFECT, REFUSED = "honoured", "no effect", "refused"
_SUPPORT, _ALLOWED = "x-support", "x-allowed"


def honoured(said: str, default: Any = None, **limits: Any) -> Any:
    """A field that does what the API says."""
    return Field(default, description=said, json_schema_extra={_SUPPORT: HONOURED}, **limits)


def required(said: str, **limits: Any) -> Any:
    """The same, and it must be there."""
    return Field(description=said, json_schema_extra={_SUPPORT: HONOURED}, **limits)


def no_effect(said: str) -> Any:
    """A field that is accepted with any value; ``said`` is why nothing needs to be done."""
    return Field(None, description=said, json_schema_extra={_SUPPORT: NO_EFFECT})


def refused_unless(said: str, *allowed: Any) -> Any:
    """A field whose values, other than these and null, are a 400 that names it."""
    return Field(None, description=said, json_schema_extra={_SUPPORT: REFUSED, _ALLOWED: list(allowed)})


class Body(BaseModel):
    """A request: its declared fields are checked as they are, not converted; others are kept in ``model_extra``."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())

    def check(self) -> None:
        """Raise ApiError for the first field that asks for what cannot be done."""
        for name, allowed in _refusals(type(self)):
            value = getattr(self, name)
            if value is not None and value not in allowed:
                may = " or ".join([*map(_spelled, allowed), "left out"])
                raise refused(name, f"{_spelled(value)} is not supported here; it may be {may}")

    def ignored(self) -> list[str]:
        """Names of the fields that are not declared."""
        return sorted(self.model_extra or ())


def support(model: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    """(field, what becomes of it, what is said of it) in order."""
    for name, field in model.model_fields.items():
        extra = _extra(field)
        yield field.alias or name, str(extra[_SUPPORT]), field.description or ""


def _refusals(model: type[BaseModel]) -> Iterator[tuple[str, list[Any]]]:
    for name, field in model.model_fields.items():
        extra = _extra(field)
        if extra.get(_SUPPORT) == REFUSED:
            yield name, extra[_ALLOWED]


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _spelled(value: Any) -> str:
    import json

    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
