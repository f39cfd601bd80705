"""A run in one file: what was measured before and after, what each gate said, what was released, what it cost.

run folder -> summary.json, rows for tables
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from data_contracts.gates import Gate, Verdict
from data_contracts.quarantine import Quarantine
from data_contracts.records import HORIZONS
from data_contracts.store import read_json, read_jsonl, write_json
from flows.recipe import Recipe
from flows.stage import kept_gates
from tasks.curriculum.failures import FAILURES
from tasks.paths import RunFolder

PARTS = (*HORIZONS, "all")
STAGES = ("intake", "evaluation-before", "calibration", "evaluation-after", "release", "canary", "drift")


def write_summary(run: RunFolder, held: Gate | None) -> dict[str, Any]:
    """Write summary.json; `held` is the gate that stopped the run."""
    recipe = Recipe.model_validate_json(run.recipe.read_text())
    rows = learning_rows(run)
    success, greedy = _success(run, "sampled"), _success(run, "greedy")
    summary = {
        "run": run.id,
        "recipe": recipe.name,
        "seed": recipe.seed,
        "state": "held" if held else "finished",
        "held": held.model_dump(mode="json") if held else None,
        "mode": "sampled" if success["after"] or success["before"] else "greedy",
        "temperature": recipe.evaluation.temperature,
        "success": success if success["after"] or success["before"] else greedy,
        "success_greedy": greedy,
        "gates": [gate.model_dump(mode="json") for gate in all_gates(run)],
        "release": _release(run),
        "iterations": len(rows),
        "rollouts": _rollouts(run, rows),
        "seconds": _seconds(run),
        "tokens": _tokens(run, rows),
        "quarantine": Quarantine(run.quarantine).counts(),
    }
    write_json(run.summary, summary)
    return summary


def learning_rows(run: RunFolder) -> list[dict[str, Any]]:
    """The metrics of every iteration that is done, in order."""
    done = sorted(run.root.glob("iterations/*/metrics.json"))
    return [{"iteration": int(path.parent.name), **read_json(path)} for path in done]


def failure_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many rollouts failed in which way, a row an iteration; nothing of iterations that did not count them."""
    kinds = [f"failures.{kind}" for kind in FAILURES]
    counted = [row for row in rows if kinds[0] in row]
    return [
        {"iteration": row["iteration"], **{name.partition(".")[2].replace("_", " "): row[name] for name in kinds}}
        for row in counted
    ]


def learning_note(run: RunFolder, start: int) -> str:
    """Verified success of the training rollouts since iteration `start`, by horizon."""
    rows = [row for row in learning_rows(run) if row["iteration"] >= start]
    rates = {horizon: _weighted(rows, f"success.{horizon}", f"rollouts.{horizon}") for horizon in HORIZONS}
    return ", ".join(f"{horizon} {rate:.0%}" for horizon, rate in rates.items() if rate is not None)


def all_gates(run: RunFolder) -> list[Gate]:
    """Every gate of the run by stage; those of the iterations as one each, with the worst verdict."""
    of_stages = {stage: kept_gates(run.gates / f"{stage}.json") for stage in STAGES}
    early, late = STAGES[:2], STAGES[2:]
    return [
        *(gate for stage in early for gate in of_stages[stage]),
        *_iteration_gates(run),
        *_sentinel_gates(run),
        *(gate for stage in late if stage != "drift" for gate in of_stages[stage]),
        *_drift_gates(of_stages["drift"]),
    ]


def _drift_gates(gates: Sequence[Gate]) -> list[Gate]:
    """Those that could tell, and one for all that could not: a run's own sessions are few."""
    told = [gate for gate in gates if gate.verdict is not Verdict.INCONCLUSIVE]
    untold = [gate.name.removeprefix("drift_") for gate in gates if gate.verdict is Verdict.INCONCLUSIVE]
    if not untold:
        return told
    reason = f"{len(untold)} of {len(gates)} checks have too little to tell by: {', '.join(untold)}"
    return [*told, Gate(name="drift_untold", verdict=Verdict.INCONCLUSIVE, reason=reason)]


def sentinel_rows(run: RunFolder) -> list[dict[str, Any]]:
    """What the sentinel saw, for a table: gates that failed, terms that went off, rollouts that are named."""
    rows: list[dict[str, Any]] = []
    known: set[str] = set()
    for iteration, seen in _sentinel(run):
        failed = [gate for gate in seen["gates"] if gate["verdict"] == Verdict.FAIL]
        rows += [_seen(iteration, "", gate["name"], gate["reason"]) for gate in failed]
        off = {name: why for name, why in seen["off"].items() if name not in known}
        rows += [_seen(iteration, "", "switched off", f"{name}: {why}") for name, why in off.items()]
        known |= off.keys()
        rows += [_seen(iteration, one["trajectory_id"], one["rule"], one["quote"]) for one in seen["findings"]]
    return rows


def _seen(iteration: int, rollout: str, rule: str, seen: str) -> dict[str, Any]:
    return {"iteration": iteration, "rollout": rollout, "rule": rule, "seen": seen}


def _sentinel(run: RunFolder) -> list[tuple[int, dict[str, Any]]]:
    paths = sorted(run.root.glob("iterations/*/sentinel.json"))
    return [(int(path.parent.name), read_json(path)) for path in paths]


def _sentinel_gates(run: RunFolder) -> list[Gate]:
    """Each of the sentinel's gates once: the worst where one failed, else the last, since the first had no windows."""
    found: dict[str, list[tuple[int, Gate]]] = defaultdict(list)
    for iteration, seen in _sentinel(run):
        for gate in seen["gates"]:
            found[gate["name"]].append((iteration, Gate.model_validate(gate)))
    failed = {name: any(gate.verdict is Verdict.FAIL for _, gate in gates) for name, gates in found.items()}
    return [_worst(name, gates) if failed[name] else gates[-1][1] for name, gates in found.items()]


def _iteration_gates(run: RunFolder) -> list[Gate]:
    found: dict[str, list[tuple[int, Gate]]] = defaultdict(list)
    for path in sorted(run.root.glob("iterations/*/gates.json")):
        for gate in kept_gates(path):
            found[gate.name].append((int(path.parent.name), gate))
    return [_worst(name, gates) for name, gates in found.items()]


def _worst(name: str, gates: list[tuple[int, Gate]]) -> Gate:
    """One gate over all iterations: the worst verdict, with the evidence of the iteration that gave it."""
    rank = [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL]
    iteration, worst = max(gates, key=lambda item: (rank.index(item[1].verdict), _measured(item[1]), item[0]))
    passed = sum(gate.verdict is Verdict.PASS for _, gate in gates)
    reason = f"{passed} of {len(gates)} iterations; iteration {iteration}: {worst.reason}"
    evidence = worst.evidence | {"iterations": len(gates), "passed": passed, "iteration": iteration}
    return Gate(name=name, verdict=worst.verdict, reason=reason, evidence=evidence)


def _measured(gate: Gate) -> float:
    """How near a gate came to its limit, where that is a size: the largest mismatch."""
    value = gate.evidence.get("max_abs_diff")
    return float(value) if isinstance(value, int | float) else 0.0


def _success(run: RunFolder, mode: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for side in ("before", "after"):
        path = run.evaluation(side).report
        report = read_json(path).get(mode) if path.exists() else None
        parts = report["horizons"] if report else {}
        found[side] = {name: _figures(parts[name]) for name in PARTS if name in parts}
    return found


def _figures(part: dict[str, Any]) -> dict[str, Any]:
    return {
        "rate": part["rate"],
        "n": part["n"],
        "interval": [part["low"], part["high"]],
        "problems": part["problems"],
        "excluded": sum(part["excluded"].values()),
        "training_reward": part["training_reward"],
    }


def _release(run: RunFolder) -> dict[str, Any] | None:
    """What was published, and whether it serves."""
    if not run.release.exists():
        return None
    published: dict[str, Any] = read_json(run.release)
    trial = kept_gates(run.gates / "canary.json")
    promoted = bool(trial) and trial[0].verdict is Verdict.PASS
    return published | {"promoted": promoted, "canary": trial[0].evidence["action"] if trial else "not run"}


def _rollouts(run: RunFolder, rows: list[dict[str, Any]]) -> dict[str, int]:
    evaluated = {side: _count_lines(run, side) for side in ("before", "after", "champion")}
    return {
        "training": sum(row["rollouts.all"] for row in rows),
        "unscorable": sum(row["rollouts.unscorable"] for row in rows),
        "evaluation": sum(evaluated.values()),
        "canary": len(_sessions(run)),
    }


def _count_lines(run: RunFolder, side: str) -> int:
    import pyarrow.parquet as pq

    path = run.evaluation(side).trajectories
    return int(pq.ParquetFile(path).metadata.num_rows) if path.exists() else 0


def _tokens(run: RunFolder, rows: list[dict[str, Any]]) -> dict[str, int]:
    evaluated = sum(_column_sum(run, side) for side in ("before", "after", "champion"))
    training = sum(row["tokens.sampled"] for row in rows)
    live = sum(session["tokens"] for session in _sessions(run))
    return {
        "sampled": training + evaluated + live,
        "sampled_for_training": training,
        "trained": sum(row["training.tokens"] for row in rows),
    }


def _column_sum(run: RunFolder, side: str) -> int:
    import pyarrow.parquet as pq

    path = run.evaluation(side).trajectories
    return sum(pq.read_table(path, columns=["sampled_tokens"])["sampled_tokens"].to_pylist()) if path.exists() else 0


def _sessions(run: RunFolder) -> list[dict[str, Any]]:
    """Live sessions, each once."""
    return list({row["session"]: row for row in read_jsonl(run.canary / "sessions.jsonl").rows}.values())


def _seconds(run: RunFolder) -> dict[str, float]:
    """Seconds per stage; a stage that a kill made run twice counts with its last time."""
    last = {(line["stage"], line["iteration"]): line["seconds"] for line in read_jsonl(run.seconds).rows}
    total: Counter[str] = Counter()
    for (stage, _), seconds in last.items():
        total[stage] += seconds
    return {stage: round(seconds, 2) for stage, seconds in total.items()}


def _weighted(rows: Iterable[dict[str, Any]], value: str, weight: str) -> float | None:
    pairs = [(row[value], row[weight]) for row in rows if row.get(value) is not None]
    total = sum(n for _, n in pairs)
    return sum(rate * n for rate, n in pairs) / total if total else None
