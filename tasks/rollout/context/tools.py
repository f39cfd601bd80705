"""Tools that a context policy offers: the model of their arguments gives the schema and checks the calls.

Tool(name, description, arguments) -> schema() for the prompt;  ToolCall -> read() -> arguments, or an error result
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import ValidationError

from data_contracts.records import Record, ToolCall
from tasks.rollout.environments.base import ToolResult

A = TypeVar("A", bound=Record)


class Tool(NamedTuple, Generic[A]):
    """A tool by name; `arguments` is the type that its arguments make."""

    name: str
    description: str
    arguments: type[A]

    def schema(self) -> dict[str, Any]:
        """The tool's JSON schema, in OpenAI's form."""
        made = self.arguments.model_json_schema()
        # Without the titles that pydantic adds: they would cost tokens in every prompt.
        properties = {
            name: {k: v for k, v in part.items() if k != "title"} for name, part in made["properties"].items()
        }
        parameters = {"type": "object", "properties": properties, "required": made["required"]}
        parameters["additionalProperties"] = False
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def read(self, call: ToolCall) -> A | ToolResult:
        """The arguments of a call, or what is wrong with them."""
        try:
            return self.arguments.model_validate(call.arguments, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            return refused(f"{self.name}: {where}: {first['msg'].lower()}")


def refused(why: str) -> ToolResult:
    """The result of a call that is the agent's mistake."""
    return ToolResult(f"error: {why}", failed=True)
