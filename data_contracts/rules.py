"""Cross-field rules: what no single column shows; each contract names those it lives by.

frame (and companion tables) -> one bool a row: does the rule hold there

A rule sees only rows that passed every column check and every earlier rule, so it may rely on types and on those;
it sees JSON columns parsed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from data_contracts.records import INFRASTRUCTURE, TOKEN_COLUMNS


class Rule(NamedTuple):
    """A rule as a contract names it: `holds(frame, *companions)` gives one bool a row."""

    name: str
    holds: Callable[..., np.ndarray]
    tables: tuple[str, ...]
    description: str


def rule_named(name: str, tables: tuple[str, ...], description: str) -> Rule:
    """The rule of that name in this module; LookupError where there is none or it takes other tables."""
    function = globals().get(name)
    if name.startswith("_") or not inspect.isfunction(function) or name == "rule_named":
        raise LookupError(f"data_contracts/rules.py has no rule {name!r}")
    wanted = tuple(inspect.signature(function).parameters)[1:]
    if wanted != tables:
        raise LookupError(f"the rule {name!r} takes the tables {list(wanted)}, the contract gives {list(tables)}")
    return Rule(name, function, tables, description)


# problems


def solution_files_known(frame: pd.DataFrame) -> np.ndarray:
    """The reference solution of a repair problem changes only files that the problem has."""
    rows = zip(frame["solution"], frame["files"], frame["environment"], strict=True)
    return _each(place != "repair" or set(solution) <= set(files) for solution, files, place in rows)


def solution_changes_files(frame: pd.DataFrame) -> np.ndarray:
    """The reference solution differs from the untouched files."""
    pairs = zip(frame["solution"], frame["files"], strict=True)
    return _each(any(files.get(name) != text for name, text in solution.items()) for solution, files in pairs)


def check_names_unique(frame: pd.DataFrame) -> np.ndarray:
    """Within `visible`, and within `hidden`, a check's name occurs once: a report names checks."""
    return _each(
        all(len({check["name"] for check in checks}) == len(checks) for checks in pair)
        for pair in zip(frame["visible"], frame["hidden"], strict=True)
    )


# trajectories


def passed_within_total(frame: pd.DataFrame) -> np.ndarray:
    """No more checks passed than were run, visible and hidden."""
    visible = frame["visible_passed"].fillna(0) <= frame["visible_total"]
    hidden = frame["hidden_passed"].fillna(0) <= frame["hidden_total"]
    return (visible & hidden).to_numpy(dtype=bool)


def status_reward_consistent(frame: pd.DataFrame) -> np.ndarray:
    """An infrastructure ending has neither an outcome nor an outcome reward: it says nothing about the policy."""
    infrastructure = frame["status"].isin(INFRASTRUCTURE).to_numpy(dtype=bool)
    rewarded = _each("outcome" in rewards for rewards in frame["rewards"])
    return ~(infrastructure & (rewarded | frame["outcome"].notna().to_numpy(dtype=bool)))


def outcome_matches_checks(frame: pd.DataFrame) -> np.ndarray:
    """Where there is an outcome, hidden checks were run, and it is True exactly when all of them passed."""
    outcome, passed, total = frame["outcome"], frame["hidden_passed"], frame["hidden_total"]
    verified = passed.notna() & (total > 0) & (outcome == (passed == total)).fillna(False)
    return (outcome.isna() | verified).to_numpy(dtype=bool)


def rewards_finite(frame: pd.DataFrame) -> np.ndarray:
    """Each reward term is a finite number."""
    return _each(all(_is_finite(value) for value in rewards.values()) for rewards in frame["rewards"])


def turns_in_order(frame: pd.DataFrame) -> np.ndarray:
    """Turns are numbered 0, 1, 2, ... and none is missing."""
    return _each([turn["index"] for turn in turns] == list(range(len(turns))) for turns in frame["turns"])


def turns_sum_to_sampled(frame: pd.DataFrame) -> np.ndarray:
    """The completion tokens of all turns are the sampled tokens."""
    sums = [sum(turn["completion_tokens"] for turn in turns) for turns in frame["turns"]]
    return np.asarray(sums, dtype=np.int64) == frame["sampled_tokens"].to_numpy(dtype=np.int64)


def one_digest_per_rollout(frame: pd.DataFrame) -> np.ndarray:
    """Within a rollout, one policy version is one set of weights: what its turns say, and what the trajectory names."""
    return _each(len(dict(pairs)) == len(set(pairs)) for pairs in _served(frame))


def one_digest_per_version(frame: pd.DataFrame) -> np.ndarray:
    """One policy version is one set of weights; without a majority all rows of the version are refused."""
    pairs = [(row, *pair) for row, pairs in enumerate(_served(frame)) for pair in set(pairs)]
    served = pd.DataFrame(pairs, columns=["row", "version", "digest"])
    wrong = set(served["row"][~_with_majority(served["version"], served["digest"])])
    return _each(row not in wrong for row in range(len(frame)))


def one_problem_per_group(frame: pd.DataFrame) -> np.ndarray:
    """A group holds the rollouts of one problem."""
    return _with_majority(frame["group_id"], frame["problem_id"])


def has_segment(frame: pd.DataFrame, segments: pd.DataFrame) -> np.ndarray:
    """A rollout has at least one segment; only one that broke down before it sampled anything may have none."""
    held = frame["id"].isin(segments["trajectory_id"])
    broke_down = frame["status"].isin(INFRASTRUCTURE) & (frame["sampled_tokens"] == 0)
    return (held | broke_down).to_numpy(dtype=bool)


def mask_sum_is_sampled(frame: pd.DataFrame, segments: pd.DataFrame) -> np.ndarray:
    """Over all segments of a rollout, the loss mask marks exactly the sampled tokens."""
    sums = pd.Series([int(np.sum(mask)) for mask in segments["loss_mask"]], dtype="int64")
    by_trajectory = sums.groupby(segments["trajectory_id"].to_numpy()).sum()
    marked = frame["id"].map(by_trajectory).fillna(0)
    return (marked.to_numpy(dtype=np.int64) == frame["sampled_tokens"].to_numpy(dtype=np.int64)).astype(bool)


# segments


def lengths_equal(frame: pd.DataFrame) -> np.ndarray:
    """All token columns of a segment that are there have one length."""
    rows = zip(*(frame[name] for name in TOKEN_COLUMNS), strict=True)
    return _each(len({len(value) for value in row if _is_list(value)}) == 1 for row in rows)


def finite_logprobs(frame: pd.DataFrame) -> np.ndarray:
    """Log-probabilities, and advantages where assigned, are finite: no NaN, no infinity of either sign."""
    pairs = zip(frame["rollout_logprobs"], frame["advantages"], strict=True)
    return _each(all(bool(np.isfinite(value).all()) for value in pair if _is_list(value)) for pair in pairs)


def logprob_only_where_sampled(frame: pd.DataFrame) -> np.ndarray:
    """A sampled token (mask 1) has a log-probability of at most 0; every other token has exactly 0."""
    pairs = zip(frame["loss_mask"], frame["rollout_logprobs"], strict=True)
    return _each(
        bool(np.where(np.asarray(mask) == 1, np.asarray(values) <= 0, np.asarray(values) == 0).all())
        for mask, values in pairs
    )


def turn_index_never_falls(frame: pd.DataFrame) -> np.ndarray:
    """Within a segment, tokens come turn by turn."""
    return _each(bool((np.diff(np.asarray(turns)) >= 0).all()) for turns in frame["turn_index"])


def routing_whole(frame: pd.DataFrame) -> np.ndarray:
    """Every token has the same number of experts, so many a layer; only the last, which no forward read, may have none.

    Where there is no routing, the numbers that describe it are null too.
    """
    rows = zip(frame["routed_experts"], frame["experts"], frame["experts_per_token"], strict=True)
    return _each(_routing_whole(*row) for row in rows)


def experts_in_range(frame: pd.DataFrame) -> np.ndarray:
    """Expert ids are below the number of experts."""
    return _each(chosen.size == 0 or int(chosen.max()) < experts for chosen, experts in _routing(frame))


def experts_recorded(frame: pd.DataFrame) -> np.ndarray:
    """Not all expert ids are 0: that is a recording that was never filled."""
    return _each(chosen.size == 0 or bool(chosen.any()) for chosen, _ in _routing(frame))


def experts_distinct(frame: pd.DataFrame) -> np.ndarray:
    """In a layer, a token goes to an expert once."""
    return _each(bool((np.diff(np.sort(chosen, axis=-1), axis=-1) > 0).all()) for chosen, _ in _routing(frame))


def segments_without_gap(frame: pd.DataFrame) -> np.ndarray:
    """The segments of a rollout are numbered 0, 1, 2, ...: a lost one is seen, and the rest is refused with it."""
    index = frame["index"].astype("int64").groupby(frame["trajectory_id"])
    return (index.transform("max") == index.transform("size") - 1).to_numpy(dtype=bool)


def belongs_to_trajectory(frame: pd.DataFrame, trajectories: pd.DataFrame) -> np.ndarray:
    """A segment's trajectory is there and was accepted."""
    return frame["trajectory_id"].isin(trajectories["id"]).to_numpy(dtype=bool)


def _served(frame: pd.DataFrame) -> list[list[tuple[str, str]]]:
    """Per row, (policy version, digest): the trajectory's own, then each turn's."""
    rows = zip(frame["policy_version"], frame["policy_digest"], frame["turns"], strict=True)
    return [
        [(version, digest), *((turn.get("policy_version") or version, turn["policy_digest"]) for turn in turns)]
        for version, digest, turns in rows
    ]


def _routing_whole(routed: Any, experts: Any, per_token: Any) -> bool:
    known = (not pd.isna(experts), not pd.isna(per_token))
    if not isinstance(routed, list | np.ndarray):
        return not any(known)
    widths = {len(ids) for ids in routed[:-1]}
    if not all(known) or len(widths) != 1:
        return False
    width = widths.pop()
    return width > 0 and width % int(per_token) == 0 and len(routed[-1]) in {0, width}


def _routing(frame: pd.DataFrame) -> Iterator[tuple[np.ndarray, int]]:
    """Per row, ids [tokens, layers, per token] and the number of experts; an empty array where there is no routing."""
    for routed, experts, per_token in zip(
        frame["routed_experts"], frame["experts"], frame["experts_per_token"], strict=True
    ):
        if _is_list(routed):
            ids = np.stack([np.asarray(ids, dtype=np.int64) for ids in routed if len(ids)])
            yield ids.reshape(len(ids), -1, int(per_token)), int(experts)
        else:
            yield np.empty((0, 0, 1), dtype=np.int64), 0


def _each(verdicts: Iterable[bool]) -> np.ndarray:
    return np.fromiter(verdicts, dtype=bool)


def _is_list(value: object) -> bool:
    return isinstance(value, list | np.ndarray)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _with_majority(keys: pd.Series, values: pd.Series) -> np.ndarray:
    """Whether a row's value is held by more than half of the rows with its key."""
    pairs = pd.DataFrame({"key": keys, "value": values})
    same = pairs.groupby(["key", "value"])["value"].transform("size")
    of_key = pairs.groupby("key")["value"].transform("size")
    return (2 * same > of_key).to_numpy(dtype=bool)
