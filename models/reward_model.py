"""The reward model: a linear probe on the frozen base's hidden states, and an isotonic calibrator.

segments -> base (one forward pass) -> features at the end of each turn -> logistic probe -> calibrated P(success)

It predicts the verified outcome from the transcript so far. Problems are split by a hash of their id: the probe, the
calibrator and the test never share one.
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

    P = isotonic(sigmoid((x - mean) / scale @ coefficients + intercept)), the isotonic map linear between its knots.
    """

    mean: Floats
    scale: Floats
    coefficients: Floats
    intercept: float
    knots_x: Floats
    knots_y: Floats

    def raw(self, features: Floats) -> Floats:
        """Uncalibrated probability [N] for features [N, F]."""
        logits = (features - self.mean) / self.scale @ self.coefficients + self.intercept
        return 0.5 * (1.0 + np.tanh(0.5 * logits))

    def predict(self, features: Floats) -> Floats:
        """Calibrated probability of success [N] for features [N, F]."""
        return np.interp(self.raw(features), self.knots_x, self.knots_y)

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
    """The prediction at each rollout's last boundary, by trajectory id."""
    last = {name: row for row, name in enumerate(prefixes.trajectory_ids)}  # rows are in the order of turns
    predicted = probe.predict(prefixes.features)
    return {name: float(predicted[row]) for name, row in last.items()}


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
        turns=tuple(row[1] for row in rows),
        outcomes=tuple(bool(owner.outcome) for owner in owners),
    )


def fit_probe(train: Prefixes, calibrate: Prefixes, *, c: float = 0.05) -> Probe:
    """Fit the logistic probe on one part and the isotonic calibrator on another; a rollout weighs 1 in both.

    Raises OneSided when a part lacks successes or failures, ValueError when the parts share a problem.
    """
    from sklearn.isotonic import IsotonicRegression
    from sklearn.linear_model import LogisticRegression

    for name, part in (("train", train), ("calibrate", calibrate)):
        if len(set(part.outcomes)) < 2:
            raise OneSided(f"the {name} part lacks successes or failures: verify more rollouts before fitting a probe")
    if shared := set(train.problem_ids) & set(calibrate.problem_ids):
        raise ValueError(f"{len(shared)} problems are in both parts, {min(shared)} for one: split by problem")
    mean, deviation = train.features.mean(axis=0), train.features.std(axis=0)
    scale = np.where(deviation > 1e-6, deviation, 1.0)
    logistic = LogisticRegression(C=c, max_iter=1000)
    logistic.fit((train.features - mean) / scale, train.outcomes, sample_weight=_votes(train))
    bare = Probe(
        mean, scale, logistic.coef_[0], float(logistic.intercept_[0]), np.array([0.0, 1.0]), np.array([0.0, 1.0])
    )
    isotonic = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    isotonic.fit(bare.raw(calibrate.features), np.array(calibrate.outcomes, dtype=np.float64), _votes(calibrate))
    # Never certain: n rollouts of one kind show a rate of (n + 1) / (n + 2) at most.
    margin = 1.0 / (len(set(calibrate.trajectory_ids)) + 2)
    knots_y = np.clip(isotonic.y_thresholds_, margin, 1.0 - margin)
    return Probe(mean, scale, bare.coefficients, bare.intercept, isotonic.X_thresholds_, knots_y)


def _votes(part: Prefixes) -> Floats:
    counts: Mapping[str, int] = dict(zip(*np.unique(part.trajectory_ids, return_counts=True), strict=True))
    return np.array([1.0 / counts[name] for name in part.trajectory_ids])


def _hidden(model: torch.nn.Module, segments: Sequence[Segment]) -> Iterator[NDArray[np.float32]]:
    """Last layer's hidden states [T, H] of each segment, by one padded forward pass."""
    import torch

    longest = max(len(segment.token_ids) for segment in segments)
    ids_BT = torch.zeros(len(segments), longest, dtype=torch.long)
    seen_BT = torch.zeros(len(segments), longest, dtype=torch.long)
    for row, segment in enumerate(segments):
        ids_BT[row, : len(segment.token_ids)] = torch.tensor(segment.token_ids)
        seen_BT[row, : len(segment.token_ids)] = 1
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
