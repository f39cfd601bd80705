"""Where everything of a run lies: the only place that knows file names.

<home>/<run id>/ -> recipe, problems, policies, iterations, evaluation, reward, canary, drift, summary, report
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data_contracts.records import policy_name


@dataclass(frozen=True, slots=True)
class Sessions:
    """A set of sampled sessions: its journal, rollouts as sampled, trajectories as verified."""

    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def rollouts(self) -> Path:
        """Trajectories as sampled, before they were verified."""
        return self.root / "rollouts.parquet"

    @property
    def segments(self) -> Path:
        return self.root / "segments.parquet"

    @property
    def trajectories(self) -> Path:
        """Trajectories with verified outcome and reward terms."""
        return self.root / "trajectories.parquet"


@dataclass(frozen=True, slots=True)
class Side(Sessions):
    """One evaluation, and its report."""

    @property
    def reference(self) -> Path:
        """The sampled trajectories alone: what live sessions are compared with."""
        return self.root / "reference.parquet"

    @property
    def report(self) -> Path:
        return self.root / "report.json"


@dataclass(frozen=True, slots=True)
class Branches(Sessions):
    """Sessions that branched off an iteration's rollouts, for credit alone, and what they said. No batch holds them."""

    @property
    def report(self) -> Path:
        """Written last."""
        return self.root / "report.json"


@dataclass(frozen=True, slots=True)
class Iteration(Sessions):
    """One iteration: what was chosen, sampled, verified, credited and learnt."""

    number: int

    @property
    def selection(self) -> Path:
        return self.root / "selection.json"

    @property
    def scores(self) -> Path:
        return self.root / "scores.parquet"

    def scores_under(self, number: int) -> Path:
        """Scores of the tokens that an older policy version sampled, under it."""
        return self.root / f"scores-{policy_name(number)}.parquet"

    @property
    def branches(self) -> Branches:
        return Branches(self.root / "branches")

    @property
    def batch(self) -> Path:
        return self.root / "batch.parquet"

    @property
    def signals(self) -> Path:
        """What reward terms beside the verified outcome say of the rollouts."""
        return self.root / "signals.json"

    @property
    def sentinel(self) -> Path:
        """What looked like a gamed reward, and which terms are off from this iteration on."""
        return self.root / "sentinel.json"

    @property
    def credit(self) -> Path:
        """What the batch held to learn from, and by which method."""
        return self.root / "credit.json"

    @property
    def gates(self) -> Path:
        return self.root / "gates.json"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def curriculum(self) -> Path:
        """The curriculum's state after this iteration."""
        return self.root / "curriculum.json"

    @property
    def metrics(self) -> Path:
        """Written last: an iteration with metrics is done."""
        return self.root / "metrics.json"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run; its name is the run's id."""

    root: Path

    @property
    def id(self) -> str:
        return self.root.name

    @property
    def home(self) -> Path:
        return self.root.parent

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.json"

    @property
    def state(self) -> Path:
        return self.root / "run.json"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    @property
    def batches(self) -> Path:
        """What the frozen batches were like, and the pages that show what was expected of each."""
        return self.root / "batches"

    @property
    def train(self) -> Path:
        """Admitted training problems."""
        return self.root / "problems" / "train.jsonl"

    @property
    def heldout(self) -> Path:
        """Admitted held-out problems."""
        return self.root / "problems" / "heldout.jsonl"

    def source(self, split: str) -> Path:
        """Generated problems of a split, before intake."""
        return self.root / "problems" / "source" / f"{split}.jsonl"

    def policy(self, number: int) -> Path:
        """The adapter folder of a policy version."""
        return self.root / "policies" / policy_name(number)

    def iteration(self, number: int) -> Iteration:
        """The folder of one iteration, from 0."""
        return Iteration(self.root / "iterations" / f"{number:05d}", number)

    def evaluation(self, side: str) -> Side:
        """The folder of one evaluation: before, after, or champion."""
        return Side(self.root / "evaluation" / side)

    @property
    def comparison(self) -> Path:
        return self.root / "evaluation" / "paired.json"

    @property
    def reward(self) -> Path:
        return self.root / "reward"

    @property
    def probe(self) -> Path:
        return self.reward / "probe.joblib"

    @property
    def calibration(self) -> Path:
        return self.reward / "calibration.json"

    def values(self, number: int) -> Path:
        """Folder of the reward model that was fitted before iteration `number`, whose values credit uses."""
        return self.root / "values" / f"{number:05d}"

    @property
    def release(self) -> Path:
        return self.root / "release.json"

    @property
    def canary(self) -> Path:
        return self.root / "canary"

    @property
    def audit(self) -> Path:
        return self.root / "audit"

    @property
    def drift(self) -> Path:
        return self.root / "drift" / "report.json"

    @property
    def gates(self) -> Path:
        """Folder of the gates outside the iterations, one file a stage."""
        return self.root / "gates"

    @property
    def seconds(self) -> Path:
        """One line per finished stage with the seconds it took."""
        return self.root / "seconds.jsonl"


@dataclass(frozen=True, slots=True)
class ServiceFolder:
    """What the standing services of one agent leave in a home: the gateway, canaries on live traffic, drift checks."""

    home: Path
    name: str

    @property
    def root(self) -> Path:
        return self.home / "service" / self.name

    @property
    def audit(self) -> Path:
        """The gateway's audit log."""
        return self.root / "audit"

    def canary(self, id: str) -> Path:
        """The folder of one canary on live traffic."""
        return self.root / "canary" / id

    @property
    def drift(self) -> Path:
        """Windows, their verdicts, and the episodes that were told."""
        return self.root / "drift"
