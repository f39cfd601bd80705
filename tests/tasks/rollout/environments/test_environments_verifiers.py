"""Tasks of two tasksets written for `verifiers`: played through tools, judged by their own rewards, faults typed."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from data_contracts.errors import UserError
from data_contracts.records import Check, Limits, Problem, ToolCall
from tasks.curriculum.intake import admit
from tasks.rollout.environments.base import VerifierError
from tasks.rollout.environments.verifiers import Verifiers
from tasks.rollout.environments.verifiers.client import HostError
from tasks.rollout.environments.verifiers.importing import Terms, import_taskset
from tasks.rollout.environments.verifiers.session import LEFT, TRANSCRIPT, VerifiersSession
from tasks.rollout.sandbox import SandboxError, WarmPool

MakeOdd = Callable[..., Problem]


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(1, "test") as sandboxes:
        yield sandboxes


def say(session: VerifiersSession, tool: str, /, **arguments: object) -> tuple[str, bool, bool]:
    """One message with one call; what came back."""
    call = ToolCall(name=tool, arguments=arguments)
    assert not session.hear("", [call])
    return tuple(session.call(call))


def test_tasks_become_problems(stockroom: list[Problem], sums: list[Problem], pool: WarmPool) -> None:
    assert [problem.id for problem in stockroom] == [f"stockroom-list-{number}" for number in range(4)]
    assert [problem.id for problem in sums] == ["sums-0", "sums-1"]
    assert [tool["function"]["name"] for tool in stockroom[0].origin.tools] == ["count", "move"]
    assert Problem.model_validate_json(stockroom[0].model_dump_json()) == stockroom[0]
    assert VerifiersSession(sums[0], sums[0].origin, lambda: None).messages() == [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "What is 2 + 5?"},
    ]


def test_what_tools_left_is_judged_elsewhere(verifiers: Verifiers, stockroom: list[Problem], pool: WarmPool) -> None:
    problem = stockroom[1]  # nuts 4 to 1, one pin stays
    session = verifiers.open(problem, pool)
    assert say(session, "count") == ("nuts: 4, pins: 1", False, False)
    assert say(session, "move", name="nuts") == ("error: move takes name, amount", True, False)
    assert say(session, "fly") == ("error: no tool 'fly': there are count, move", True, False)
    text, failed, _ = say(session, "move", name="nuts", amount=-9)
    assert failed and text.endswith("there are only 4 nuts")
    assert say(session, "move", name="nuts", amount=-2) == ("nuts: 2", False, False)
    assert verifiers.verify(problem, session.files, pool) == (0.0, 0, 1)
    assert say(session, "move", name="nuts", amount=-1) == ("nuts: 1", False, False)
    assert session.hear("done", ())
    handed_in = json.loads(json.dumps(session.files))
    assert verifiers.verify(problem, handed_in, pool) == (1.0, 1, 1)
    assert json.loads(handed_in[LEFT])["state"]["amounts"] == {"nuts": 1, "pins": 1}
    roles = [message["role"] for message in json.loads(handed_in[TRANSCRIPT])]
    assert roles == ["assistant", "tool"] * 6 + ["assistant"]


def test_sessions_on_one_problem_share_nothing(verifiers: Verifiers, stockroom: list[Problem], pool: WarmPool) -> None:
    one, other = (verifiers.open(stockroom[0], pool) for _ in range(2))
    assert say(one, "move", name="bolts", amount=2)[0] == "bolts: 5"
    assert say(other, "count")[0] == "bolts: 3"


def test_the_answer_is_scored_and_rewards_are_weighed(
    verifiers: Verifiers, sums: list[Problem], pool: WarmPool
) -> None:
    worth = {}
    for reply in ("7", "It is the number 7, as I said before.", "8", ""):
        session = verifiers.open(sums[0], pool)
        assert session.hear(reply, ())
        worth[reply] = verifiers.verify(sums[0], session.files, pool)
    assert list(worth.values()) == [(1.0, 1, 1), (0.9, 0, 1), (0.1, 0, 1), (0.0, 0, 1)]
    steps = tuple(Check(name=f"{least:g}", reward=least) for least in (0.5, 1.0))
    easier = sums[0].model_copy(update={"hidden": steps})
    session = verifiers.open(easier, pool)
    session.hear("It is the number 7, as I said before.", ())
    assert verifiers.verify(easier, session.files, pool) == (0.9, 1, 2)


def test_intake_admits_what_can_be_solved_and_is_not(
    stockroom: list[Problem], sums: list[Problem], odd: MakeOdd, pool: WarmPool
) -> None:
    assert [admit(problem, pool).reason for problem in (stockroom[2], sums[1])] == ["", ""]
    reasons = {kind: admit(odd(kind), pool).reason for kind in ("free", "wrong", "unsure", "double", "setup")}
    assert "the untouched problem passes all its hidden checks" in reasons["free"]
    assert reasons["wrong"].startswith("the reference solution fails: hidden check 'reward': validate() gives False")
    assert "validate() gives None" in reasons["unsure"]
    assert "the rewards sum to 2" in reasons["double"] and "task.rewards.NAME.weight" in reasons["double"]
    assert "TaskError: setup: KeyError: 'no shelf'" in reasons["setup"]
    shorter = {"turns.json": json.dumps([{"content": "done"}])}
    unsolved = admit(stockroom[2].model_copy(update={"solution": shorter}), pool).reason
    assert unsolved.startswith("the reference solution fails: hidden check 'reward': the reward is 0")
    odd_one = stockroom[2].model_copy(update={"solution": {"turns.json": '[{"said": "done"}]'}})
    assert "no list of messages: 0.said: Extra inputs are not permitted: write" in admit(odd_one, pool).reason
    coded = stockroom[0].model_copy(update={"hidden": (Check(name="c", code="assert 1"),)})
    assert "check 'c' has code: give `reward`, or write environment = 'repair'" in admit(coded, pool).reason


@pytest.mark.parametrize("kind", ["double", "nan", "below"])
def test_a_reward_that_is_no_score_is_a_verifier_error(
    verifiers: Verifiers, odd: MakeOdd, pool: WarmPool, kind: str
) -> None:
    problem = odd(kind)
    with pytest.raises(VerifierError, match=r"no score from 0 to 1 .*: weigh them by task\.rewards\.NAME\.weight"):
        verifiers.verify(problem, problem.files, pool)


def test_scoring_that_raises_or_hangs_is_a_verifier_error(verifiers: Verifiers, odd: MakeOdd, pool: WarmPool) -> None:
    silent, slow = odd("silence"), odd("slow", seconds=1.0)
    with pytest.raises(VerifierError, match=r"TaskError: task OddTask scoring: ZeroDivisionError"):
        verifiers.verify(silent, silent.files, pool)
    started = time.monotonic()
    with pytest.raises(VerifierError, match=r"score took longer than 1 s and was killed: raise limits.seconds"):
        verifiers.verify(slow, slow.files, pool)
    assert time.monotonic() - started < 30
    assert verifiers.trial(slow, slow.files, pool) == ("timeout", ())


def test_a_tool_that_hangs_or_dies_ends_its_session_alone(verifiers: Verifiers, odd: MakeOdd, pool: WarmPool) -> None:
    problem = odd("plain", seconds=2.0)
    hung, dead, well = (verifiers.open(problem, pool) for _ in range(3))
    with pytest.raises(TimeoutError, match=r"call took longer than 2 s and was killed"):
        say(hung, "odd_tools_sleep", seconds=600)
    with pytest.raises(HostError, match="call: out of order"):
        say(dead, "odd_tools_die")
    assert say(well, "odd_tools_sleep", seconds=0) == ("awake", False, False)


def test_a_stop_of_the_task_ends_the_session(verifiers: Verifiers, odd: MakeOdd, pool: WarmPool) -> None:
    session = verifiers.open(odd("stops"), pool)
    assert [say(session, "odd_tools_sleep", seconds=0)[2] for _ in range(2)] == [False, True]


def test_a_killed_host_is_an_infrastructure_failure_and_starts_again(
    verifiers: Verifiers, odd: MakeOdd, pool: WarmPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, host = odd("plain"), verifiers.host("odd")
    monkeypatch.setattr(host, "_start", lambda: None)
    os.kill(host._process.pid, signal.SIGKILL)
    host._process.wait()
    with pytest.raises(SandboxError, match="taskset 'odd' did not start"):
        verifiers.verify(problem, problem.files, pool)
    monkeypatch.undo()
    assert verifiers.verify(problem, problem.files, pool) == (0.0, 0, 1)


def test_what_cannot_be_played_is_refused_at_import(verifiers: Verifiers, odd: MakeOdd) -> None:
    terms = Terms(Limits())
    with pytest.raises(UserError, match=r"task 'boxed' needs a container: that is not offered here"):
        odd("boxed")
    with pytest.raises(UserError, match=r"task 'list-0' has nothing to show that it can be solved: write the task's"):
        import_taskset(verifiers, "stockroom", terms)
    with pytest.raises(UserError, match=r"has no task 'list-9', for which a solution is given"):
        import_taskset(verifiers, "stockroom", terms, solutions={"list-9": []})
    with pytest.raises(UserError, match=r"taskset 'sums': TaskError: .*\n?count"):
        import_taskset(verifiers, "sums", terms, config={"count": "many"})
    with pytest.raises(UserError, match=r"taskset 'no_such_taskset' did not start: ModuleNotFoundError"):
        import_taskset(verifiers, "no_such_taskset", terms)


def test_no_fork_outlives_its_session(verifiers: Verifiers, stockroom: list[Problem], pool: WarmPool) -> None:
    host = verifiers.host("stockroom")

    def forks() -> set[str]:
        with open(f"/proc/{host._process.pid}/task/{host._process.pid}/children") as file:
            return set(re.findall(r"\d+", file.read()))

    before = forks()
    session = verifiers.open(stockroom[0], pool)
    say(session, "count")
    assert len(forks() - before) == 1
    del session
    deadline = time.monotonic() + 20
    while forks() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert forks() <= before


def test_isolation_that_is_asked_for_is_not_given_up(verifiers: Verifiers, stockroom: list[Problem]) -> None:
    class Isolated:
        require_isolation = True

    with pytest.raises(UserError, match=r"runs outside of the sandbox: write rollout.require_isolation = false"):
        verifiers.open(stockroom[0], Isolated())
