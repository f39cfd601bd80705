"""A change that breaks readers moves the version; files of earlier versions are migrated on read."""

from __future__ import annotations

import logging
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
import yaml

from data_contracts import migrations
from data_contracts.compatibility import changes, contract_at, refusal, versions
from data_contracts.contract import FOLDER, TABLES, Contract, load_contract
from data_contracts.errors import UserError
from data_contracts.store import read_segments, read_trajectories, write_segments, write_trajectories

SEGMENTS = (FOLDER / "segments.odcs.yaml").read_text()
NEVER_FALLS = next(each for each in SEGMENTS.split("      - type: custom\n") if "name: turn_index_never_falls" in each)
NEVER_FALLS = f"      - type: custom\n{NEVER_FALLS}"


def edited(table: str, version: str, *edits: tuple[str, str]) -> Contract:
    text = (FOLDER / f"{table}.odcs.yaml").read_text()
    text = text.replace(f"version: {load_contract(table).version}", f"version: {version}")
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return Contract.model_validate(yaml.safe_load(text))


@pytest.mark.parametrize("table", TABLES)
def test_the_committed_contract_is_its_version_in_the_history(table):
    """Fails when a contract was changed and its version was not."""
    *_, newest = versions(table)
    assert newest == load_contract(table), f"move the version of {table}, and copy the contract to contracts/history/"


@pytest.mark.parametrize("table", TABLES)
def test_every_version_says_what_changed(table):
    history = versions(table)
    assert [refusal(old, new) for old, new in pairwise(history)] == [None] * (len(history) - 1)


@pytest.mark.parametrize(
    ("edit", "weight", "what"),
    [
        (("- name: turn_index", "- name: turn"), "major", "column turn_index is gone"),
        (("physicalType: list<double>", "physicalType: list<int32>"), "major", "rollout_logprobs: physical_type"),
        (("        required: true\n", ""), "major", "trajectory_id may be null"),
        (("minimum: 0, maximum: 1}", "minimum: 0, maximum: 2}"), "major", "loss_mask: items differs"),
        (("logicalTypeOptions: {minItems: 1}", "logicalTypeOptions: {minItems: 0}"), "major", "token_ids: min_items"),
        ((NEVER_FALLS, ""), "major", "turn_index_never_falls is no longer checked"),
        (("absolute: 64", "absolute: 65"), "minor", "long_segments_near_last is checked differently"),
        (
            ("logicalTypeOptions: {minLength: 1}", "logicalTypeOptions: {minLength: 2}"),
            "minor",
            "trajectory_id: min_le",
        ),
        (("purpose: The per-token", "purpose: A per-token"), "patch", "wording"),
    ],
)
def test_a_change_needs_its_part_of_the_version(edit, weight, what):
    same, last = load_contract("segments"), {"major": "2.0.0", "minor": "1.4.0", "patch": "1.3.1"}[weight]
    found = changes(same, edited("segments", "1.3.0", edit))
    assert found[0].weight == weight
    assert any(what in change.what for change in found)
    assert f"at least {last}" in (refusal(same, edited("segments", "1.3.0", edit)) or "")
    assert refusal(same, edited("segments", last, edit)) is None


def test_values_that_readers_never_saw_break_them():
    same = load_contract("trajectories")
    more = edited("trajectories", "3.0.1", ("[short, medium, long]", "[short, medium, long, endless]"))
    assert changes(same, more)[0] == ("major", "horizon may be endless")
    assert "at least 4.0.0" in (refusal(same, more) or "")
    assert (
        changes(same, edited("trajectories", "3.0.0", ("[short, medium, long]", "[short, medium]")))[0].weight
        == "minor"
    )


def test_versions_go_forward_and_stay_with_their_table():
    same = load_contract("segments")
    assert refusal(same, same) is None
    assert "follows 1.3.0" in (refusal(same, edited("segments", "1.2.9")) or "")
    assert "two tables" in (refusal(same, load_contract("turns")) or "")
    assert contract_at("segments@1.0.0").version == "1.0.0"
    with pytest.raises(UserError, match=r"no version 9.0.0 of segments: use one of 1.0.0, 1.1.0, 1.2.0, 1.3.0"):
        contract_at("segments@9.0.0")


def older(path, table: str, version: str) -> None:
    """The file as that version would have written it."""
    schema = contract_at(f"{table}@{version}").arrow()
    pq.write_table(pq.read_table(path).select(schema.names).cast(schema).replace_schema_metadata(schema.metadata), path)


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.0"])
def test_segments_of_every_version_are_read(tmp_path, segments, version):
    path = tmp_path / "segments.parquet"
    write_segments(path, segments)
    older(path, "segments", version)
    assert ("experts" in pq.read_schema(path).names) is (version == "1.2.0")
    assert read_segments(path) == segments


@pytest.mark.parametrize("version", ["1.0.0", "2.2.0"])
def test_trajectories_of_every_version_are_read_and_that_is_said_once(tmp_path, trajectories, version, caplog):
    path = tmp_path / "trajectories.parquet"
    write_trajectories(path, trajectories)
    older(path, "trajectories", version)
    migrations._announce.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert read_trajectories(path) == trajectories
        assert read_trajectories(path) == trajectories
    assert caplog.messages == [f"trajectories of contract {version} are read as 3.0.0"]


def test_every_earlier_version_has_a_way_to_the_newest():
    for table in ("segments", "trajectories"):
        for contract in versions(table)[:-1]:
            version, steps = contract.version, 0
            while version != load_contract(table).version:
                version, _ = migrations.STEPS[table, version]
                steps += 1
            assert steps >= 1


def test_a_later_version_is_refused(tmp_path, segments):
    path = tmp_path / "segments.parquet"
    write_segments(path, segments)
    pq.write_table(pq.read_table(path).replace_schema_metadata({"contract": "segments 1.9.0"}), path)
    with pytest.raises(UserError, match=r"contract segments 1.3.0, it was written as segments 1.9.0: read it with the"):
        read_segments(path)
