"""Scoring and freezing as the flow does it: real sessions of the real engine, scored by the real worker."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.gates import Gate, Verdict
from data_contracts.problems import write_pack
from data_contracts.records import Sampling, Segment
from data_contracts.store import read_segments, write_segments, write_trajectories
from models.chat import Chat
from models.fingerprint import digest_folder
from models.policy import LoraSpec, init_adapter, load_base
from tasks.curriculum.generator import generate
from tasks.rollout.config import RolloutConfig
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.slot_engine import SlotEngine
from tasks.rollout.steps import Destination, Kept, Pass, gate_rollouts, sample_rollouts
from tasks.training.client import Trainer
from tasks.training.config import TrainingConfig
from tasks.training.packing import sampled_positions
from tasks.training.scores import read_scores
from tasks.training.steps import diagnose_mismatch, freeze_batch, score_segments

STARTER = Path(__file__).parents[3] / "models" / "starter"
VERSION = "policy-00001"
PASS, FAIL, INCONCLUSIVE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


@dataclass(frozen=True)
class Stage:
    """Sessions of an adapter that moved the starter model, and the trainer that holds the same adapter."""

    trainer: Trainer
    policy: Path
    out: Destination
    kept: Kept

    def gates(self, segments: list[Segment], folder: Path) -> tuple[Any, list[Gate]]:
        """The trainer's report on these segments, and the rollout gates that follow from it."""
        write_segments(folder / "segments.parquet", segments)
        report = score_segments.fn(self.trainer, folder / "segments.parquet", folder / "scores.parquet", 1)
        config, digests = RolloutConfig(), {self.policy.name: digest_folder(self.policy)}

        def explain() -> tuple[str, str]:
            paths = (folder / "segments.parquet", folder / "scores.parquet", self.policy)
            found = diagnose_mismatch.fn(self.trainer, *paths, 1, {"the base": None})
            return found.cause, found.sentence

        out = folder / "gates.json"
        return report, gate_rollouts.fn(self.out.rollouts, self.kept, digests, report, out, config, explain)


@pytest.fixture(scope="module")
def stage(moved: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    home = tmp_path_factory.mktemp("stage")
    with Trainer(STARTER, home, TrainingConfig(threads=1)) as trainer, WarmPool(2, "agent") as pool:
        base = load_base(STARTER)
        fresh = init_adapter(base, LoraSpec(r=4, alpha=8), home / "policy-00000", seed=0)
        policy = moved(base, fresh, home / VERSION, 0.02)
        engine = SlotEngine.from_base(base, slots=16)
        engine.load_adapter(VERSION, policy)
        bench = SimpleNamespace(engine=engine, chat=Chat(base.tokenizer), agent_pool=pool)
        problems = generate(5, "train", "short", 6)
        out = Destination(*(home / name for name in ("j.jsonl", "rollouts.parquet", "segments.parquet", "quarantine")))
        kept = sample_rollouts.fn(
            bench, write_pack(home, problems), [p.id for p in problems], out, RolloutConfig(capacity=16),
            [Pass(Sampling(seed=7), range(4))], policy_version=VERSION, iteration=0, run_id="run",
        )  # fmt: skip
        trainer.load(policy)
        yield Stage(trainer, policy, out, kept)


def after_a_tool(segment: Segment) -> list[int]:
    """Positions of the first token sampled after tokens that were inserted, but for the prompt."""
    firsts = [t for t in sampled_positions(segment) if not segment.loss_mask[t - 1]]
    return firsts[1:]


def test_the_trainer_gives_every_sampled_token_the_engines_logprob(stage: Stage, tmp_path: Path) -> None:
    segments = read_segments(stage.out.segments)
    report, gates = stage.gates(segments, tmp_path)
    gaps = {
        (i, t): abs(trained - segment.rollout_logprobs[t])
        for i, (segment, one) in enumerate(
            zip(segments, read_scores(tmp_path / "scores.parquet", segments), strict=True)
        )
        for t, trained in zip(sampled_positions(segment), one.logprobs, strict=True)
    }
    assert report.tokens == len(gaps) == sum(sum(s.loss_mask) for s in segments) > 300
    assert max(gaps.values()) < 1e-4
    tools = [(i, t) for i, segment in enumerate(segments) for t in after_a_tool(segment)]
    assert len(tools) >= 24
    assert max(gaps[place] for place in tools) < 1e-4
    assert report.max_abs_diff == pytest.approx(max(gaps.values()))
    assert report.max_after_gap < 1e-4
    assert [gate.verdict for gate in gates] == [PASS] * 4


def later(segment: Segment) -> list[float]:
    return [0.0, *segment.rollout_logprobs[:-1]]


def earlier(segment: Segment) -> list[float]:
    return [*segment.rollout_logprobs[1:], 0.0]


def among_sampled(segment: Segment) -> list[float]:
    """A shift that leaves masked positions at 0, so that no contract sees it."""
    shifted = list(segment.rollout_logprobs)
    for before, after in itertools.pairwise(sampled_positions(segment)):
        shifted[after] = segment.rollout_logprobs[before]
    return shifted


def after_tools_alone(segment: Segment) -> list[float]:
    shifted = among_sampled(segment)
    for t in set(sampled_positions(segment)) - set(after_a_tool(segment)):
        shifted[t] = segment.rollout_logprobs[t]
    return shifted


@pytest.mark.parametrize("shift", [later, earlier, among_sampled, after_tools_alone])
def test_logprobs_shifted_by_one_position_fail_the_gate(
    stage: Stage, tmp_path: Path, shift: Callable[[Segment], list[float]]
) -> None:
    segments = read_segments(stage.out.segments)
    shifted = [segment.model_copy(update={"rollout_logprobs": shift(segment)}) for segment in segments]
    report, gates = stage.gates(shifted, tmp_path)
    assert report.max_abs_diff > 0.05
    assert {gate.name: gate.verdict for gate in gates} == {
        "rollout contract": PASS,
        "rollout infrastructure": PASS,
        "rollout policy digest": PASS,
        "rollout mismatch": FAIL,
    }
    side = "after" if shift is earlier else "before"
    assert f"this points to position: each token that is off has the log-probability of the one {side} it" in (
        gates[-1].reason
    )


def batch_of(name: str, **changes: Any) -> Segment:
    whole = Segment(
        trajectory_id=name,
        token_ids=[1, 2, 3, 4],
        loss_mask=[0, 1, 0, 1],
        rollout_logprobs=[0.0, -0.5, 0.0, -1.0],
        turn_index=[0, 0, 1, 1],
        advantages=[0.0, 0.5, 0.0, 0.5],
    )
    return whole.model_copy(update=changes)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        *(({"advantages": [0.0, value, 0.0, 0.5]}, "finite_logprobs") for value in (math.nan, math.inf, -math.inf)),
        ({"rollout_logprobs": [0.0, -math.inf, 0.0, -1.0]}, "finite_logprobs"),
        ({"rollout_logprobs": [0.0, 0.5, 0.0, -1.0]}, "logprob_only_where_sampled"),
        ({"loss_mask": [0, 1, 0, 0]}, "logprob_only_where_sampled"),
        ({"advantages": [0.0, 0.5]}, "lengths_equal"),
        ({"trajectory_id": "stranger"}, "belongs_to_trajectory"),
    ],
)
def test_a_frozen_batch_is_looked_at_row_by_row(make_trajectory: Any, tmp_path: Path, changes: Any, rule: str) -> None:
    batch, trajectories = tmp_path / "batch.parquet", tmp_path / "trajectories.parquet"
    write_trajectories(trajectories, [make_trajectory(rollout=i) for i in range(3)])
    whole = [batch_of(f"p-{i}") for i in range(3)]
    write_segments(batch, whole)
    assert [gate.verdict for gate in freeze_batch.fn(batch, trajectories)] == [PASS, PASS, PASS]
    write_segments(batch, [*whole[:2], batch_of("p-2", **changes)])
    rows, *_ = freeze_batch.fn(batch, trajectories)
    assert (rows.name, rows.verdict) == ("segments_contract", FAIL)
    assert rows.evidence == {"rows": 3, "dropped": 1, rule: 1}


def test_an_empty_batch_proves_nothing(make_trajectory: Any, tmp_path: Path) -> None:
    write_trajectories(tmp_path / "trajectories.parquet", [make_trajectory()])
    write_segments(tmp_path / "batch.parquet", [])
    gates = freeze_batch.fn(tmp_path / "batch.parquet", tmp_path / "trajectories.parquet")
    assert [gate.verdict for gate in gates] == [INCONCLUSIVE, INCONCLUSIVE, PASS]
