"""What the curriculum remembers, and how an iteration's outcomes change it.

state + outcomes of an iteration -> next state        (pure; the state is saved as JSON with the run)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from data_contracts.records import Horizon, Problem, Record, Trajectory
from tasks.curriculum.config import CurriculumConfig


class Tally(Record):
    """Passed and failed rollouts, forgotten a little with each iteration; both as of `iteration`."""

    passed: float = Field(default=0.0, ge=0)
    failed: float = Field(default=0.0, ge=0)
    iteration: int = -1

    def at(self, iteration: int, forgetting: float) -> Tally:
        """The tally as of a later iteration: what came before it counts less."""
        kept = forgetting ** max(iteration - self.iteration, 0)
        return Tally(passed=self.passed * kept, failed=self.failed * kept, iteration=iteration)

    def plus(self, passed: int, failed: int) -> Tally:
        """The tally with rollouts of its own iteration added."""
        return Tally(passed=self.passed + passed, failed=self.failed + failed, iteration=self.iteration)


class ProblemRecord(Record):
    """One problem's history: its tally and how its last group went."""

    tally: Tally
    tried: int = Field(ge=0, description="scorable rollouts so far, none forgotten")
    last_iteration: int
    last_rate: float = Field(ge=0, le=1, description="share of its last group that passed")


class ProblemOutcome(Record):
    """How one iteration's group of a problem went; unscorable rollouts are left out."""

    problem_id: str
    horizon: Horizon
    tags: tuple[str, ...] = ()
    passed: int = Field(ge=0)
    failed: int = Field(ge=0)


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


def outcomes_of(trajectories: Iterable[Trajectory], problems: Mapping[str, Problem]) -> list[ProblemOutcome]:
    """Count the scorable rollouts per problem, in the order of problem ids."""
    passed: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        if trajectory.scorable:
            passed.setdefault(trajectory.problem_id, []).append(bool(trajectory.outcome))
    return [
        ProblemOutcome(
            problem_id=problem_id,
            horizon=problems[problem_id].horizon,
            tags=problems[problem_id].tags,
            passed=sum(results),
            failed=len(results) - sum(results),
        )
        for problem_id, results in sorted(passed.items())
    ]


def group_signal(outcomes: Sequence[ProblemOutcome]) -> GroupSignal:
    """Count the groups whose outcomes differ, and those whose outcomes are all equal."""
    return GroupSignal(
        groups=len(outcomes),
        mixed=sum(bool(outcome.passed and outcome.failed) for outcome in outcomes),
        all_passed=sum(not outcome.failed for outcome in outcomes),
        all_failed=sum(not outcome.passed for outcome in outcomes),
    )


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
        counts = (outcome.passed, outcome.failed)
        if not sum(counts):
            continue
        before = problems.get(outcome.problem_id)
        tally = (before.tally if before else Tally()).at(iteration, config.problem_forgetting).plus(*counts)
        problems[outcome.problem_id] = ProblemRecord(
            tally=tally,
            tried=sum(counts) + (before.tried if before else 0),
            last_iteration=iteration,
            last_rate=outcome.passed / sum(counts),
        )
        for key in level_keys(outcome.horizon, outcome.tags):
            levels[key] = levels.get(key, Tally()).at(iteration, config.level_forgetting).plus(*counts)
    return CurriculumState(iteration=iteration, problems=problems, levels=levels)
