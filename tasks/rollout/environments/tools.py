"""Tools as JSON schemas, and the check of a call's arguments against them.

tools + call -> what is wrong with the call, "" where nothing is
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend

from data_contracts.records import ToolCall

# JSON Schema counts 2.0 as an integer; a tool that indexes by it would not
_WHOLE = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
_Validator = extend(Draft202012Validator, type_checker=_WHOLE)


def tool(name: str, description: str, required: Sequence[str] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's form that takes these properties and no others."""
    parameters = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def call_error(tools: Sequence[dict[str, Any]], call: ToolCall) -> str:
    """Why the call fits none of the tools, for the agent to read: `edit: line is integer`; empty where it fits."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if call.name not in schemas:
        return f"no tool {call.name!r}: there are {', '.join(schemas)}"
    error = best_match(_Validator(schemas[call.name]).iter_errors(call.arguments))
    return "" if error is None else _said(call.name, schemas[call.name], error)


def _said(name: str, schema: dict[str, Any], error: ValidationError) -> str:
    if not error.absolute_path:  # an argument that is missing or unknown
        return f"{name} takes {', '.join(schema.get('properties', {})) or 'no arguments'}"
    where = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "type":
        return f"{name}: {where} is {_either(error.validator_value)}"
    return f"{name}: {where}: {error.message[:120]}"


def _either(types: str | list[str]) -> str:
    return types if isinstance(types, str) else " or ".join(types)
