"""infra/alerts.yaml and the dashboard: expressions parse, and every metric in them is one that something exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from data_contracts.gates import Verdict
from flows.exporter import Pipeline, registry_of
from tasks.canary.gateway.metrics import Metrics
from tasks.drift.episodes import Entry, Episode, Window, append_entry
from tasks.drift.folder import DriftFolder

OTHERS = {"up": {"job"}, "vllm:kv_cache_usage_perc": set(), "vllm:num_requests_waiting": set()}
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds."""

GROUPS = yaml.safe_load(Path("infra/alerts.yaml").read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
DASHBOARD = json.loads(Path("infra/dashboards/ratchet.json").read_text())
PANELS = {
    f"{panel['id']}{target['refId']}": target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
}
NOTES = {note["name"]: note["expr"] for note in DASHBOARD["annotations"]["list"]}
EXPRESSIONS = {**{rule.get("alert") or rule["record"]: rule["expr"] for rule in RULES}, **PANELS, **NOTES}


def exported() -> dict[str, set[str]]:
    """Names and labels of everything that rules and panels may use."""
    pipeline = {metric.name: set(metric._labelnames) for metric in Pipeline(Path("nowhere")).collect()}  # type: ignore[attr-defined]
    gateway = {
        name: set(collector._labelnames) | ({"le"} if name.endswith("_bucket") else set())  # type: ignore[attr-defined]
        for collector, names in Metrics().registry._collector_to_names.items()
        for name in names
    }
    recorded = {rule["record"]: {"release", "arm"} for rule in RULES if "record" in rule}
    return {**gateway, **OTHERS, **pipeline, **recorded}


def selectors(expression: Any) -> Iterator[Any]:
    """The vector selectors of a parsed expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector", "selector"):
        if (inner := getattr(expression, name, None)) is not None and not isinstance(inner, str):
            yield from selectors(inner)
    for inner in getattr(expression, "args", None) or []:
        yield from selectors(inner)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_parses_and_its_metrics_exist(name: str) -> None:
    parsed = promql_parser.parse(EXPRESSIONS[name].replace("$__rate_interval", "5m"))
    found, known = list(selectors(parsed)), exported()
    assert found
    for selector in found:
        assert selector.name in known, f"nothing exports {selector.name}"
        used = {matcher.name for matcher in selector.matchers.matchers}
        assert used <= known[selector.name] | SCRAPED, f"{selector.name} has no {used - known[selector.name]}"


@pytest.mark.parametrize("rule", [rule for rule in RULES if "alert" in rule], ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"].keys() == {"summary", "remedy"}
    labels = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    known = set().union(*exported().values()) | SCRAPED
    assert labels <= known


def test_names_are_unique_and_panels_do_not_overlap() -> None:
    names = [rule.get("alert") or rule["record"] for rule in RULES]
    assert len(names) == len(set(names))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells


def test_the_exporter_tells_the_pipelines_facts(tmp_path: Path) -> None:
    run = tmp_path / "smoke-1"
    run.mkdir()
    (run / "run.json").write_text('{"id": "smoke-1", "state": "held", "changed": "2026-01-01T00:00:00+00:00"}')
    drift = tmp_path / "service" / "agent" / "drift"
    drift.mkdir(parents=True)
    end = datetime(2026, 1, 2, tzinfo=UTC)
    window = Window(id="0", source="gateway", release=3, start=end, end=end, sessions=9, verdict=Verdict.FAIL)
    opened = Episode(id="e", release=3, windows=("0",), checks=("success",), opened=end)
    append_entry(DriftFolder(drift).ledger, Entry(window=window, opened=opened))
    journal = tmp_path / "registry" / "agent.jsonl"
    journal.parent.mkdir()
    move = {
        "id": "m",
        "kind": "promote",
        "from_version": None,
        "to_version": 3,
        "who": "w",
        "why": "y",
        "at": "2026-01-01T00:00:00+00:00",
    }
    lines = [{"event": "intent", "written": "-", **move}, {"event": "done", "written": "-", "id": "m"}]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = registry_of(tmp_path)
    assert told.get_sample_value("ratchet_runs", {"state": "held"}) == 1
    assert told.get_sample_value("ratchet_champion_version", {"agent": "agent"}) == 3
    assert told.get_sample_value("ratchet_champion_since_timestamp_seconds", {"agent": "agent"}) == 1767225600
    assert told.get_sample_value("ratchet_moves_unfinished", {"agent": "agent"}) == 0
    assert told.get_sample_value("ratchet_drift_windows", {"agent": "agent", "verdict": "FAIL"}) == 1
    assert told.get_sample_value("ratchet_drift_episode_open", {"agent": "agent"}) == 1
    with journal.open("a") as more:
        more.write(json.dumps({"event": "intent", "written": "-", **move, "id": "n", "to_version": 4}) + "\n")
    assert told.get_sample_value("ratchet_moves_unfinished", {"agent": "agent"}) == 1
    assert told.get_sample_value("ratchet_champion_version", {"agent": "agent"}) == 3
