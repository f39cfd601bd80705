"""Rules of the table segments.

frame of segments (and trajectories) -> one bool a row
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from data_contracts.records import TOKEN_COLUMNS
from data_contracts.rules._rows import Ragged, each, is_list


def lengths_equal(frame: pd.DataFrame) -> np.ndarray:
    """All token columns of a segment that are there have one length."""
    wanted = frame["token_ids"].map(len)
    columns = [frame[name].dropna() for name in TOKEN_COLUMNS]
    wrong = [cells.index[cells.map(len) != wanted[cells.index]] for cells in columns]
    return ~frame.index.isin(np.concatenate(wrong))


def finite_logprobs(frame: pd.DataFrame) -> np.ndarray:
    """Log-probabilities, and advantages where assigned, are finite: no NaN, no infinity of either sign."""
    columns = (Ragged(frame[name]) for name in ("rollout_logprobs", "advantages"))
    return np.logical_and.reduce([column.all(np.isfinite(column.values)) for column in columns])


def logprob_only_where_sampled(frame: pd.DataFrame) -> np.ndarray:
    """A sampled token (mask 1) has a log-probability of at most 0; every other token has exactly 0."""
    mask, logprobs = Ragged(frame["loss_mask"]), Ragged(frame["rollout_logprobs"])
    return mask.all(np.where(mask.values == 1, logprobs.values <= 0, logprobs.values == 0))


def turn_index_never_falls(frame: pd.DataFrame) -> np.ndarray:
    """Within a segment, tokens come turn by turn."""
    turns = Ragged(frame["turn_index"])
    rises = np.append(True, np.diff(turns.values) >= 0)
    return turns.all(rises | (turns.positions == 0))


def versions_where_sampled(frame: pd.DataFrame) -> np.ndarray:
    """Where tokens name the policy version that sampled them, exactly the sampled ones do."""
    there = frame["policy_numbers"].map(is_list).to_numpy(dtype=bool)
    numbers, mask = Ragged(frame["policy_numbers"]), Ragged(frame["loss_mask"][there])
    holds = np.ones(len(frame), dtype=bool)
    holds[there] = mask.all((numbers.values >= 0) == (mask.values == 1))
    return holds


def routing_whole(frame: pd.DataFrame) -> np.ndarray:
    """Every token has the same number of experts, so many a layer; only the last, which no forward read, may have none.

    Where there is no routing, the numbers that describe it are null too.
    """
    rows = zip(frame["routed_experts"], frame["experts"], frame["experts_per_token"], strict=True)
    return each(_routing_whole(*row) for row in rows)


def experts_in_range(frame: pd.DataFrame) -> np.ndarray:
    """Expert ids are below the number of experts."""
    return each(chosen.size == 0 or int(chosen.max()) < experts for chosen, experts in _routing(frame))


def experts_recorded(frame: pd.DataFrame) -> np.ndarray:
    """Not all expert ids are 0: that is a recording that was never filled."""
    return each(chosen.size == 0 or bool(chosen.any()) for chosen, _ in _routing(frame))


def experts_distinct(frame: pd.DataFrame) -> np.ndarray:
    """In a layer, a token goes to an expert once."""
    return each(bool((np.diff(np.sort(chosen, axis=-1), axis=-1) > 0).all()) for chosen, _ in _routing(frame))


def segments_without_gap(frame: pd.DataFrame) -> np.ndarray:
    """The segments of a rollout are numbered 0, 1, 2, ...: a lost one is seen, and the rest is refused with it."""
    index = frame["index"].astype("int64").groupby(frame["trajectory_id"])
    return (index.transform("max") == index.transform("size") - 1).to_numpy(dtype=bool)


def belongs_to_trajectory(frame: pd.DataFrame, trajectories: pd.DataFrame) -> np.ndarray:
    """A segment's trajectory is there and was accepted."""
    return frame["trajectory_id"].isin(trajectories["id"]).to_numpy(dtype=bool)


def _routing_whole(routed: Any, experts: Any, per_token: Any) -> bool:
    known = (not pd.isna(experts), not pd.isna(per_token))
    if not is_list(routed):
        return not any(known)
    widths = Ragged(routed).lengths
    if not all(known) or len(widths) < 2:
        return False
    width = int(widths[0])
    even = bool((widths[:-1] == width).all()) and widths[-1] in (0, width)
    return even and width > 0 and width % int(per_token) == 0


def _routing(frame: pd.DataFrame) -> Iterator[tuple[np.ndarray, int]]:
    """Per row, ids [tokens, layers, per token] and the number of experts; an empty array where there is no routing."""
    for routed, experts, per_token in zip(
        frame["routed_experts"], frame["experts"], frame["experts_per_token"], strict=True
    ):
        if is_list(routed):
            ids = Ragged(routed).values.astype(np.int64)
            yield ids.reshape(len(ids) // len(routed[0]), -1, int(per_token)), int(experts)
        else:
            yield np.empty((0, 0, 1), dtype=np.int64), 0
