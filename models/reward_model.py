"""The reward model: a linear probe on a model's hidden states, a calibrator, and where it abstains.

segments -> model (one forward pass) -> features at the end of each turn -> logistic probe -> calibrated P(success)

It predicts the verified outcome from the transcript so far. Problems are split by a hash of their id: the probe, the
calibrator and the test never share one. The model is the frozen base, or a classifier that was fine-tuned from it
(`models/reward_classifier.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import joblib
import numpy as np
from numpy.typing import NDArray

from data_contracts.records import Horizon, Segment, Trajectory
from models.calibrators import Choice, Map, better_map, sigmoid
from models.reach import Reach, fit_reach
from models.reward_classifier import padded

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
Split = Literal["train", "calibrate", "test"]


@dataclass(frozen=True, slots=True, eq=False)
class Prefixes:
    """Features at turn boundaries, one row a boundary: N rows of F features, and whose they are."""

    features: Floats
    trajectory_ids: tuple[str, ...]
    problem_ids: tuple[str, ...]
    horizons: tuple[Horizon, ...]
    versions: tuple[str, ...]
    turns: tuple[int, ...]
    outcomes: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.turns)

    def where(self, keep: Sequence[bool] | NDArray[np.bool_]) -> Prefixes:
        """The rows that `keep` [N] marks."""
        rows = np.flatnonzero(np.asarray(keep, dtype=bool))

        def pick(column: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(column[row] for row in rows)

        columns = {f.name: pick(getattr(self, f.name)) for f in fields(self) if f.name != "features"}
        return Prefixes(features=self.features[rows], **columns)

    def split(self, train_share: float, calibrate_share: float, seed: int = 0) -> dict[Split, Prefixes]:
        """The three parts, no problem in two of them."""
        sides = [side_of(problem, train_share, calibrate_share, seed) for problem in self.problem_ids]
        return {side: self.where([s == side for s in sides]) for side in ("train", "calibrate", "test")}


class OneSided(ValueError):
    """There is nothing to learn to tell apart: all outcomes are equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """Fitted weights; plain arrays, so that a saved probe depends on no library's classes.

    P = Map((x - mean) / scale @ coefficients + intercept): see `models/calibrators.py`; beyond `limit` it abstains: see
    `models/reach.py`.
    """

    mean: Floats
    scale: Floats
    coefficients: Floats
    intercept: float
    slope: float
    offset: float
    knots_x: Floats
    knots_y: Floats
    directions: Floats
    spread: Floats
    rest: float
    limit: float

    def logits(self, features: Floats) -> Floats:
        """Log odds [N] before calibration for features [N, F]."""
        return np.asarray(self._scaled(features) @ self.coefficients + self.intercept)

    def raw(self, features: Floats) -> Floats:
        """Uncalibrated probability [N] for features [N, F]."""
        return sigmoid(self.logits(features))

    def predict(self, features: Floats) -> Floats:
        """Calibrated probability of success [N] for features [N, F], abstained on or not."""
        return Map(self.slope, self.offset, self.knots_x, self.knots_y)(self.logits(features))

    def knows(self, features: Floats) -> NDArray[np.bool_]:
        """Whether each row [N] is like what the probe was fitted on; what it does not know is no value."""
        return Reach(self.directions, self.spread, self.rest, self.limit).covers(self._scaled(features))

    def _scaled(self, features: Floats) -> Floats:
        return (features - self.mean) / self.scale

    @property
    def digest(self) -> str:
        """sha256 over all weights, whatever file they lie in."""
        hasher = hashlib.sha256()
        for field in fields(self):
            hasher.update(field.name.encode())
            hasher.update(np.ascontiguousarray(getattr(self, field.name), dtype="<f8").tobytes())
        return hasher.hexdigest()

    def save(self, path: Path) -> None:
        """Write the weights as a dictionary of arrays; the file appears whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".tmp")
        joblib.dump({field.name: getattr(self, field.name) for field in fields(self)}, scratch)
        scratch.replace(path)


def load_probe(path: Path) -> Probe:
    """Read a probe that `save` wrote; ValueError if it is none. It is unpickled: never load a stranger's."""
    content = joblib.load(path)
    if not isinstance(content, dict) or content.keys() != {field.name for field in fields(Probe)}:
        raise ValueError(f"{path} holds no probe: fit one again with the reward flow")
    return Probe(**content)


def whole_rollouts(probe: Probe, prefixes: Prefixes) -> dict[str, float | None]:
    """The prediction at each rollout's last boundary by trajectory id; None where the probe abstains."""
    last = {name: row for row, name in enumerate(prefixes.trajectory_ids)}  # rows are in the order of turns
    predicted, known = probe.predict(prefixes.features), probe.knows(prefixes.features)
    return {name: float(predicted[row]) if known[row] else None for name, row in last.items()}


def side_of(problem_id: str, train_share: float, calibrate_share: float, seed: int = 0) -> Split:
    """The part a problem belongs to: by a hash of its id, so that it never changes sides."""
    digest = hashlib.sha256(f"{seed}:{problem_id}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < train_share:
        return "train"
    return "calibrate" if position < train_share + calibrate_share else "test"


def extract(
    model: torch.nn.Module, trajectories: Sequence[Trajectory], segments: Sequence[Segment], batch_size: int = 32
) -> Prefixes:
    """Features at the end of each turn of the scorable trajectories; `model` is the frozen base (float32, eval).

    Per boundary, F = 2 H + 3: the last layer's hidden state at the turn's last sampled token, the mean of the hidden
    states up to there, the turn's number, the context's length in hundreds of tokens, and the segment's number.
    """
    by_id = {trajectory.id: trajectory for trajectory in trajectories if trajectory.scorable}
    wanted = [segment for segment in segments if segment.trajectory_id in by_id and any(segment.loss_mask)]
    rows: list[tuple[str, int, Floats]] = []
    # Alike lengths share a batch, so that little of it is padding.
    wanted.sort(key=lambda segment: (len(segment.token_ids), segment.trajectory_id, segment.index))
    for start in range(0, len(wanted), batch_size):
        batch = wanted[start : start + batch_size]
        for segment, hidden_TH in zip(batch, _hidden(model, batch), strict=True):
            rows.extend((segment.trajectory_id, turn, x) for turn, x in _boundaries(segment, hidden_TH))
    rows.sort(key=lambda row: row[:2])
    owners = [by_id[row[0]] for row in rows]
    width = 2 * int(model.config.hidden_size) + 3  # type: ignore[union-attr, arg-type]
    return Prefixes(
        features=np.array([row[2] for row in rows], dtype=np.float64).reshape(len(rows), width),
        trajectory_ids=tuple(owner.id for owner in owners),
        problem_ids=tuple(owner.problem_id for owner in owners),
        horizons=tuple(owner.horizon for owner in owners),
        versions=tuple(owner.policy_version for owner in owners),
        turns=tuple(row[1] for row in rows),
        outcomes=tuple(bool(owner.outcome) for owner in owners),
    )


def fit_probe(
    train: Prefixes, calibrate: Prefixes, *, c: float = 0.05, abstain: float = 0.99, head: Floats | None = None
) -> tuple[Probe, Choice]:
    """Fit the logistic probe on one part, calibrator and limit on another; a rollout weighs 1 in both.

    `abstain`: the share of the other part's boundaries that are known ground. `head`: weights [H] of a classifier's
    own, over the hidden state of a turn's last token, which then stand for the logistic fit. Raises OneSided when a
    part lacks successes or failures, ValueError when the parts share a problem.
    """
    for name, part in (("train", train), ("calibrate", calibrate)):
        if len(set(part.outcomes)) < 2:
            raise OneSided(f"the {name} part lacks successes or failures: verify more rollouts before fitting a probe")
    if shared := set(train.problem_ids) & set(calibrate.problem_ids):
        raise ValueError(f"{len(shared)} problems are in both parts, {min(shared)} for one: split by problem")
    mean, deviation = train.features.mean(axis=0), train.features.std(axis=0)
    scale = np.where(deviation > 1e-6, deviation, 1.0)
    scaled, unseen = (train.features - mean) / scale, (calibrate.features - mean) / scale
    coefficients, intercept = _logistic(scaled, train, c) if head is None else _head(head, mean, scale)
    votes = _votes(calibrate)
    to_truth, choice = better_map(
        unseen @ coefficients + intercept, calibrate.outcomes, votes, calibrate.problem_ids, calibrate.trajectory_ids
    )
    reach = fit_reach(scaled, unseen, abstain)
    probe = Probe(mean, scale, coefficients, intercept, **_arrays(to_truth), **_arrays(reach))
    return probe, choice


def _logistic(scaled: Floats, train: Prefixes, c: float) -> tuple[Floats, float]:
    from sklearn.linear_model import LogisticRegression

    found = LogisticRegression(C=c, max_iter=1000).fit(scaled, train.outcomes, sample_weight=_votes(train))
    return found.coef_[0], float(found.intercept_[0])


def _head(head: Floats, mean: Floats, scale: Floats) -> tuple[Floats, float]:
    """The same head over scaled features, whose first columns are the hidden state that it reads."""
    weights = np.concatenate([head, np.zeros(mean.size - head.size)])
    return weights * scale, float(weights @ mean)


def _arrays(part: Map | Reach) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}


def _votes(part: Prefixes) -> Floats:
    counts: Mapping[str, int] = dict(zip(*np.unique(part.trajectory_ids, return_counts=True), strict=True))
    return np.array([1.0 / counts[name] for name in part.trajectory_ids])


def _hidden(model: torch.nn.Module, segments: Sequence[Segment]) -> Iterator[NDArray[np.float32]]:
    """Last layer's hidden states [T, H] of each segment, by one padded forward pass."""
    import torch

    ids_BT, seen_BT = padded(segments)
    device = next(model.parameters()).device
    with torch.inference_mode():
        body = model.base_model  # without the head: V logits a token are not needed
        hidden_BTH = body(input_ids=ids_BT.to(device), attention_mask=seen_BT.to(device), use_cache=False)[0]  # type: ignore[operator]
    for segment, hidden_TH in zip(segments, hidden_BTH.float().cpu().numpy(), strict=True):
        yield hidden_TH[: len(segment.token_ids)]


def _boundaries(segment: Segment, hidden_TH: NDArray[np.float32]) -> Iterator[tuple[int, Floats]]:
    sampled = np.flatnonzero(segment.loss_mask)
    turn_of = np.asarray(segment.turn_index)
    running_TH = np.cumsum(hidden_TH, axis=0, dtype=np.float64)
    for turn in np.unique(turn_of[sampled]).tolist():
        last = int(sampled[turn_of[sampled] == turn].max())
        scalars = [float(turn), (last + 1) / 100, float(segment.index)]
        yield int(turn), np.concatenate([hidden_TH[last], running_TH[last] / (last + 1), scalars])
