"""Support of each request field, declared with the field: supported, ignored, without effect, or refused.

The tables of docs/api_fields.md are made from these declarations. An undeclared field is accepted where clients of
other servers send extra fields: at the top of a request, unless the server is strict, and in messages, because clients
return fields of earlier answers. The response header ``x-ignored-fields`` lists them. An undeclared field at any other
place is refused, with the nearest declared name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from ipex_lookahead.serving.failures import ApiError, refused

SUPPORTED, IGNORED, NO_EFFECT, REFUSED = "supported", "ignored", "no effect", "refused"
_SUPPORT, _ALLOWED = "x-support", "x-allowed"


def supported(said: str, default: Any = None, **limits: Any) -> Any:
    """Declare a field with the effect that the API specifies."""
    return Field(default, description=said, json_schema_extra={_SUPPORT: SUPPORTED}, **limits)


def required(said: str, **limits: Any) -> Any:
    """Declare a required field with the effect that the API specifies."""
    return Field(description=said, json_schema_extra={_SUPPORT: SUPPORTED}, **limits)


def no_effect(said: str) -> Any:
    """Declare a field that is accepted with any value; ``said`` is the reason why it has no effect."""
    return Field(None, description=said, json_schema_extra={_SUPPORT: NO_EFFECT})


def ignored(said: str, *neutral: Any) -> Any:
    """Declare an unsupported field: ``x-ignored-fields`` lists it, unless its value is null or one of ``neutral``."""
    return Field(None, description=said, json_schema_extra={_SUPPORT: IGNORED, _ALLOWED: list(neutral)})


def refused_unless(said: str, *allowed: Any) -> Any:
    """Declare a field that is refused with status 400, unless its value is null or one of ``allowed``."""
    return Field(None, description=said, json_schema_extra={_SUPPORT: REFUSED, _ALLOWED: list(allowed)})


class Body(BaseModel):
    """A request: its declared fields are checked as they are; others are kept in ``model_extra``.

    One thing is converted: 2.0 is 2, as JSON and JavaScript have it, where whole numbers are meant.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())

    handed_back: ClassVar[bool] = False
    """Whether undeclared fields are allowed at this level."""

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, given: Any) -> Any:
        return {name: _whole(value) for name, value in given.items()} if isinstance(given, dict) else given

    def check(self, place: str = "", *, strict: bool = False) -> None:
        """Raise ApiError for the first field, here or further in, that is unknown or has an unsupported value.

        ``strict`` refuses what is not declared at the top of a request too.
        """
        for name, field in type(self).model_fields.items():
            value, own, extra = getattr(self, name), place + (field.alias or name), _extra(field)
            if extra[_SUPPORT] == REFUSED and value is not None and value not in extra[_ALLOWED]:
                may = " or ".join([*map(_spelled, extra[_ALLOWED]), "left out"])
                raise refused(own, f"{_spelled(value)} is not supported here ({field.description}); it may be {may}")
            if strict and not place and _is_ignored(field, value):
                said = f"{own}: it is not supported here ({field.description}); leave it out"
                raise ApiError(400, said, param=own, code="unknown_parameter")
            for where, inner in _bodies(own, value):
                inner.check(f"{where}.")
        if not self._lenient(place) or (strict and not place):
            only(self.model_extra or {}, [name for name, _, _ in support(type(self))], place)

    def ignored(self, place: str = "") -> list[str]:
        """Fields that are let pass, here and further in."""
        more = (self.model_extra or {}) if self._lenient(place) else {}
        found = [place + name for name, value in sorted(more.items()) if value is not None]
        for name, field in type(self).model_fields.items():
            if _is_ignored(field, getattr(self, name)):
                found.append(place + (field.alias or name))
            for where, inner in _bodies(place + name, getattr(self, name)):
                found += inner.ignored(f"{where}.")
        return found

    def _lenient(self, place: str) -> bool:
        return self.handed_back or not place


class AdapterScale(Body):
    """One of ``lora``, llama-server's list of adapters."""

    id: int = required("number of the adapter in `GET /lora-adapters`")
    scale: float = required("factor on its changes, from -100 to 100; 0 leaves it out")


def only(given: Mapping[str, Any], known: Collection[str], place: str = "") -> None:
    """Raise ApiError for a name that is not known, unless its value is null, which has no effect."""
    for name, value in given.items():
        if name not in known and value is not None:
            near = get_close_matches(name, known, 1) or sorted(known)
            hint = f"did you mean {near[0]!r}?" if len(near) == 1 else f"there is {', '.join(near)}"
            param = place + name[:100]
            raise ApiError(400, f"{param}: there is no such field; {hint}", param=param, code="unknown_parameter")


def support(model: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    """Yield (field name, support, description) in order."""
    for name, field in model.model_fields.items():
        extra = _extra(field)
        yield field.alias or name, str(extra[_SUPPORT]), field.description or ""


def _whole(value: Any) -> Any:
    """A float, or those of a list, that is a whole number as one."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return list(map(_whole, value)) if isinstance(value, list) else value


def _bodies(place: str, value: Any) -> Iterator[tuple[str, Body]]:
    """The bodies in a field's value, each with its place."""
    if isinstance(value, Body):
        yield place, value
    elif isinstance(value, list):
        yield from ((f"{place}.{at}", inner) for at, inner in enumerate(value) if isinstance(inner, Body))


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _is_ignored(field: FieldInfo, value: Any) -> bool:
    extra = _extra(field)
    return extra[_SUPPORT] == IGNORED and value is not None and value not in extra[_ALLOWED]


def _spelled(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
