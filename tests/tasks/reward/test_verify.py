from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from data_contracts.problems import write_pack
from data_contracts.records import Check, Limits, Problem
from data_contracts.store import read_trajectories, write_trajectories
from tasks.reward.config import RewardConfig
from tasks.reward.steps import verify_rollouts
from tasks.reward.terms import scalar_reward
from tasks.reward.verify import verify, verify_all
from tasks.rollout.sandbox import SandboxError, WarmPool

BUG = "def double(x):\n    return x + 1\n"
FIX = "def double(x):\n    return x * 2\n"
HELPER = "STEP = 2\n"
LOOPS = [
    "def double(x):\n    while True:\n        pass\n",
    "def double(x):\n    while True:\n        try: pass\n        except BaseException: pass\n",
    "while True:\n    pass\n",
    "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\ntime.sleep(1e6)\n",
]
PROBLEM = Problem(
    id="p",
    prompt="repair double",
    files={"double.py": BUG, "helper.py": HELPER},
    visible=(Check(name="three", code="assert double(3) == 6"),),
    hidden=(Check(name="five", code="assert double(5) == 10"), Check(name="one", code="assert double(1) == STEP")),
    solution={"double.py": FIX},
    limits=Limits(seconds=1.0),
)


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(2, name="verifier") as pool:
        yield pool


def unverified(make: Any, source: str, **changes: Any):
    files = {"double.py": source, "helper.py": HELPER}
    return make(**({"outcome": None, "files": files, "submitted": True} | changes))


@pytest.mark.parametrize(
    ("source", "passed"),
    [
        (FIX, 2),
        (BUG, 1),
        ("def double(x:\n", 0),
        ("def double(x):\n    while True:\n        pass\n", 0),
        ("import os\nos._exit(0)\n", 0),
        (FIX + "import sys\nsys.exit(0)\n", 0),
    ],
)
def test_the_outcome_is_that_of_the_hidden_checks(make_trajectory, pool, source, passed):
    found = verify(unverified(make_trajectory, source), PROBLEM, pool)
    assert (found.hidden_passed, found.hidden_total, found.outcome) == (passed, 2, passed == 2)
    assert found.status == "completed"


def test_unsubmitted_rollouts_are_verified_as_they_were_left(make_trajectory, pool):
    left = unverified(make_trajectory, FIX, submitted=False, status="out_of_turns")
    assert verify(left, PROBLEM, pool).outcome is True


def test_a_cut_rollout_keeps_its_ending_and_costs_a_whole_one_nothing(make_trajectory, pool):
    ends = [("completed", FIX), ("out_of_tokens", BUG), ("out_of_tokens", FIX), ("out_of_turns", BUG)]
    rollouts = [
        unverified(make_trajectory, source, rollout=i, status=status, submitted=status == "completed")
        for i, (status, source) in enumerate(ends)
    ]
    found = verify_all(rollouts, {"p": PROBLEM}, pool, RewardConfig())
    assert [t.status for t in found] == [status for status, _ in ends]
    assert [scalar_reward(t) for t in found] == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("loop", LOOPS)
def test_an_endless_loop_is_scored_as_failed_within_the_limit(make_trajectory, pool, loop):
    problem = PROBLEM.model_copy(update={"limits": Limits(seconds=0.5)})
    began = time.monotonic()
    (found,) = verify_all([unverified(make_trajectory, loop)], {"p": problem}, pool, RewardConfig())
    assert time.monotonic() - began < 5
    assert (found.status, found.hidden_passed, found.outcome) == ("completed", 0, False)
    assert scalar_reward(found) == 0.0


def test_only_the_problems_own_files_count(make_trajectory, pool):
    extra = {"double.py": BUG, "sitecustomize.py": "import builtins\n", "other.py": "double = lambda x: 2 * x\n"}
    found = verify(unverified(make_trajectory, "", files=extra), PROBLEM, pool)
    assert (found.hidden_passed, found.outcome) == (1, False)
    lost = verify(unverified(make_trajectory, "", files={"double.py": FIX}), PROBLEM, pool)
    assert lost.outcome is True


def test_our_own_failures_stay_unscored(make_trajectory, pool):
    broken = unverified(make_trajectory, FIX, status="engine_error", detail="gone")
    assert verify(broken, PROBLEM, pool) is broken


class Flaky:
    """A pool whose first calls fail as a broken sandbox does, then works."""

    def __init__(self, pool: WarmPool, failures: int) -> None:
        self.pool, self.failures = pool, failures

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.failures:
            self.failures -= 1
            raise SandboxError("the sandbox is gone")
        return self.pool.call(request)


def test_a_broken_verifier_is_tried_again_and_never_a_failure_of_the_policy(make_trajectory, pool):
    rollout = unverified(make_trajectory, FIX)
    assert verify(rollout, PROBLEM, Flaky(pool, 2), retries=2).outcome is True
    lost = verify(rollout, PROBLEM, Flaky(pool, 3), retries=2)
    assert (lost.status, lost.outcome, lost.hidden_passed, lost.scorable) == ("verifier_error", None, None, False)
    assert lost.detail == "the verifier's sandbox failed 3 times: the sandbox is gone"


def test_a_trajectory_of_another_problem_is_refused(make_trajectory, pool):
    with pytest.raises(ValueError, match="is of problem q"):
        verify(unverified(make_trajectory, FIX, problem="q"), PROBLEM, pool)


def test_many_are_verified_in_order_with_their_terms(make_trajectory, pool):
    rollouts = [unverified(make_trajectory, FIX if i % 2 else BUG, rollout=i, sampled_tokens=0) for i in range(6)]
    rollouts.append(unverified(make_trajectory, FIX, rollout=6, status="sandbox_error"))
    heard: list[str] = []
    found = verify_all(rollouts, {"p": PROBLEM}, pool, RewardConfig(), lambda t: heard.append(t.id))
    assert [t.id for t in found] == heard == [t.id for t in rollouts]
    assert [t.outcome for t in found] == [False, True, False, True, False, True, None]
    assert [t.rewards.get("outcome") for t in found] == [0, 1, 0, 1, 0, 1, None]
    assert found[6].rewards == {}


def test_the_step_reads_and_writes_tables(make_trajectory, pool, tmp_path):
    write_pack(tmp_path, [PROBLEM])
    write_trajectories(tmp_path / "in.parquet", [unverified(make_trajectory, FIX, rollout=i) for i in range(2)])
    assert verify_rollouts.fn(tmp_path / "in.parquet", tmp_path / "out.parquet", tmp_path, pool, RewardConfig()) == 2
    assert [t.outcome for t in read_trajectories(tmp_path / "out.parquet")] == [True, True]
