"""Expectations on a frozen batch as a whole, made from the contract, run and shown by Great Expectations.

Contract -> ExpectationSuite; (table, frame, last accepted batches) -> ExpectationReport with its Data Docs page

`between` alone passes on an empty and on an all-null column: a row count and not-null stand beside it, always.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

os.environ.setdefault("GX_ANALYTICS_ENABLED", "False")  # read when the package is imported: a user's data stays here

import great_expectations as gx
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.expectations import (
    ExpectColumnMeanToBeBetween,
    ExpectColumnQuantileValuesToBeBetween,
    ExpectColumnValuesToBeBetween,
    ExpectColumnValuesToBeInSet,
    ExpectColumnValuesToBeUnique,
    ExpectColumnValuesToNotBeNull,
    ExpectTableColumnsToMatchSet,
    ExpectTableRowCountToBeBetween,
)
from great_expectations.render.renderer import ValidationResultsPageRenderer
from great_expectations.render.view import DefaultJinjaPageView

from data_contracts.batches import QUANTILES, Bounds, Statistics, bounds, measures_of
from data_contracts.contract import Contract, load_contract
from data_contracts.odcs import Column, Quality
from data_contracts.verdicts import ExpectationReport

if TYPE_CHECKING:
    import pandas as pd

LARGEST = sys.float_info.max


def expectation_suite(contract: Contract) -> gx.ExpectationSuite:
    """The suite of one contract: row count, the set of columns, and what each critical data element must be."""
    suite = _suite(f"{contract.name} {contract.version}")
    suite.add_expectation(ExpectTableRowCountToBeBetween(min_value=contract.minimum_rows))
    names = [column.name for column in contract.columns]
    suite.add_expectation(ExpectTableColumnsToMatchSet(column_set=names, exact_match=True))
    for column in contract.columns:
        if column.critical_data_element:
            for expectation in _of_column(column):
                suite.add_expectation(expectation)
    return suite


def across_suite(contract: Contract, before: Sequence[Statistics]) -> gx.ExpectationSuite:
    """What the contract expects of a batch beside those before; a figure that none of them has is not asked."""
    suite = _suite(f"{contract.name} {contract.version} across batches")
    for quality in contract.across:
        if (room := bounds(quality, before)) is not None:
            suite.add_expectation(_of_batch(quality, room))
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


def _of_batch(quality: Quality, room: Bounds) -> Any:
    assert quality.implementation is not None  # a check across batches has one
    wanted, measure = quality.implementation.expectation, quality.implementation.measure
    told: dict[str, Any] = {"meta": {"name": quality.name, "severity": quality.severity}, "notes": quality.description}
    if measure is None or wanted is None:
        return ExpectTableRowCountToBeBetween(min_value=max(1, round(room.low)), max_value=round(room.high), **told)
    if wanted == "mean":
        return ExpectColumnMeanToBeBetween(column=measure, min_value=room.low, max_value=room.high, **told)
    ranges = {"quantiles": [QUANTILES[wanted]], "value_ranges": [[room.low, room.high]]}
    return ExpectColumnQuantileValuesToBeBetween(column=measure, quantile_ranges=ranges, **told)


def evaluate(table: str, frame: pd.DataFrame, before: Sequence[Statistics]) -> ExpectationReport:
    """Run the table's suites over the frame; what failed is named `column: expectation` or as in the contract."""
    contract = load_contract(table)
    results = [_run(table, frame, contract.expectations())]
    beside = across_suite(contract, before)
    if beside.expectations and len(frame):
        results.append(_run(f"{table} across", measures_of(contract, frame), beside))
    outcomes = [outcome for result in results for outcome in result.results]
    missed = [(_severity(outcome), _name(outcome)) for outcome in outcomes if not outcome.success]
    return ExpectationReport(
        table,
        failed=sorted(name for severity, name in missed if severity != "warning"),
        evaluated=len(outcomes),
        rows=len(frame),
        noted=tuple(sorted(name for severity, name in missed if severity == "warning")),
        pages=tuple(_page(result) for result in results),
    )


def _suite(name: str) -> gx.ExpectationSuite:
    _context()  # a suite takes no expectation before there is one
    return gx.ExpectationSuite(name=name)


def _run(asset: str, frame: pd.DataFrame, suite: gx.ExpectationSuite) -> Any:
    batch = _whole_frame(asset).get_batch(batch_parameters={"dataframe": frame})
    return batch.validate(suite, result_format="BASIC")


def _severity(outcome: Any) -> str:
    return (outcome.expectation_config.meta or {}).get("severity", "critical")


def _name(outcome: Any) -> str:
    config = outcome.expectation_config
    named: str | None = (config.meta or {}).get("name")
    return named or f"{config.kwargs.get('column', 'table')}: {config.type}"


def _page(result: Any) -> str:
    """The result as a page of Data Docs."""
    html: str = DefaultJinjaPageView().render(ValidationResultsPageRenderer().render(result))
    return html


@cache
def _context() -> Any:
    """One in-memory context a process: making one for each batch would cost more than the checks."""
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context.data_sources.add_pandas("frames")


@cache
def _whole_frame(asset: str) -> Any:
    return _context().add_dataframe_asset(asset).add_batch_definition_whole_dataframe("all")
