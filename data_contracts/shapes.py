"""Shapes of the JSON that a text column may hold; a contract names one (`customProperties: json`).

`texts` -> dict[str, str] -> parser that refuses anything else
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from data_contracts.gates import Gate
from data_contracts.records import Answer, Check, Limits, Origin, Sampling, ToolCall, Turn

_Checks = tuple[Check, ...]
_Count = Annotated[int, Field(ge=0)]

SHAPES: dict[str, Any] = {
    "object": dict[str, Any],
    "texts": dict[str, str],
    "texts_or_null": dict[str, str | None],
    "numbers": dict[str, float],
    "counts": dict[str, _Count],
    "pair": tuple[_Count, _Count],
    "messages": list[dict[str, Any]],
    "message": dict[str, Any],
    "checks": _Checks,
    "some_checks": Annotated[_Checks, Field(min_length=1)],
    "some_texts": Annotated[dict[str, str], Field(min_length=1)],
    "limits": Limits,
    "origin": Origin,
    "sampling": Sampling,
    "calls": tuple[ToolCall, ...],
    "answers": tuple[Answer, ...],
    "turns": tuple[Turn, ...],
    "components": dict[str, dict[str, Any]],
    "gates": tuple[Gate, ...],
}


def parses(shape: str, text: str) -> bool:
    """Whether the text is strict JSON of that shape."""
    try:
        _parser(shape).validate_json(text, strict=True)
    except ValidationError:
        return False
    return True


@cache
def _parser(shape: str) -> TypeAdapter[Any]:
    return TypeAdapter(SHAPES[shape])
