"""The reward stage as Prefect tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.gates import Gate, Verdict
from data_contracts.records import Trajectory
from data_contracts.store import read_json, read_segments, read_trajectories, write_json, write_trajectories
from models.policy import Base
from models.reward_model import OneSided, extract, whole_rollouts
from tasks.problems import admitted
from tasks.reward.calibration import calibration_gate
from tasks.reward.config import RewardConfig, SentinelConfig, TermsConfig
from tasks.reward.probe import choose_rollouts, digest, fit_and_measure, open_reward_model
from tasks.reward.sentinel import SentinelReport, watch
from tasks.reward.signals import Proxies, Signals, shaping_signals, with_model
from tasks.reward.verify import verify_all


@task(name="verify", cache_policy=NO_CACHE)
def verify_rollouts(
    source: Path,
    verified: Path,
    problems: Path,
    pool: Any,
    config: RewardConfig,
    on_done: Callable[[Trajectory], None] | None = None,
    *,
    by_turn: bool = False,
) -> int:
    """Write the trajectories of `source` with verified outcome and reward terms to `verified`; count the scorable.

    `by_turn`: and what each turn added to the hidden checks that pass.
    """
    rollouts = verify_all(read_trajectories(source), admitted(problems), pool, config, on_done, by_turn=by_turn)
    write_trajectories(verified, rollouts)
    return sum(rollout.scorable for rollout in rollouts)


@task(name="signals", cache_policy=NO_CACHE)
def tell_signals(verified: Path, problems: Path, signals: Path, config: TermsConfig, said: Proxies) -> Signals:
    """Write what the enabled terms beside the outcome say of verified rollouts; `said` is the reward model's word."""
    rollouts = read_trajectories(verified)
    found = with_model(shaping_signals(rollouts, admitted(problems), config), rollouts, said, config)
    write_json(signals, found)
    return found


@task(name="sentinel", cache_policy=NO_CACHE)
def watch_rewards(
    verified: Path, problems: Path, signals: Path, weights: dict[str, float], before: Path, config: SentinelConfig
) -> SentinelReport:
    """Look at an iteration that `weights` credit; `before` is the last one's report, if there was one."""
    earlier = SentinelReport.model_validate(read_json(before)) if before.exists() else None
    said = Signals.model_validate(read_json(signals))
    return watch(read_trajectories(verified), admitted(problems), said, weights, earlier, config)


@task(name="fit reward model", cache_policy=NO_CACHE)
def fit_reward_model(
    trajectories: list[Path], segments: list[Path], base: Base, folder: Path, config: RewardConfig
) -> list[Gate]:
    """Fit the reward model on verified rollouts, write it and calibration.json to `folder`; return its gates.

    Rollouts whose outcomes are all equal leave no file and an INCONCLUSIVE gate.
    """
    rollouts = choose_rollouts([t for path in trajectories for t in read_trajectories(path)], config.probe)
    tokens = [segment for path in segments for segment in read_segments(path)]
    try:
        fitted = fit_and_measure(base, rollouts, tokens, config, folder)
    except OneSided as error:
        return [Gate(name="reward.ece", verdict=Verdict.INCONCLUSIVE, reason=str(error), evidence={"n": len(rollouts)})]
    fitted.probe.save(folder / "probe.joblib")
    told = {"digest": digest(fitted.probe, folder), "model": config.model, "calibrator": fitted.calibrator}
    write_json(folder / "calibration.json", told | fitted.report.model_dump(mode="json"))
    return calibration_gate(fitted.report, config.probe)


@task(name="predicted outcomes", cache_policy=NO_CACHE)
def predicted_outcomes(folder: Path, trajectories: Path, segments: Path, base: Base) -> Proxies:
    """What the reward model in `folder` says of whole rollouts."""
    probe, model = open_reward_model(base, folder)
    return Proxies(whole_rollouts(probe, extract(model, read_trajectories(trajectories), read_segments(segments))))
