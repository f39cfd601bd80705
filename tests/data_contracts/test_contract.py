"""The YAML is the only source: records, Parquet, pandera and Great Expectations follow it."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from typing import get_args

import pytest
import yaml

from data_contracts import rules
from data_contracts.contract import FOLDER, TABLES, load_contract, parse_contract
from data_contracts.errors import UserError
from data_contracts.measures import MEASURES
from data_contracts.records import HORIZONS, RECORDS, Status


@pytest.mark.parametrize(("table", "record"), RECORDS.items())
def test_a_contract_has_the_fields_of_its_record(table, record):
    contract = load_contract(table)
    fields = ["trajectory_id"] * (table == "turns") + list(record.model_fields)
    assert [column.name for column in contract.columns] == fields
    assert contract.arrow().names == fields
    assert list(contract.pandera().columns) == fields
    assert contract.arrow().metadata == {b"contract": f"{table} {contract.version}".encode()}


@pytest.mark.parametrize(("table", "record"), RECORDS.items())
def test_what_may_be_none_is_what_is_not_required(table, record):
    nullable = {name for name, field in record.model_fields.items() if type(None) in get_args(field.annotation)}
    assert {column.name for column in load_contract(table).columns if not column.required} == nullable


def test_closed_sets_are_those_of_the_records():
    columns = {column.name: column for column in load_contract("trajectories").columns}
    assert columns["horizon"].valid_values == list(HORIZONS)
    assert columns["status"].valid_values == list(Status.__args__)


@pytest.mark.parametrize("table", TABLES)
def test_the_yaml_says_what_the_standard_asks_for(table):
    document = yaml.safe_load((FOLDER / f"{table}.odcs.yaml").read_text())
    assert document["apiVersion"] == "v3.1.0"
    assert document["kind"] == "DataContract"
    assert {"id", "version", "status"} <= document.keys()
    (schema,) = document["schema"]
    assert all(item["description"] for item in (*schema["properties"], *schema["quality"]))


def test_every_rule_of_the_module_is_in_a_contract():
    public = {
        f"{module.name}.{name}"
        for module in pkgutil.iter_modules(rules.__path__)
        if not module.name.startswith("_")
        for name, value in vars(import_module(f"{rules.__name__}.{module.name}")).items()
        if inspect.isfunction(value) and value.__module__.endswith(module.name) and not name.startswith("_")
    }
    assert public == {f"{table}.{rule.name}" for table in TABLES for rule in load_contract(table).rules}


def test_every_measure_is_in_a_contract():
    used = {quality.implementation.measure for table in TABLES for quality in load_contract(table).across}
    assert used - {None} == MEASURES.keys()


def test_keys():
    assert load_contract("trajectories").key == ["id"]
    assert load_contract("segments").key == load_contract("segments").unique_together == ["trajectory_id", "index"]


def test_an_unknown_table_names_the_known():
    with pytest.raises(
        UserError, match=r"no data contract 'rollouts' .* use one of problems, trajectories, turns, segments"
    ):
        load_contract("rollouts")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("apiVersion: v3.1.0", "apiVersion: v2.0.0", "apiVersion: Input should be 'v3.1.0'"),
        ("required: true", "requird: true", "schema.0.properties.0.requird: Extra inputs"),
        (
            "rules.segments.lengths_equal}",
            "rules.segments.lengths_even}",
            "'lengths_equal' must be named as its function",
        ),
        ("lengths_equal", "lengths_even", "has no rule 'lengths_even'"),
        ("lengths_equal", "np", "Value error|has no rule|pattern"),
        ("measure: length", "measure: width", "has no measure 'width'"),
        ("severity: critical", "severity: error", "give the severity warning or critical"),
        (", tables: [trajectories]", "", "takes the tables \\['trajectories'\\], the contract gives \\[\\]"),
        ("list<int32>", "list<int99>", "physicalType 'int99' is unknown"),
        ("mustBe: 0", "mustBe: 1", "write mustBe: 0"),
        ("engine: python", "metric: rowCount", "a library rule, and no other, has a metric"),
        ("kind: DataContract", "kind: [", "not YAML"),
    ],
)
def test_a_contract_that_would_check_less_than_it_says_is_refused(tmp_path, old, new, message):
    text = (FOLDER / "segments.odcs.yaml").read_text()
    assert old in text
    path = tmp_path / "segments.odcs.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message) as error:
        parse_contract(path)
    assert str(path) in str(error.value)
    assert "mend the" in str(error.value)
