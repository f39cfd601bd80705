"""`ratchet show`: one session, turn by turn.

run + id or a part of it -> trajectories.parquet (or what was sampled so far) -> Trajectory -> text
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from data_contracts.errors import UserError
from data_contracts.problems import read_pack
from data_contracts.records import Trajectory, Turn
from data_contracts.store import read_trajectories
from flows.runs import all_runs
from tasks.paths import RunFolder, Sessions
from tasks.rollout.journal import Journal

LISTED = 5
"""How many ids an error names."""


class Place(NamedTuple):
    """Where a session is kept: the set of sessions, by its folder within the run, and the session's id."""

    sessions: Sessions
    folder: str
    id: str

    def __str__(self) -> str:
        return f"{self.folder}:{self.id}"


def latest_run(home: Path) -> RunFolder:
    """The run that was begun last; UserError where there is none."""
    runs = all_runs(home)
    if not runs:
        raise UserError(f"{home} holds no run: give `ratchet run RECIPE` first, or the right folder by --home.")
    return RunFolder(home.resolve() / str(runs[-1]["id"]))


def find_session(run: RunFolder, wanted: str) -> Trajectory:
    """The one session whose id is `wanted`, ends with it as a path does, or holds it; UserError for none or several.

    Where two sets of sessions hold one id, the folder tells them apart: `evaluation/after:<id>`.
    """
    places = list(_places(run))
    if not places:
        raise UserError(f"{run.root} holds no sessions yet: wait for its first iteration.")
    for fits in (_is, _ends, _holds):
        found = [place for place in places if fits(place, wanted)]
        if len(found) == 1:
            return _trajectory(found[0])
        if found:
            raise UserError(f"{wanted!r} fits {len(found)} sessions of {run.id}: write more of {_named(found)}.")
    near = difflib.get_close_matches(wanted, [place.id for place in places], n=LISTED, cutoff=0.0)
    raise UserError(f"{run.id} has no session {wanted!r}: the nearest of its {len(places)} are {', '.join(near)}.")


def show_session(run: RunFolder, trajectory: Trajectory, console: Console | None = None) -> None:
    """Print it for a person: what was sampled, what was called, what came back, how it ended."""
    console = console or Console()
    for text in _lines(trajectory, _prompt(run, trajectory)):
        console.print(text, soft_wrap=True)


def _places(run: RunFolder) -> Iterator[Place]:
    """Every session of a run, iterations first, then evaluations."""
    for root in (*sorted(run.root.glob("iterations/*")), *sorted(run.root.glob("evaluation/*"))):
        sessions, folder = Sessions(root), root.relative_to(run.root).as_posix()
        for name in _ids(sessions):
            yield Place(sessions, folder, name)


def _ids(sessions: Sessions) -> list[str]:
    for table in (sessions.trajectories, sessions.rollouts):
        if table.exists():
            found: list[str] = pq.read_table(table, columns=["id"])["id"].to_pylist()
            return found
    return Journal(sessions.journal).ids


def _trajectory(place: Place) -> Trajectory:
    for table in (place.sessions.trajectories, place.sessions.rollouts):
        if table.exists():
            return next(each for each in read_trajectories(table) if each.id == place.id)
    rollout = Journal(place.sessions.journal).finished(place.id)
    assert rollout is not None  # its id came from there
    return rollout.trajectory


def _is(place: Place, wanted: str) -> bool:
    return wanted in (place.id, str(place))


def _ends(place: Place, wanted: str) -> bool:
    return str(place).endswith((f"/{wanted}", f":{wanted}"))


def _holds(place: Place, wanted: str) -> bool:
    return wanted in str(place)


def _named(places: list[Place]) -> str:
    """Some of their ids, with the folder where one id is in two."""
    unique = len({place.id for place in places}) == len(places)
    names = [place.id if unique else str(place) for place in places[:LISTED]]
    rest = f" or {len(places) - LISTED} others" if len(places) > LISTED else ""
    return ", ".join(names) + rest


def _prompt(run: RunFolder, trajectory: Trajectory) -> str:
    """The problem's text; empty where the run no longer holds the problem."""
    for pack in (run.train, run.heldout):
        if pack.exists():
            for problem in read_pack(pack).problems:
                if problem.id == trajectory.problem_id:
                    return problem.prompt
    return ""


def _lines(trajectory: Trajectory, prompt: str) -> Iterator[Text]:
    yield Text(trajectory.id, style="bold")
    yield Text(
        f"problem {trajectory.problem_id} ({trajectory.horizon}), {trajectory.policy_version}, "
        f"temperature {trajectory.sampling.temperature:g}, seed {trajectory.sampling.seed}"
    )
    if prompt:
        yield Text(f"\n{prompt}", style="italic")
    for turn in trajectory.turns:
        yield from _turn(turn)
    yield Text(f"\n{_ending(trajectory)}", style="bold")
    yield Text(_outcome(trajectory))
    if trajectory.rewards:
        yield Text("rewards: " + ", ".join(f"{name} {value + 0.0:g}" for name, value in trajectory.rewards.items()))


def _turn(turn: Turn) -> Iterator[Text]:
    cut = ", cut by length" if turn.finish_reason == "length" else ""
    spent = f"{turn.sample_seconds:.2f} s sampling, {turn.tool_seconds:.2f} s tools"
    counts = f"{turn.completion_tokens} tokens after {turn.prompt_tokens}{cut}"
    yield Text(f"\nturn {turn.index}: {counts}; {spent}", style="bold cyan")
    yield Text(turn.completion)
    for call in turn.calls:
        arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        yield Text(f"-> {call.name}({arguments})", style="green")
    if turn.observation:
        style = "red" if turn.tool_failed or turn.call_errors else "dim"
        yield Text("\n".join(f"   {line}" for line in turn.observation.split("\n")), style=style)


def _ending(trajectory: Trajectory) -> str:
    detail = f" ({trajectory.detail})" if trajectory.detail else ""
    handed = "submitted" if trajectory.submitted else "not submitted"
    return (
        f"{trajectory.status}{detail}, {handed}; {len(trajectory.turns)} turns, {trajectory.sampled_tokens} tokens "
        f"sampled, {trajectory.malformed_calls} malformed calls, {trajectory.tool_errors} failed calls"
    )


def _outcome(trajectory: Trajectory) -> str:
    verdict = {True: "solved", False: "not solved", None: "not verified"}[trajectory.outcome]
    checks = []
    if trajectory.visible_passed is not None:
        checks.append(f"visible checks {trajectory.visible_passed} of {trajectory.visible_total}")
    if trajectory.hidden_passed is not None:
        checks.append(f"hidden checks {trajectory.hidden_passed} of {trajectory.hidden_total}")
    return "; ".join([f"outcome: {verdict}", *checks])
