"""What may stand in a contract's YAML: the part of ODCS 3.1 that is acted on, and nothing else.

YAML node -> frozen model; a key that nothing would act on is refused
"""

from __future__ import annotations

from typing import Any, Literal, Self

import pyarrow as pa
from pydantic import ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from data_contracts.records import Record
from data_contracts.shapes import SHAPES

ARROW_TYPES = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


class Node(Record):
    """A node of the YAML: ODCS spells keys in camelCase."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class TypeOptions(Node):
    """Bounds on a value (`logicalTypeOptions`)."""

    minimum: float | None = None
    maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    min_items: int | None = None


class Property(Node):
    """A custom property of a column: `json` names the shape of the JSON it holds, `table` the contract of its rows."""

    property: Literal["json", "table"]
    value: str


class Implementation(Node):
    """The Python function of a rule and the other tables it looks at, or an expectation and its bounds.

    An expectation compares `measure` (a function of `data_contracts.measures`, one number a row) with the last accepted
    batches: it may differ from their median by `relative` of it or by `absolute`, whichever is more.
    """

    function: str | None = Field(default=None, pattern=r"^data_contracts\.rules\.[a-z]+\.[a-z]\w*$")
    tables: tuple[str, ...] = ()
    expectation: Literal["row_count", "mean", "median", "tenth", "ninetieth"] | None = None
    measure: str | None = None
    relative: float = Field(default=0.0, ge=0)
    absolute: float = Field(default=0.0, ge=0)


class Quality(Node):
    """A `library` metric of the standard, or a `custom` check: a Python rule a row, or an expectation across batches.

    `error` and `critical` hold, a `warning` is noted.
    """

    type: Literal["library", "custom"] = "library"
    name: str | None = None
    description: str = Field(min_length=1)
    dimension: Literal["accuracy", "completeness", "conformity", "consistency", "uniqueness", "timeliness"]
    severity: Literal["error", "critical", "warning"] = "error"
    metric: Literal["rowCount", "invalidValues", "duplicateValues"] | None = None
    arguments: dict[str, list[str]] = Field(default={})
    must_be: float | None = None
    must_be_greater_or_equal_to: int | None = None
    engine: Literal["python", "greatExpectations"] | None = None
    implementation: Implementation | None = None

    @model_validator(mode="after")
    def _library_or_custom(self) -> Self:
        if (self.type == "library") is (self.metric is None):
            raise ValueError("a library rule, and no other, has a metric")
        if (self.type == "custom") is (self.engine is None or self.implementation is None):
            raise ValueError("a custom rule, and no other, has an engine and an implementation")
        if self.metric in ("invalidValues", "duplicateValues") and self.must_be != 0:
            raise ValueError(f"{self.metric} is checked row by row: write mustBe: 0")
        return self

    @model_validator(mode="after")
    def _engine_fits(self) -> Self:
        if self.implementation is None:
            return self
        function, expectation = self.implementation.function, self.implementation.expectation
        if self.engine == "python" and (function is None or function.rpartition(".")[2] != self.name):
            raise ValueError(f"the rule {self.name!r} must be named as its function")
        if self.engine == "greatExpectations":
            if expectation is None or (self.implementation.measure is None) is (expectation != "row_count"):
                raise ValueError(f"{self.name!r} needs an expectation, and a measure unless it counts rows")
            if self.severity == "error":
                raise ValueError(f"{self.name!r} is about a batch: give the severity warning or critical")
        return self


class Item(Node):
    """What an array holds."""

    logical_type: Literal["string", "integer", "number", "array"]
    logical_type_options: TypeOptions = TypeOptions()
    items: Item | None = None


class Column(Node):
    """One property of the schema."""

    name: str
    description: str = Field(min_length=1)
    logical_type: Literal["string", "integer", "number", "boolean", "timestamp", "array"]
    physical_type: str
    required: bool = False
    unique: bool = False
    primary_key: bool = False
    primary_key_position: int = -1
    critical_data_element: bool = Field(default=False, description="also expected of the frozen batch as a whole")
    logical_type_options: TypeOptions = TypeOptions()
    custom_properties: tuple[Property, ...] = ()
    items: Item | None = None
    quality: tuple[Quality, ...] = ()

    @model_validator(mode="after")
    def _json_is_text(self) -> Self:
        if self.json_shape is not None and (self.logical_type != "string" or self.json_shape not in SHAPES):
            raise ValueError(f"json: {self.json_shape!r} must be a string column of one of {', '.join(SHAPES)}")
        return self

    @property
    def valid_values(self) -> list[str] | None:
        """The closed set of values, or None where any value goes."""
        return next((q.arguments["validValues"] for q in self.quality if q.metric == "invalidValues"), None)

    @property
    def json_shape(self) -> str | None:
        """Shape of the nested value that the column holds as JSON text; None where it holds none."""
        return self._custom("json")

    @property
    def rows_of(self) -> str | None:
        """The table whose rows the column's JSON array holds."""
        return self._custom("table")

    @property
    def arrow(self) -> pa.Field:
        """The Parquet column."""
        return pa.field(self.name, _arrow_type(self.physical_type), nullable=not self.required)

    def _custom(self, name: str) -> str | None:
        return next((each.value for each in self.custom_properties if each.property == name), None)


class Table(Node):
    """The one table of a contract."""

    name: str
    logical_type: Literal["object"]
    physical_type: Literal["table"]
    description: str
    properties: tuple[Column, ...] = Field(min_length=1)
    quality: tuple[Quality, ...] = ()


class Description(Node):
    """What a table is for."""

    purpose: str
    usage: str
    limitations: str | None = None


def _arrow_type(text: str) -> Any:
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(_arrow_type(text[5:-1]))
    if text not in ARROW_TYPES:
        raise LookupError(f"physicalType {text!r} is unknown, use list<...> or one of {', '.join(ARROW_TYPES)}")
    return ARROW_TYPES[text]
