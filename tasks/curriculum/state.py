"""What the curriculum remembers, and how an iteration's outcomes change it.

state + outcomes of an iteration -> next state        (pure; the state is saved as JSON with the run)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from data_contracts.records import Horizon, Problem, Record, Trajectory
from tasks.curriculum.config import CurriculumConfig
from tasks.curriculum.failures import FAILURES, Failure, failure_of


class Tally(Record):
    """Passed and failed rollouts and what they sampled, forgotten a little with each iteration; as of `iteration`."""

    passed: float = Field(default=0.0, ge=0)
    failed: float = Field(default=0.0, ge=0)
    tokens: float = Field(default=0.0, ge=0)
    iteration: int = -1

    @property
    def rollouts(self) -> float:
        """All of them."""
        return self.passed + self.failed

    def at(self, iteration: int, forgetting: float) -> Tally:
        """The tally as of a later iteration: what came before it counts less."""
        kept = forgetting ** max(iteration - self.iteration, 0)
        return Tally(
            passed=self.passed * kept, failed=self.failed * kept, tokens=self.tokens * kept, iteration=iteration
        )

    def plus(self, outcome: ProblemOutcome) -> Tally:
        """The tally with rollouts of its own iteration added."""
        return Tally(
            passed=self.passed + outcome.passed,
            failed=self.failed + outcome.failed,
            tokens=self.tokens + outcome.tokens,
            iteration=self.iteration,
        )


class ProblemRecord(Record):
    """One problem's history: its tally and how its last group went."""

    tally: Tally
    tried: int = Field(ge=0, description="scorable rollouts so far, none forgotten")
    last_iteration: int
    last_rate: float = Field(ge=0, le=1, description="share of its last group that passed")
    last_failures: dict[Failure, int] = Field(default={}, description="how the others of its last group failed")


class ProblemOutcome(Record):
    """How one iteration's group of a problem went; unscorable rollouts are left out."""

    problem_id: str
    horizon: Horizon
    tags: tuple[str, ...] = ()
    passed: int = Field(ge=0)
    failed: int = Field(ge=0)
    tokens: int = Field(default=0, ge=0, description="sampled by all of them")
    failures: dict[Failure, int] = Field(default={}, description="the failed ones by kind")


class CurriculumState(Record):
    """The whole memory. `levels` holds tallies per horizon ("short") and per tag within it ("short:off_by_one")."""

    iteration: int = -1
    problems: dict[str, ProblemRecord] = Field(default={})
    levels: dict[str, Tally] = Field(default={})


class GroupSignal(Record):
    """How many groups of an iteration could teach anything: those with both outcomes."""

    groups: int
    mixed: int
    all_passed: int
    all_failed: int


class IterationSignal(Record):
    """What an iteration's rollouts could teach, and how those that failed did."""

    groups: GroupSignal
    failures: dict[Failure, int]


def outcomes_of(trajectories: Iterable[Trajectory], problems: Mapping[str, Problem]) -> list[ProblemOutcome]:
    """Count the scorable rollouts per problem, in the order of problem ids."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.scorable:
            groups.setdefault(trajectory.problem_id, []).append(trajectory)
    return [_outcome(problems[problem_id], group) for problem_id, group in sorted(groups.items())]


def _outcome(problem: Problem, group: Sequence[Trajectory]) -> ProblemOutcome:
    passed = sum(bool(trajectory.outcome) for trajectory in group)
    kinds = [kind for trajectory in group if (kind := failure_of(trajectory, problem.files)) is not None]
    return ProblemOutcome(
        problem_id=problem.id,
        horizon=problem.horizon,
        tags=problem.tags,
        passed=passed,
        failed=len(group) - passed,
        tokens=sum(trajectory.sampled_tokens for trajectory in group),
        failures={kind: kinds.count(kind) for kind in FAILURES if kind in kinds},
    )


def failure_counts(outcomes: Iterable[ProblemOutcome]) -> dict[Failure, int]:
    """How many rollouts of an iteration failed in which way; every kind is there, also with 0."""
    found: Counter[Failure] = Counter()
    for outcome in outcomes:
        found.update(outcome.failures)
    return {kind: found[kind] for kind in FAILURES}


def group_signal(outcomes: Sequence[ProblemOutcome]) -> GroupSignal:
    """Count the groups whose outcomes differ, and those whose outcomes are all equal."""
    return GroupSignal(
        groups=len(outcomes),
        mixed=sum(bool(outcome.passed and outcome.failed) for outcome in outcomes),
        all_passed=sum(not outcome.failed for outcome in outcomes),
        all_failed=sum(not outcome.passed for outcome in outcomes),
    )


def iteration_signal(outcomes: Sequence[ProblemOutcome]) -> IterationSignal:
    """Both of an iteration's groups."""
    return IterationSignal(groups=group_signal(outcomes), failures=failure_counts(outcomes))


def level_keys(horizon: Horizon, tags: Iterable[str]) -> list[str]:
    """Names of the levels a problem counts in: its horizon, then each tag within it."""
    return [horizon, *(f"{horizon}:{tag}" for tag in tags)]


def update(
    state: CurriculumState, outcomes: Sequence[ProblemOutcome], iteration: int, config: CurriculumConfig
) -> CurriculumState:
    """The state after `iteration`. Raises ValueError when that iteration was counted already."""
    if iteration <= state.iteration:
        raise ValueError(f"iteration {iteration} was counted already: the state stands at {state.iteration}")
    problems, levels = dict(state.problems), dict(state.levels)
    for outcome in outcomes:
        rollouts = outcome.passed + outcome.failed
        if not rollouts:
            continue
        before = problems.get(outcome.problem_id)
        tally = (before.tally if before else Tally()).at(iteration, config.problem_forgetting).plus(outcome)
        problems[outcome.problem_id] = ProblemRecord(
            tally=tally,
            tried=rollouts + (before.tried if before else 0),
            last_iteration=iteration,
            last_rate=outcome.passed / rollouts,
            last_failures=outcome.failures,
        )
        for key in level_keys(outcome.horizon, outcome.tags):
            levels[key] = levels.get(key, Tally()).at(iteration, config.level_forgetting).plus(outcome)
    return CurriculumState(iteration=iteration, problems=problems, levels=levels)
