"""Expectations on a frozen batch as a whole, made from the contract, run by Great Expectations.

Contract -> ExpectationSuite; (table, frame) -> ExpectationReport

`between` alone passes on an empty and on an all-null column: a row count and not-null stand beside it, always.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

os.environ.setdefault("GX_ANALYTICS_ENABLED", "False")  # read when the package is imported: a user's data stays here

import great_expectations as gx
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.expectations import (
    ExpectColumnValuesToBeBetween,
    ExpectColumnValuesToBeInSet,
    ExpectColumnValuesToBeUnique,
    ExpectColumnValuesToNotBeNull,
    ExpectTableColumnsToMatchSet,
    ExpectTableRowCountToBeBetween,
)

from data_contracts.contract import Column, Contract, load_contract

if TYPE_CHECKING:
    import pandas as pd

LARGEST = sys.float_info.max


def expectation_suite(contract: Contract) -> gx.ExpectationSuite:
    """The suite of one contract: row count, the set of columns, and what each critical data element must be."""
    suite = gx.ExpectationSuite(name=f"{contract.name} {contract.version}")
    suite.add_expectation(ExpectTableRowCountToBeBetween(min_value=contract.minimum_rows))
    names = [column.name for column in contract.columns]
    suite.add_expectation(ExpectTableColumnsToMatchSet(column_set=names, exact_match=True))
    for column in contract.columns:
        if column.critical_data_element:
            for expectation in _of_column(column):
                suite.add_expectation(expectation)
    return suite


def _of_column(column: Column) -> list[Any]:
    name, options = column.name, column.logical_type_options
    found: list[Any] = []
    if column.required:
        found.append(ExpectColumnValuesToNotBeNull(column=name))
    if column.unique:
        found.append(ExpectColumnValuesToBeUnique(column=name))
    if column.valid_values is not None:
        found.append(ExpectColumnValuesToBeInSet(column=name, value_set=column.valid_values))
    if column.logical_type in ("integer", "number"):
        # both ends always: -inf passes an upper bound that stands alone
        low = -LARGEST if options.minimum is None else options.minimum
        high = LARGEST if options.maximum is None else options.maximum
        found.append(ExpectColumnValuesToBeBetween(column=name, min_value=low, max_value=high))
    return found


def evaluate(table: str, frame: pd.DataFrame) -> tuple[list[str], int]:
    """Run the table's suite over the frame: (expectations that failed, `column: expectation`; how many were asked)."""
    batch_definition, suite = _prepared(table)
    batch = batch_definition.get_batch(batch_parameters={"dataframe": frame})
    result = batch.validate(suite, result_format="BOOLEAN_ONLY")
    failed = []
    for outcome in result.results:
        if not outcome.success:
            config = outcome.expectation_config
            failed.append(f"{config.kwargs.get('column', 'table')}: {config.type}")
    return sorted(failed), len(result.results)


@cache
def _context() -> Any:
    """One in-memory context a process: making one for each batch would cost more than the checks."""
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context.data_sources.add_pandas("frames")


@cache
def _prepared(table: str) -> tuple[Any, gx.ExpectationSuite]:
    asset = _context().add_dataframe_asset(table)
    return asset.add_batch_definition_whole_dataframe("all"), load_contract(table).expectations()
