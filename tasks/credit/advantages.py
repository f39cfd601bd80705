"""Who earned the reward: pure numerics over rollouts and over the tokens of one rollout.

rewards + groups -> advantages;   rewards + mask -> returns, advantages per token

All of it runs in float64, whatever comes in (lists, arrays, tensors). R is rollouts, T is tokens. Returns and
advantages run from sampled token to sampled token: the positions in between (observations, template) are transparent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Baseline = Literal["mean", "leave_one_out"]
Scale = Literal["none", "std"]
Floats = NDArray[np.float64]


def group_advantages(
    rewards: ArrayLike,
    group_ids: Sequence[Any] | NDArray[Any],
    *,
    baseline: Baseline = "mean",
    scale: Scale = "none",
    std_floor: float = 0.1,
) -> Floats:
    """Centre each rollout's reward on its group; one row a rollout, however many turns or segments it has.

    `rewards` is [R], NaN (or None) where the rollout could not be scored: it gets 0 and stays out of the baseline, as
    does a group with fewer than two scorable rows. `leave_one_out` centres on the mean of the others. `std` divides
    by max(sample standard deviation of the group, `std_floor`), so |A| <= sqrt(group size). Rows may come in any order.
    Raises ValueError for an infinite reward, unequal lengths, or an unknown baseline or scale.
    """
    reward_R = np.asarray(rewards, dtype=np.float64).reshape(-1)
    group_R = np.asarray(group_ids).reshape(-1)
    if reward_R.shape != group_R.shape:
        raise ValueError(f"{reward_R.size} rewards but {group_R.size} group ids: give one of each per rollout")
    if np.isinf(reward_R).any():
        raise ValueError("a reward is infinite: bound the reward terms, or give NaN where a rollout cannot be scored")
    if baseline not in ("mean", "leave_one_out") or scale not in ("none", "std") or not std_floor > 0:
        raise ValueError(f"no such baseline, scale or floor: {baseline!r}, {scale!r}, {std_floor!r}")
    advantage_R = np.zeros_like(reward_R)
    _, group_of_R = np.unique(group_R, return_inverse=True)
    for group in range(int(group_of_R.max()) + 1 if group_of_R.size else 0):
        rows = np.flatnonzero((group_of_R == group) & np.isfinite(reward_R))
        advantage_R[rows] = _centred(reward_R[rows], baseline, scale, std_floor)
    return advantage_R


def _centred(rewards: Floats, baseline: Baseline, scale: Scale, std_floor: float) -> Floats:
    n = rewards.size
    # Equal rewards carry no signal: exactly 0, where a mean would leave rounding errors.
    if n < 2 or rewards.min() == rewards.max():
        return np.zeros_like(rewards)
    centred = rewards - rewards.mean()
    if baseline == "leave_one_out":
        centred *= n / (n - 1)
    return centred if scale == "none" else centred / max(float(rewards.std(ddof=1)), std_floor)


def discounted_returns(rewards: ArrayLike, mask: ArrayLike, gamma: float) -> Floats:
    """Sum of later rewards at each sampled token, dimmed by `gamma` once per sampled token; 0 where `mask` is 0.

    `rewards` and `mask` are [T]. A reward on a masked position belongs to the last sampled token before it; one before
    the first sampled token was earned by none. Penalties per token (KL) are to be masked first: `kl_penalty`.
    """
    reward_T, sampled_T = _tokens(rewards, mask)
    _check_rates(gamma=gamma)
    return _spread(_discounted_sum(_rewards_of_sampled(reward_T, sampled_T), gamma), sampled_T)


def gae(rewards: ArrayLike, values: ArrayLike, mask: ArrayLike, gamma: float, lam: float) -> Floats:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16) from sampled token to sampled token.

    `rewards`, `values` and `mask` are [T]; values on masked positions are never read, and the value after the last
    sampled token is 0. delta_k = r_k + gamma V_(k+1) - V_k and A_k = delta_k + gamma lam A_(k+1), k over the
    sampled tokens; 0 where `mask` is 0. A reward on a masked position belongs to the last sampled token before it.
    """
    reward_T, sampled_T = _tokens(rewards, mask)
    _check_rates(gamma=gamma, lam=lam)
    value_T = np.asarray(values, dtype=np.float64).reshape(-1)
    if value_T.shape != reward_T.shape:
        raise ValueError(f"{reward_T.size} rewards but {value_T.size} values: give one of each per token")
    value_K = value_T[sampled_T]
    if not np.isfinite(value_K).all():
        raise ValueError("a value at a sampled token is not finite: check the value model's output")
    next_K = np.append(value_K[1:], 0.0)[: value_K.size]
    delta_K = _rewards_of_sampled(reward_T, sampled_T) + gamma * next_K - value_K
    return _spread(_discounted_sum(delta_K, gamma * lam), sampled_T)


def turn_advantages(values: ArrayLike, reward: float, lam: float) -> Floats:
    """What each turn [T] earned, by generalised advantage estimation from one known value to the next.

    `values` [T] are the expected reward before each turn, NaN where it is not known: such a turn shares what the turns
    since the last known value earned together. `reward` is what the rollout got in the end; rewards are not dimmed.
    `lam` = 1: the reward less the value before; 0: the next known value less the value before. Raises ValueError for an
    unknown value before the first turn, or a reward or value that is infinite.
    """
    _check_rates(lam=lam)
    value_T = np.asarray(values, dtype=np.float64).reshape(-1)
    if value_T.size == 0:
        return value_T
    if np.isinf(value_T).any() or not np.isfinite(reward) or np.isnan(value_T[0]):
        raise ValueError(f"values {value_T.tolist()} and reward {reward}: give finite ones, and one before turn 0")
    known_K = np.flatnonzero(np.isfinite(value_T))
    step_K = np.diff(np.append(value_T[known_K], reward))
    return _discounted_sum(step_K, lam)[np.searchsorted(known_K, np.arange(value_T.size), side="right") - 1]


def kl_penalty(kl: ArrayLike, mask: ArrayLike, coefficient: float) -> Floats:
    """Rewards [T] of -coefficient * kl at sampled tokens and 0 elsewhere: only what was sampled costs."""
    kl_T = np.asarray(kl, dtype=np.float64).reshape(-1)
    return np.where(_sampled(mask, kl_T.size), -coefficient * kl_T, 0.0)


def _tokens(rewards: ArrayLike, mask: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    reward_T = np.asarray(rewards, dtype=np.float64).reshape(-1)
    if not np.isfinite(reward_T).all():
        raise ValueError("a token's reward is not finite: leave rollouts that cannot be scored out before this")
    return reward_T, _sampled(mask, reward_T.size)


def _sampled(mask: ArrayLike, size: int) -> NDArray[np.bool_]:
    mask_T = np.asarray(mask, dtype=np.float64).reshape(-1)
    if mask_T.size != size:
        raise ValueError(f"the mask has {mask_T.size} positions, the tokens {size}")
    if not np.isin(mask_T, (0.0, 1.0)).all():
        raise ValueError("a loss mask holds 0 and 1 only")
    return mask_T == 1.0


def _check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"{name} is {rate}: it lies between 0 and 1")


def _rewards_of_sampled(reward_T: Floats, sampled_T: NDArray[np.bool_]) -> Floats:
    """Rewards [K], each moved to the last sampled token at or before its position."""
    owner_T = np.cumsum(sampled_T) - 1
    earned = owner_T >= 0
    return np.bincount(owner_T[earned], weights=reward_T[earned], minlength=int(sampled_T.sum())).astype(np.float64)


def _discounted_sum(step_K: Floats, rate: float) -> Floats:
    out_K = np.zeros_like(step_K)
    following = 0.0
    for k in range(step_K.size - 1, -1, -1):
        following = out_K[k] = step_K[k] + rate * following
    return out_K


def _spread(value_K: Floats, sampled_T: NDArray[np.bool_]) -> Floats:
    out_T = np.zeros(sampled_T.size, dtype=np.float64)
    out_T[sampled_T] = value_K
    return out_T
