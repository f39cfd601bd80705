"""How an attempt failed, by rules over its trajectory: what a person would look for first.

trajectory of a failed rollout -> the first rule that fits -> one of FAILURES
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from data_contracts.records import Trajectory, Turn

Failure = Literal["never_acted", "looped", "ran_out", "never_read", "gave_up", "untested", "wrong_edit"]
FAILURES: tuple[Failure, ...] = get_args(Failure)
MEANS: dict[Failure, str] = {
    "never_acted": "no call of its could be run",
    "looped": "one call on the same files, one edit, or one state of the files came three times",
    "ran_out": "it was at work when turns, tokens or context were used up",
    "never_read": "it changed files that it had not looked at",
    "gave_up": "it handed in without a change, or though its last checks failed",
    "untested": "it handed in a change without running the checks",
    "wrong_edit": "its change passes the checks it can run, and not the hidden ones",
}
"""In the order in which the rules are asked."""

LOOKS = frozenset({"read", "search", "list", "read_artifact"})
TESTS = frozenset({"test", "run"})
REPEATS = 3
"""Times that make a loop."""


def failure_of(trajectory: Trajectory, files: Mapping[str, str]) -> Failure | None:
    """Why a rollout failed; None where it did not, or cannot be scored. `files` are the problem's, untouched.

    A problem whose tools have other names than ours has no `never_read` and no `untested` (nothing is known of them).
    """
    if not trajectory.scorable or trajectory.outcome:
        return None
    turns = [turn for turn in trajectory.turns if turn.purpose == "work"]
    called = [call.name for turn in turns for call in turn.calls]
    if not called:
        return "never_acted"
    if _loops(turns, files):
        return "looped"
    if not trajectory.submitted and trajectory.status in ("out_of_turns", "out_of_tokens"):
        return "ran_out"
    changed = any(turn.changed for turn in turns)
    if changed and LOOKS & {*called} == set() and TESTS & {*called}:
        return "never_read"
    seen = next((turn.visible for turn in reversed(turns) if turn.visible is not None), None)
    if not changed or (seen is not None and seen[0] < seen[1]):
        return "gave_up"
    return "untested" if seen is None and not TESTS & {*called} and LOOKS & {*called} else "wrong_edit"


def _loops(turns: Sequence[Turn], files: Mapping[str, str]) -> bool:
    """Whether it went round, REPEATS times: one call on the same files, one edit, or the same files come back to."""
    calls: Counter[tuple[str, ...]] = Counter()
    now = dict(files)
    states = Counter([_state(now)])
    for turn in turns:
        for call in turn.calls:
            asks = call.name in LOOKS | TESTS
            calls[call.name, repr(sorted(call.arguments.items())), _state(now) if asks else ""] += 1
        if turn.changed:
            now = turn.after(now)
            states[_state(now)] += 1
    return max([*calls.values(), *states.values()]) >= REPEATS


def _state(files: Mapping[str, str]) -> str:
    return repr(sorted(files.items()))
