"""Champion against candidate, looked at as often as one likes: an always-valid comparison of two means.

values a session (champion, candidate) -> confidence sequence of the improvement -> Comparison with a verdict

The sequence is the asymptotic one of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2024, "Time-uniform central limit
theory and asymptotic confidence sequences", Annals of Statistics): Robbins' normal mixture around the estimate, with
the variance estimated. It covers the truth at all times at once with probability 1 - alpha.

Two streams that grow at different paces need no pairing: the covariance of an early and a late difference of means is
the variance of the late one, so that (difference x information) is a Brownian motion whose time is the information.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import lambertw

from data_contracts.gates import Gate, Verdict
from data_contracts.records import Record
from tasks.canary.config import METRICS, Metric

Floats = NDArray[np.float64]


class Comparison(Record):
    """A verdict on one metric, with the confidence sequence it rests on.

    `estimate`, `lower` and `upper` are of the improvement: candidate's mean less the champion's (times 1 - margin or
    1 + margin where the margin is relative), with the sign turned so that more is better. PASS: `lower` is above
    `limit`; FAIL: `upper` is below it; anything else is INCONCLUSIVE. All None where nothing could be measured.
    """

    metric: str
    verdict: Verdict
    reason: str
    n_champion: int = 0
    n_candidate: int = 0
    champion: float | None = None
    candidate: float | None = None
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None
    limit: float | None = None

    def gate(self) -> Gate:
        """The comparison as a gate, evidence included."""
        evidence = self.model_dump(exclude={"metric", "verdict", "reason"})
        return Gate(name=f"canary_{self.metric}", verdict=self.verdict, reason=self.reason, evidence=evidence)


class _Moments(NamedTuple):
    """Difference of the means, its variance, and the effective number of pairs n0 n1 / (n0 + n1)."""

    difference: float
    variance: float
    effective: float


def half_width(variance: ArrayLike, effective: ArrayLike, *, alpha: float, tuned_sessions: int) -> Floats:
    """Half the width of the confidence sequence of a difference of means, at any shape.

    `variance` is that of the estimated difference, `effective` is n0 n1 / (n0 + n1). With x = effective * rho^2:
    sqrt(variance * (1 + 1/x) * (log(1 + x) - 2 log alpha)). rho makes it tightest at `tuned_sessions` an arm, where
    1 + x = -W_{-1}(-alpha^2 / e).
    """
    best = -1.0 - float(lambertw(-(alpha**2) / math.e, k=-1).real)
    x = np.asarray(effective, dtype=np.float64) * best / (tuned_sessions / 2)
    return np.sqrt(np.asarray(variance) * (1 + 1 / x) * (np.log1p(x) - 2 * math.log(alpha)))


def compare(
    champion: ArrayLike,
    candidate: ArrayLike,
    metric: Metric | str,
    *,
    alpha: float = 0.05,
    tuned_sessions: int = 100,
    minimum: int = 20,
    strata: tuple[ArrayLike, ArrayLike] | None = None,
) -> Comparison:
    """Is the candidate's mean no worse than the champion's by more than the metric's margin?

    `champion` and `candidate` hold one value a session, [n0] and [n1]. `strata` holds labels of the same lengths (the
    canary's stage): differences are taken within a stratum, so that a mix that changes with the share misleads nobody.
    An unknown metric's name, a value that is not finite, and fewer than `minimum` sessions in an arm are INCONCLUSIVE.
    """
    rule = METRICS.get(metric) if isinstance(metric, str) else metric
    if rule is None:
        return _inconclusive(str(metric), f"no metric is named {metric!r}", 0, 0)
    a, b = np.asarray(champion, dtype=np.float64).ravel(), np.asarray(candidate, dtype=np.float64).ravel()
    broken = int((~np.isfinite(a)).sum() + (~np.isfinite(b)).sum())
    if broken:
        return _inconclusive(rule.name, f"{broken} values are not finite", a.size, b.size)
    if min(a.size, b.size) < max(minimum, 2):
        reason = f"champion has {a.size} and candidate {b.size} sessions, {max(minimum, 2)} of each are needed"
        return _inconclusive(rule.name, reason, a.size, b.size)
    labels = (np.zeros(a.size), np.zeros(b.size)) if strata is None else (np.asarray(strata[0]), np.asarray(strata[1]))
    if labels[0].shape != a.shape or labels[1].shape != b.shape:
        raise ValueError(f"strata {labels[0].shape}, {labels[1].shape} do not match values {a.shape}, {b.shape}")
    sign = 1.0 if rule.better == "higher" else -1.0
    weight = 1.0 - sign * rule.margin if rule.relative else 1.0
    moments = _stratified(weight * a, b, labels, rule.scale)
    if moments is None:
        return _inconclusive(rule.name, "the sessions show no spread to judge a difference by", a.size, b.size)
    radius = float(half_width(moments.variance, moments.effective, alpha=alpha, tuned_sessions=tuned_sessions))
    return _judged(rule, a, b, sign * moments.difference, radius)


def _stratified(a: Floats, b: Floats, labels: tuple[Floats, Floats], scale: float) -> _Moments | None:
    """Difference of means by Mantel-Haenszel weights over strata; None without variance, or a stratum with both."""
    spreads = [_spread(values, label, scale) for values, label in zip((a, b), labels, strict=True)]
    weights, differences, variances = [], [], []
    for stratum in np.union1d(*labels):
        own = a[labels[0] == stratum], b[labels[1] == stratum]
        if own[0].size and own[1].size:
            weights.append(own[0].size * own[1].size / (own[0].size + own[1].size))
            differences.append(own[1].mean() - own[0].mean())
            variances.append(spreads[0] / own[0].size + spreads[1] / own[1].size)
    w = np.array(weights)
    if not w.size or not spreads[0] + spreads[1] > 0:
        return None
    share = w / w.sum()
    return _Moments(float(share @ np.array(differences)), float(share**2 @ np.array(variances)), float(w.sum()))


def _spread(values: Floats, labels: Floats, scale: float) -> float:
    """Variance of one session's value around its stratum's mean.

    One unit of `scale` squared is added as if one more session had shown it: an arm of nothing but successes, or of no
    error at all, is not known to have variance 0.
    """
    squares = sum(float(((values[labels == s] - values[labels == s].mean()) ** 2).sum()) for s in np.unique(labels))
    freedom = values.size + 1 if scale else values.size - np.unique(labels).size
    return (squares + scale**2) / max(freedom, 1)


def _judged(rule: Metric, a: Floats, b: Floats, estimate: float, radius: float) -> Comparison:
    limit = 0.0 if rule.relative else -rule.margin
    lower, upper = estimate - radius, estimate + radius
    verdict = Verdict.PASS if lower > limit else Verdict.FAIL if upper < limit else Verdict.INCONCLUSIVE
    allowed = f"{rule.margin:.0%} of the champion's mean" if rule.relative else f"{rule.margin:g}"
    says = {
        Verdict.PASS: f"no worse by more than {allowed}",
        Verdict.FAIL: f"worse by more than {allowed}",
        Verdict.INCONCLUSIVE: f"not yet known whether worse by more than {allowed}",
    }[verdict]
    return Comparison(
        metric=rule.name,
        verdict=verdict,
        reason=f"{rule.name} {b.mean():.4g} against {a.mean():.4g}: {says} "
        f"(improvement {estimate:.3g} in [{lower:.3g}, {upper:.3g}], limit {limit:.3g})",
        n_champion=a.size,
        n_candidate=b.size,
        champion=float(a.mean()),
        candidate=float(b.mean()),
        estimate=estimate,
        lower=lower,
        upper=upper,
        limit=limit,
    )


def _inconclusive(metric: str, reason: str, n_champion: int, n_candidate: int) -> Comparison:
    return Comparison(
        metric=metric, verdict=Verdict.INCONCLUSIVE, reason=reason, n_champion=n_champion, n_candidate=n_candidate
    )
