"""Data contracts: one ODCS 3.1 YAML file a table, the only source of every check.

contracts/<table>.odcs.yaml -> Contract -> Arrow schema (store), pandera schema (rows), GX suite (frozen batch), rules
"""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import pyarrow as pa
import yaml
from pydantic import Field, ValidationError, model_validator

from data_contracts.errors import UserError
from data_contracts.measures import MEASURES
from data_contracts.odcs import Column, Description, Node, Quality, Table
from data_contracts.rules import Rule, rule_named

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from pandera.pandas import DataFrameSchema

FOLDER = Path(__file__).parent / "contracts"
HISTORY = FOLDER / "history"
"""Every version that files may be of, as `<table>-<version>.odcs.yaml`; what is committed beside it is the newest."""
SUFFIX = ".odcs.yaml"
TABLES = ("problems", "trajectories", "turns", "segments", "audit", "releases")


class Contract(Node):
    """What producer and consumer of one table agreed on; `name` is the table's name."""

    api_version: Literal["v3.1.0"]
    kind: Literal["DataContract"]
    id: str
    name: str
    version: str = Field(pattern=r"^\d+\.\d+\.\d+$")
    status: Literal["draft", "active", "deprecated"]
    description: Description
    schema_: tuple[Table] = Field(alias="schema")

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
    def quality(self) -> tuple[Quality, ...]:
        """What the table as a whole is asked."""
        return self.schema_[0].quality

    @property
    def key(self) -> list[str]:
        """Names of the columns that together name a row."""
        parts = [column for column in self.columns if column.primary_key]
        return [column.name for column in sorted(parts, key=lambda column: column.primary_key_position)]

    @property
    def minimum_rows(self) -> int:
        """The least number of rows of a usable table."""
        counts = (q.must_be_greater_or_equal_to for q in self.quality if q.metric == "rowCount")
        return max((count for count in counts if count is not None), default=1)

    @property
    def unique_together(self) -> list[str]:
        """Columns whose combination occurs once."""
        found = (q.arguments["properties"] for q in self.quality if q.metric == "duplicateValues")
        return next(found, [])

    @property
    def across(self) -> tuple[Quality, ...]:
        """What is expected of a batch beside the last accepted ones."""
        return tuple(q for q in self.quality if q.engine == "greatExpectations")

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures that batches are compared by."""
        found = {q.implementation.measure for q in self.across if q.implementation and q.implementation.measure}
        if unknown := found - MEASURES.keys():
            raise LookupError(f"data_contracts/measures.py has no measure {min(unknown)!r}")
        return tuple(sorted(found))

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The cross-field rules in the order they are asked."""
        return tuple(
            rule_named(q.implementation.function, q.implementation.tables, q.description)
            for q in self.quality
            if q.implementation is not None and q.implementation.function is not None
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
    path = FOLDER / f"{table}{SUFFIX}"
    if not path.is_file():
        raise UserError(f"there is no data contract {table!r} in {FOLDER}: use one of {', '.join(TABLES)}")
    return parse_contract(path)


def parse_contract(path: Path, *, resolved: bool = True) -> Contract:
    """The contract in `path`; whatever does not hold is a UserError naming file and key.

    `resolved=False`: an earlier version, whose rules may be gone.
    """
    try:
        contract = Contract.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        contract.arrow()
        if resolved:
            _ = contract.rules, contract.measures
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}): give the file of a contract") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML ({error}): mend the file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where}: {first['msg']}: mend the contract") from error
    except LookupError as error:
        raise UserError(f"{path}: {error.args[0]}: mend the contract") from error
    return contract
