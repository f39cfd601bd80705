"""Data contracts: one ODCS 3.1 YAML file a table, the only source of every check.

contracts/<table>.odcs.yaml -> Contract -> Arrow schema (store), pandera schema (rows), GX suite (frozen batch), rules
"""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import pyarrow as pa
import yaml
from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from data_contracts.errors import UserError
from data_contracts.records import Problem, Record, Segment, Trajectory
from data_contracts.rules import Rule, rule_named

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from pandera.pandas import DataFrameSchema

FOLDER = Path(__file__).parent / "contracts"
RECORDS: dict[str, type[Record]] = {"problems": Problem, "trajectories": Trajectory, "segments": Segment}
"""The record that a row of a table makes."""
ARROW_TYPES = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
}


class _Node(Record):
    """A node of the YAML: ODCS spells keys in camelCase; an unknown key is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class TypeOptions(_Node):
    """Bounds on a value (`logicalTypeOptions`)."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    min_length: int | None = None
    pattern: str | None = None
    format: Literal["json"] | None = None
    min_items: int | None = None


class Implementation(_Node):
    """The Python function of a custom rule, and the other tables it looks at."""

    function: str = Field(pattern=r"^data_contracts\.rules\.[a-z]\w*$")
    tables: tuple[str, ...] = ()


class Quality(_Node):
    """One quality rule: a `library` metric of the standard, or a `custom` one: a function of `data_contracts.rules`."""

    type: Literal["library", "custom"] = "library"
    name: str | None = None
    description: str = Field(min_length=1)
    dimension: Literal["accuracy", "completeness", "conformity", "consistency", "uniqueness"]
    severity: Literal["error"] = "error"
    metric: Literal["rowCount", "invalidValues", "duplicateValues"] | None = None
    arguments: dict[str, list[str]] = Field(default={})
    must_be: float | None = None
    must_be_greater_or_equal_to: int | None = None
    engine: Literal["python"] | None = None
    implementation: Implementation | None = None

    @model_validator(mode="after")
    def _library_or_custom(self) -> Self:
        if (self.type == "library") is (self.metric is None):
            raise ValueError("a library rule, and no other, has a metric")
        if (self.type == "custom") is (self.engine is None or self.implementation is None):
            raise ValueError("a custom rule, and no other, has an engine and an implementation")
        if self.implementation and self.implementation.function != f"data_contracts.rules.{self.name}":
            raise ValueError(f"the rule {self.name!r} must be named as its function")
        if self.metric in ("invalidValues", "duplicateValues") and self.must_be != 0:
            raise ValueError(f"{self.metric} is checked row by row: write mustBe: 0")
        return self


class Item(_Node):
    """What an array holds."""

    logical_type: Literal["string", "integer", "number", "array"]
    logical_type_options: TypeOptions = TypeOptions()
    items: Item | None = None


class Column(_Node):
    """One property of the schema."""

    name: str
    description: str = Field(min_length=1)
    logical_type: Literal["string", "integer", "number", "boolean", "array"]
    physical_type: str
    required: bool = False
    unique: bool = False
    primary_key: bool = False
    primary_key_position: int = -1
    critical_data_element: bool = Field(default=False, description="also expected of the frozen batch as a whole")
    logical_type_options: TypeOptions = TypeOptions()
    items: Item | None = None
    quality: tuple[Quality, ...] = ()

    @property
    def valid_values(self) -> list[str] | None:
        """The closed set of values, or None where any value goes."""
        return next((q.arguments["validValues"] for q in self.quality if q.metric == "invalidValues"), None)

    @property
    def is_json(self) -> bool:
        """Whether the column holds a nested value as JSON text."""
        return self.logical_type_options.format == "json"

    @property
    def arrow(self) -> pa.Field:
        """The Parquet column."""
        return pa.field(self.name, _arrow_type(self.physical_type), nullable=not self.required)


class _Table(_Node):
    name: str
    logical_type: Literal["object"]
    physical_type: Literal["table"]
    description: str
    properties: tuple[Column, ...] = Field(min_length=1)
    quality: tuple[Quality, ...] = ()


class _Description(_Node):
    purpose: str
    usage: str
    limitations: str | None = None


class Contract(_Node):
    """What producer and consumer of one table agreed on; `name` is the table's name."""

    api_version: Literal["v3.1.0"]
    kind: Literal["DataContract"]
    id: str
    name: str
    version: str = Field(pattern=r"^\d+\.\d+\.\d+$")
    status: Literal["draft", "active", "deprecated"]
    description: _Description
    schema_: tuple[_Table] = Field(alias="schema")

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        if self.name != self.schema_[0].name:
            raise ValueError(f"the contract {self.name!r} must describe the table of that name")
        return self

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in their order."""
        return self.schema_[0].properties

    @property
    def key(self) -> list[str]:
        """Names of the columns that together name a row."""
        parts = [column for column in self.columns if column.primary_key]
        return [column.name for column in sorted(parts, key=lambda column: column.primary_key_position)]

    @property
    def minimum_rows(self) -> int:
        """The least number of rows of a usable table."""
        counts = (q.must_be_greater_or_equal_to for q in self.schema_[0].quality if q.metric == "rowCount")
        return max((count for count in counts if count is not None), default=1)

    @property
    def unique_together(self) -> list[str]:
        """Columns whose combination occurs once."""
        found = (q.arguments["properties"] for q in self.schema_[0].quality if q.metric == "duplicateValues")
        return next(found, [])

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The cross-field rules in the order they are asked."""
        return tuple(
            rule_named(q.name or "", q.implementation.tables, q.description)
            for q in self.schema_[0].quality
            if q.implementation is not None
        )

    def arrow(self) -> pa.Schema:
        """The Parquet schema, marked with the contract's name and version."""
        return pa.schema([column.arrow for column in self.columns], {"contract": f"{self.name} {self.version}"})

    def pandera(self) -> DataFrameSchema:
        """Row and column checks: strict, nothing coerced, finite numbers only."""
        from data_contracts.columns import pandera_schema

        return pandera_schema(self)

    def expectations(self) -> ExpectationSuite:
        """What the frozen batch as a whole must satisfy, as a Great Expectations suite."""
        from data_contracts.suites import expectation_suite

        return expectation_suite(self)


@cache
def load_contract(table: str) -> Contract:
    """Read `contracts/<table>.odcs.yaml`; an unknown table or a key the loader does not act on is a UserError."""
    path = FOLDER / f"{table}.odcs.yaml"
    if not path.is_file():
        known = sorted(file.name.removesuffix(".odcs.yaml") for file in FOLDER.glob("*.odcs.yaml"))
        raise UserError(f"there is no data contract {table!r} in {FOLDER}: use one of {', '.join(known)}")
    return parse_contract(path)


def parse_contract(path: Path) -> Contract:
    """The contract in `path`, with its rules resolved; whatever does not hold is a UserError naming file and key."""
    try:
        contract = Contract.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        _ = contract.rules, contract.arrow()
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML ({error}): mend the file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where}: {first['msg']}: mend the contract") from error
    except LookupError as error:
        raise UserError(f"{path}: {error.args[0]}: mend the contract") from error
    return contract


def _arrow_type(text: str) -> pa.DataType:
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(_arrow_type(text[5:-1]))
    if text not in ARROW_TYPES:
        raise LookupError(f"physicalType {text!r} is unknown, use list<...> or one of {', '.join(ARROW_TYPES)}")
    return ARROW_TYPES[text]
