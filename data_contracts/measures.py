"""What batches are compared by: a finite number for each row.

frame of a validated table -> float64, one a row; a contract names them (`measure`)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from data_contracts.records import INFRASTRUCTURE
from data_contracts.rules._rows import Ragged

Measure = Callable[[pd.DataFrame], np.ndarray]


def infrastructure(trajectories: pd.DataFrame) -> np.ndarray:
    """1 for a rollout that an infrastructure failure ended."""
    return trajectories["status"].isin(INFRASTRUCTURE).to_numpy(dtype=np.float64)


def verified(trajectories: pd.DataFrame) -> np.ndarray:
    """1 for a rollout with an outcome."""
    return trajectories["outcome"].notna().to_numpy(dtype=np.float64)


def solved(trajectories: pd.DataFrame) -> np.ndarray:
    """1 for a rollout that solved its problem."""
    return trajectories["outcome"].fillna(False).to_numpy(dtype=np.float64)


def sampled_tokens(trajectories: pd.DataFrame) -> np.ndarray:
    """Tokens that a rollout sampled."""
    return trajectories["sampled_tokens"].to_numpy(dtype=np.float64)


def seconds(trajectories: pd.DataFrame) -> np.ndarray:
    """Wall-clock seconds of a rollout."""
    return trajectories["seconds"].to_numpy(dtype=np.float64)


def length(segments: pd.DataFrame) -> np.ndarray:
    """Tokens of a segment."""
    return Ragged(segments["token_ids"]).lengths.astype(np.float64)


def sampled_share(segments: pd.DataFrame) -> np.ndarray:
    """Share of a segment's tokens that were sampled."""
    mask = Ragged(segments["loss_mask"])
    return np.asarray(mask.sums(mask.values) / np.maximum(mask.lengths, 1))


def mean_logprob(segments: pd.DataFrame) -> np.ndarray:
    """Mean log-probability (nats) of a segment's sampled tokens; 0 without any."""
    mask, logprobs = Ragged(segments["loss_mask"]), Ragged(segments["rollout_logprobs"])
    totals = np.bincount(logprobs.rows, weights=logprobs.values, minlength=len(segments))
    return np.asarray(totals / np.maximum(mask.sums(mask.values), 1))


MEASURES: dict[str, Measure] = {
    measure.__name__: measure
    for measure in (infrastructure, verified, solved, sampled_tokens, seconds, length, sampled_share, mean_logprob)
}
