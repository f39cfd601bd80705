"""Rules of the table trajectories; those of their turns are in `turns`.

frame of trajectories (and segments) -> one bool a row
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from data_contracts.records import INFRASTRUCTURE
from data_contracts.rules._rows import Ragged, each, with_majority


def passed_within_total(frame: pd.DataFrame) -> np.ndarray:
    """No more checks passed than were run, visible and hidden."""
    visible = frame["visible_passed"].fillna(0) <= frame["visible_total"]
    hidden = frame["hidden_passed"].fillna(0) <= frame["hidden_total"]
    return (visible & hidden).to_numpy(dtype=bool)


def status_reward_consistent(frame: pd.DataFrame) -> np.ndarray:
    """An infrastructure ending has neither an outcome nor an outcome reward: it says nothing about the policy."""
    infrastructure = frame["status"].isin(INFRASTRUCTURE).to_numpy(dtype=bool)
    rewarded = each("outcome" in rewards for rewards in frame["rewards"])
    return ~(infrastructure & (rewarded | frame["outcome"].notna().to_numpy(dtype=bool)))


def outcome_matches_checks(frame: pd.DataFrame) -> np.ndarray:
    """Where there is an outcome, hidden checks were run, and it is True exactly when all of them passed."""
    outcome, passed, total = frame["outcome"], frame["hidden_passed"], frame["hidden_total"]
    verified = passed.notna() & (total > 0) & (outcome == (passed == total)).fillna(False)
    return (outcome.isna() | verified).to_numpy(dtype=bool)


def rewards_finite(frame: pd.DataFrame) -> np.ndarray:
    """Each reward term is a finite number."""
    return each(all(math.isfinite(value) for value in rewards.values()) for rewards in frame["rewards"])


def turns_sum_to_sampled(frame: pd.DataFrame) -> np.ndarray:
    """The completion tokens of all turns are the sampled tokens."""
    sums = [sum(turn["completion_tokens"] for turn in turns) for turns in frame["turns"]]
    return np.asarray(sums, dtype=np.int64) == frame["sampled_tokens"].to_numpy(dtype=np.int64)


def one_digest_per_rollout(frame: pd.DataFrame) -> np.ndarray:
    """Within a rollout, one policy version is one set of weights: what its turns say, and what the trajectory names."""
    return each(len(dict(pairs)) == len(pairs) for pairs in _served(frame))


def one_digest_per_version(frame: pd.DataFrame) -> np.ndarray:
    """One policy version is one set of weights; without a majority all rows of the version are refused."""
    pairs = [(row, *pair) for row, pairs in enumerate(_served(frame)) for pair in pairs]
    served = pd.DataFrame(pairs, columns=["row", "version", "digest"])
    wrong = set(served["row"][~with_majority(served["version"], served["digest"])])
    return each(row not in wrong for row in range(len(frame)))


def one_problem_per_group(frame: pd.DataFrame) -> np.ndarray:
    """A group holds the rollouts of one problem."""
    return with_majority(frame["group_id"], frame["problem_id"])


def has_segment(frame: pd.DataFrame, segments: pd.DataFrame) -> np.ndarray:
    """A rollout has at least one segment; only one that broke down before it sampled anything may have none."""
    held = frame["id"].isin(segments["trajectory_id"])
    broke_down = frame["status"].isin(INFRASTRUCTURE) & (frame["sampled_tokens"] == 0)
    return (held | broke_down).to_numpy(dtype=bool)


def mask_sum_is_sampled(frame: pd.DataFrame, segments: pd.DataFrame) -> np.ndarray:
    """Over all segments of a rollout, the loss mask marks exactly the sampled tokens."""
    mask = Ragged(segments["loss_mask"])
    sums = pd.Series(mask.sums(mask.values), dtype="int64").groupby(segments["trajectory_id"].to_numpy()).sum()
    marked = frame["id"].map(sums).fillna(0).to_numpy(dtype=np.int64)
    return np.asarray(marked == frame["sampled_tokens"].to_numpy(dtype=np.int64))


def _served(frame: pd.DataFrame) -> list[set[tuple[str, str]]]:
    """Per row, each (policy version, digest): the trajectory's own, and each turn's."""
    rows = zip(frame["policy_version"], frame["policy_digest"], frame["turns"], strict=True)
    return [
        {(version, digest), *((turn.get("policy_version") or version, turn["policy_digest"]) for turn in turns)}
        for version, digest, turns in rows
    ]
