"""Rules of the table audit: what a gateway recorded of live sessions.

frame of audit rows -> one bool a row
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from data_contracts.rules._rows import with_majority


def served_turn_is_measured(frame: pd.DataFrame) -> np.ndarray:
    """A turn that was served says how many tokens it took and how long."""
    served = (frame["kind"] == "turn") & (frame["status"] == "ok")
    measured = frame[["prompt_tokens", "completion_tokens", "latency"]].notna().all(axis=1)
    return (~served | measured).to_numpy(dtype=bool)


def cached_within_prompt(frame: pd.DataFrame) -> np.ndarray:
    """No more of the context came from a cache than there is."""
    return (frame["cached_tokens"].fillna(0) <= frame["prompt_tokens"].fillna(0)).to_numpy(dtype=bool)


def outcome_of_sessions_alone(frame: pd.DataFrame) -> np.ndarray:
    """Sessions have outcomes, turns have none."""
    return ((frame["kind"] == "outcome") | frame["outcome"].isna()).to_numpy(dtype=bool)


def shadow_is_candidate(frame: pd.DataFrame) -> np.ndarray:
    """A copy of a request is answered by the candidate alone."""
    return (~frame["shadow"] | (frame["arm"] == "candidate")).to_numpy(dtype=bool)


def one_digest_per_release(frame: pd.DataFrame) -> np.ndarray:
    """One release is one set of weights; without a majority all its rows are refused."""
    return with_majority(frame["release"], frame["digest"])
