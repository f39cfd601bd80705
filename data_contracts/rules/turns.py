"""Rules of the table turns: the rows that a trajectory's column `turns` holds.

frame of turns (and segments) -> one bool a row
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from data_contracts.rules._rows import Ragged, each, sampled_runs


def turns_in_order(frame: pd.DataFrame) -> np.ndarray:
    """A rollout's turns are numbered 0, 1, 2, ... and none is missing; else all of them are refused."""
    rollout = frame["trajectory_id"]
    wrong = frame["index"].astype("int64") != rollout.groupby(rollout).cumcount()
    return ~wrong.groupby(rollout).transform("any").to_numpy(dtype=bool)


def cached_within_prompt(frame: pd.DataFrame) -> np.ndarray:
    """No more of the context was held by the engine than there is."""
    return (frame["cached_tokens"] <= frame["prompt_tokens"]).to_numpy(dtype=bool)


def answers_within_calls(frame: pd.DataFrame) -> np.ndarray:
    """A call is answered at most once, and an answer ends within the observation, after the one before."""
    rows = zip(frame["answers"], frame["calls"], frame["observation"], strict=True)
    return each(
        len(answers) <= len(calls) and _rising([0, *(answer["end"] for answer in answers), len(text)])
        for answers, calls, text in rows
    )


def visible_within_total(frame: pd.DataFrame) -> np.ndarray:
    """No more visible checks passed than were run."""
    return each(pair is None or pair[0] <= pair[1] for pair in frame["visible"])


def segment_never_falls(frame: pd.DataFrame) -> np.ndarray:
    """Once the context was rewritten, no later turn is in an earlier segment."""
    return _after_the_last(frame, lambda before, now: now["segment"] < before["segment"])


def context_grows(frame: pd.DataFrame) -> np.ndarray:
    """Within a segment, a turn's context is at least the context and completion of the turn before."""
    return _after_the_last(
        frame,
        lambda before, now: (
            (now["segment"] == before["segment"])
            & (now["prompt_tokens"] < before["prompt_tokens"] + before["completion_tokens"])
        ),
    )


def prefix_property(frame: pd.DataFrame, segments: pd.DataFrame) -> np.ndarray:
    """In its segment, what a turn sampled stands in one piece right after the context it was sampled from."""
    runs = sampled_runs(Ragged(segments["loss_mask"]), Ragged(segments["turn_index"]))
    found = pd.DataFrame(
        {
            "trajectory_id": segments["trajectory_id"].to_numpy()[runs.row],
            "segment": segments["index"].to_numpy(dtype=np.int64)[runs.row],
            "index": runs.turn.astype(np.int64),
            "start": np.where(runs.last - runs.start + 1 == runs.tokens, runs.start, -1),
            "count": runs.tokens,
        }
    )
    names = ["trajectory_id", "segment", "index"]
    wanted = frame[[*names, "prompt_tokens", "completion_tokens"]].astype(dict.fromkeys(names[1:], "int64"))
    both = wanted.merge(found, on=names, how="left")
    sampled = (both["completion_tokens"] > 0).to_numpy(dtype=bool)
    whole = (both["start"] == both["prompt_tokens"]) & (both["count"] == both["completion_tokens"])
    return np.asarray(~sampled | whole.fillna(False).to_numpy(dtype=bool))


def _after_the_last(frame: pd.DataFrame, breaks: Callable[[pd.DataFrame, pd.DataFrame], pd.Series]) -> np.ndarray:
    """Whether each turn that has one before it, in its rollout, stands right to it."""
    numbers = frame[["segment", "prompt_tokens", "completion_tokens"]].astype("int64")
    before = numbers.shift()
    same = (frame["trajectory_id"] == frame["trajectory_id"].shift()).to_numpy(dtype=bool)
    return np.asarray(~(same & breaks(before, numbers).to_numpy(dtype=bool)))


def _rising(numbers: list[int]) -> bool:
    return numbers == sorted(numbers)
