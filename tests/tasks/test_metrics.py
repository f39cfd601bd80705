"""What an iteration's contexts were made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.records import Trajectory, Turn
from data_contracts.store import write_json, write_trajectories
from tasks.credit.branch import BranchReport
from tasks.curriculum.state import iteration_signal
from tasks.metrics import _branches, _context, iteration_metrics
from tasks.rollout.gate import mismatch_gate
from tasks.training.reports import MismatchReport, TrainReport


def turn(index: int, prompt: int, sampled: int, **changes: Any) -> Turn:
    return Turn(
        index=index, completion="", completion_tokens=sampled, prompt_tokens=prompt, finish_reason="stop",
        policy_digest="d", **changes,
    )  # fmt: skip


def test_context_metrics_count_tokens_once_and_broken_segments_once(
    make_trajectory: Callable[..., Trajectory],
) -> None:
    one = (
        turn(0, 10, 4, origins={"prompt": 10, "observed": 0, "own": 0, "policy": 0}),
        turn(1, 30, 6, cached_tokens=13, origins={"prompt": 10, "observed": 16, "own": 4, "policy": 0}),
    )
    two = (
        turn(0, 20, 5, purpose="summary", origins={"prompt": 20, "observed": 0, "own": 0, "policy": 0}),
        turn(1, 15, 2, segment=1, prompt_kept=False, origins={"prompt": 10, "observed": 0, "own": 0, "policy": 5}),
        turn(2, 25, 3, segment=1, prompt_kept=False, cached_tokens=16, origins={"prompt": 25}),
    )
    found = _context([make_trajectory("a", turns=one), make_trajectory("b", turns=two)])
    assert (found["context.prefilled"], found["context.cached"], found["context.generated"]) == (71, 29, 20)
    shares = [found[f"context.share.{name}"] for name in ("prompt", "observed", "own", "policy")]
    assert shares == pytest.approx([0.75, 0.16, 0.04, 0.05])
    assert (found["context.segments"], found["context.summaries"], found["context.violations"]) == (1.5, 1, 1)


def test_the_mismatch_is_told_by_position_by_turn_and_apart_from_staleness(
    make_trajectory: Callable[..., Trajectory], tmp_path: Path
) -> None:
    write_trajectories(tmp_path / "t.parquet", [make_trajectory()])
    stale = MismatchReport(tokens=3, mean_abs_diff=0.25)
    report = MismatchReport(
        tokens=9, mean_abs_diff=1e-7, max_abs_diff=1e-6, by_position=(1e-7, 4e-7), by_turn=(2e-7, None), staleness=stale
    )
    limits = {"mean_limit": 1e-3, "max_limit": 0.05}
    gate = mismatch_gate(report.mean_abs_diff, report.max_abs_diff, n=9, figures=report.figures(), **limits)
    trained = TrainReport(
        loss=0, grad_norm=0, clip_fraction=0, extreme_tokens=0, entropy=0, tokens=9, base_kl=None, steps=1, skipped=0,
        skipped_by_loss=0, idle_segments=0, mean_abs_diff=None, mean_weight=1, learning_rate=1, digest="d", seconds=0,
        cpu_seconds=0,
    )  # fmt: skip
    signal = iteration_signal([])
    found = iteration_metrics(tmp_path / "t.parquet", [gate], trained, signal, {"outcome": 1.0}, tmp_path / "none")
    mismatch = {name: value for name, value in found.items() if name.startswith("mismatch.") and value is not None}
    assert mismatch == {
        "mismatch.tokens": 9,
        "mismatch.mean_abs_diff": 1e-7,
        "mismatch.max_abs_diff": 1e-6,
        "mismatch.growth": pytest.approx(4.0),
        "mismatch.position.1": 1e-7,
        "mismatch.position.2": 4e-7,
        "mismatch.turn.0": 2e-7,
        "mismatch.stale.tokens": 3,
        "mismatch.stale.mean_abs_diff": 0.25,
    }


def test_no_turns_have_no_shares() -> None:
    found = _context([])
    assert (found["context.prefilled"], found["context.share.own"], found["context.segments"]) == (0, None, None)


def test_what_branches_cost_is_counted_beside_the_rollouts(tmp_path: Path) -> None:
    assert _branches(tmp_path / "report.json") == {"tokens.branched": 0}
    report = BranchReport(
        decisions={"edit": 2, "entropy": 1}, skipped={"gone": 1, "lost": 2}, sessions=10, lost=4, tokens=77, values={}
    )
    write_json(tmp_path / "report.json", report)
    assert _branches(tmp_path / "report.json") == {
        "tokens.branched": 77,
        "branches.sessions": 10,
        "branches.lost": 4,
        "branches.decisions": 3,
        "branches.skipped": 3,
    }
