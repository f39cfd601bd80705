"""The release gate against figures worked out by hand, and the first champion on a real registry."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from data_contracts.gates import GateHeld, Verdict
from data_contracts.records import Sampling, Trajectory
from models.registry import Registry
from models.release import Bundle, file_digest
from tasks.release.config import ReleaseConfig
from tasks.release.publish import (
    bootstrap_champion,
    code_revision,
    outcomes_by_problem,
    paired_gain,
    publish_candidate,
    release_gate,
)

CONFIG = ReleaseConfig()


def outcomes(*values: float | None) -> dict[str, float | None]:
    return {f"p{number}": value for number, value in enumerate(values)}


def table(wins: int, losses: int, ties: int) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Champion and candidate that differ on wins + losses problems."""
    return outcomes(*[0.0] * wins, *[1.0] * losses, *[1.0] * ties), outcomes(
        *[1.0] * wins, *[0.0] * losses, *[1.0] * ties
    )


def test_paired_gain_by_hand() -> None:
    # 12 wins, 4 losses, 84 ties; with the pseudo-pairs n + 2 = 102, mean 8/102, mean square 17/102
    measured = paired_gain(*table(12, 4, 84))
    assert measured is not None
    centre = 8 / 102
    half = 1.98373 * math.sqrt((17 / 102 - centre**2) / 101)  # Student's t, 101 degrees of freedom
    assert measured.gain == pytest.approx(0.08)
    assert measured.low == pytest.approx(centre - half, abs=1e-5)
    assert measured.high == pytest.approx(centre + half, abs=1e-5)
    assert (measured.pairs, measured.better, measured.worse) == (100, 12, 4)


@pytest.mark.parametrize(
    ("wins", "losses", "ties", "verdict"),
    [
        (30, 5, 65, Verdict.PASS),
        (12, 4, 84, Verdict.FAIL),
        (5, 30, 65, Verdict.FAIL),
        (0, 0, 100, Verdict.FAIL),
        (2, 0, 98, Verdict.FAIL),
        (100, 0, 0, Verdict.PASS),
        (30, 0, 0, Verdict.INCONCLUSIVE),
        (0, 0, 0, Verdict.INCONCLUSIVE),
    ],
)
def test_gate_passes_only_above_the_lower_end(wins: int, losses: int, ties: int, verdict: Verdict) -> None:
    gate = release_gate(*table(wins, losses, ties), CONFIG)
    assert gate.verdict is verdict, gate.reason
    assert gate.evidence["pairs"] == wins + losses + ties


def test_gate_asks_for_the_configured_gain() -> None:
    champion, candidate = table(30, 5, 65)  # +25 points, interval about +15 to +35
    assert release_gate(champion, candidate, ReleaseConfig(min_gain=0.10)).verdict is Verdict.PASS
    assert release_gate(champion, candidate, ReleaseConfig(min_gain=0.20)).verdict is Verdict.FAIL


def test_missing_pairs_are_inconclusive_never_a_pass() -> None:
    champion, candidate = table(80, 0, 20)
    lost = {key: value for number, (key, value) in enumerate(candidate.items()) if number % 5}
    assert release_gate(champion, lost, CONFIG).verdict is Verdict.INCONCLUSIVE
    for nothing in (None, math.nan):
        unscored = {key: value if key in lost else nothing for key, value in candidate.items()}
        gate = release_gate(champion, unscored, CONFIG)
        assert (gate.verdict, gate.evidence["pairs"], gate.evidence["problems"]) == (Verdict.INCONCLUSIVE, 80, 100)
    few_lost = {key: value for number, (key, value) in enumerate(candidate.items()) if number % 20}
    assert release_gate(champion, few_lost, CONFIG).verdict is Verdict.PASS
    other = {f"other-{key}": value for key, value in candidate.items()}
    assert release_gate(champion, other, CONFIG).verdict is Verdict.INCONCLUSIVE


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60))
def test_interval_holds_its_centre_and_swaps_sign(pairs: list[tuple[float, float]]) -> None:
    one, two = outcomes(*[a for a, _ in pairs]), outcomes(*[b for _, b in pairs])
    there, back = paired_gain(one, two), paired_gain(two, one)
    assert there is not None and back is not None
    assert -1 <= there.low <= there.high <= 1
    assert there.low == pytest.approx(-back.high) and there.gain == pytest.approx(-back.gain)


def a_trajectory(problem: str, status: str, outcome: bool | None, index: int = 0) -> Trajectory:
    values: dict[str, Any] = {"status": status, "outcome": outcome, "rollout_index": index, "problem_id": problem}
    return Trajectory(
        id=f"{problem}-{index}", run_id="r", iteration=0, horizon="short", group_id=problem, policy_version="policy-1",
        policy_digest="d", sampling=Sampling(), turns=(), prompt_ids=[1], sampled_tokens=0, context_tokens=1, **values,
    )  # fmt: skip


def test_outcomes_leave_out_what_says_nothing_about_the_policy() -> None:
    trajectories = [
        a_trajectory("a", "completed", True, 0),
        a_trajectory("a", "out_of_turns", False, 1),
        a_trajectory("a", "sandbox_error", None, 2),
        a_trajectory("b", "verifier_error", None),
        a_trajectory("c", "completed", None),
    ]
    assert outcomes_by_problem(trajectories) == {"a": 0.5, "b": None, "c": None}


def a_bundle(folder: Path, mark: str) -> Bundle:
    for part in ("base", mark):
        (folder / part).mkdir(exist_ok=True)
        (folder / part / "model.safetensors").write_text(part)
    return Bundle(
        run_id="run-1", base_path=folder / "base", base_digest="base-digest", policy_path=folder / mark,
        policy_version=mark, policy_digest=f"digest of {mark}",
    )  # fmt: skip


def test_first_champion_then_a_candidate_that_must_pass(tmp_path: Path) -> None:
    registry = Registry(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlartifacts", CONFIG.name)
    first = bootstrap_champion(registry, a_bundle(tmp_path, "policy-00000"))
    assert registry.champion() == first and first.policy_version == "policy-00000" and first.reward_path is None
    again = bootstrap_champion(registry, a_bundle(tmp_path, "policy-00001"))
    assert again == first and len(registry.releases()) == 1

    candidate = a_bundle(tmp_path, "policy-00002")
    with pytest.raises(GateHeld, match=r"release\.gain"):
        publish_candidate(registry, candidate, [release_gate(*table(0, 0, 100), CONFIG)])
    assert len(registry.releases()) == 1
    good = release_gate(*table(30, 5, 65), CONFIG)
    release = publish_candidate(registry, candidate, [good])
    assert publish_candidate(registry, candidate, [good]).version == release.version == 2
    assert release.manifest.evidence == (good,)
    assert release.versions == {"base": 1, "policy": 2}
    assert registry.champion() == first, "publishing moves nothing"

    from tasks.release import steps

    assert steps.judge.fn(*table(30, 5, 65), CONFIG) == good
    assert steps.publish.fn(registry, candidate, [good]).version == 2
    assert steps.bootstrap.fn(registry, candidate) == first
    assert steps.collect.fn(registry, CONFIG) == []


def test_config_refuses_what_it_does_not_know() -> None:
    for wrong in ({"name": "a/b"}, {"min_gain": 2}, {"minimum_pairs": 0}, {"minmum_pairs": 10}):
        with pytest.raises(ValidationError):
            ReleaseConfig(**wrong)  # type: ignore[arg-type]


def test_digest_and_revision(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert file_digest(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert code_revision(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for arguments in (["init", "-q"], ["add", "f"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *arguments], check=True)
    head = code_revision(tmp_path)
    assert len(head) == 40 and int(head, 16) > 0
    (tmp_path / "f").write_bytes(b"abcd")
    assert code_revision(tmp_path) == f"{head}+changes"
