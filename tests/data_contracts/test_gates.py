"""A gate passes only on a finite figure from enough samples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_contracts.gates import Gate, GateHeld, Verdict, require, threshold

PASS, FAIL, INCONCLUSIVE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["at_most", "at_least"])
def test_no_finite_value_is_inconclusive(value, kind):
    gate = threshold("drift", value, 0.0, kind=kind, n=100)
    assert gate.verdict is INCONCLUSIVE
    assert gate.reason == "no finite value was measured"
    assert gate.evidence == {"limit": 0.0, "n": 100}


@pytest.mark.parametrize(
    ("value", "kind", "verdict"),
    [
        (0.2, "at_most", PASS),
        (0.3, "at_most", PASS),
        (0.31, "at_most", FAIL),
        (0.3, "at_least", PASS),
        (0.29, "at_least", FAIL),
        (0.4, "at_least", PASS),
    ],
)
def test_the_limit_itself_holds(value, kind, verdict):
    assert threshold("g", value, 0.3, kind=kind, n=1).verdict is verdict


def test_too_few_samples_never_pass():
    assert threshold("g", 0.0, 1.0, kind="at_most", n=9, minimum_n=10).verdict is INCONCLUSIVE
    assert threshold("g", 0.0, 1.0, kind="at_most", n=10, minimum_n=10).verdict is PASS
    assert threshold("g", 0.0, 1.0, kind="at_most", n=0).verdict is INCONCLUSIVE


@given(value=st.none() | st.floats(), limit=st.floats(-10, 10), n=st.integers(0, 5), least=st.integers(1, 5))
def test_a_pass_rests_on_evidence(value, limit, n, least):
    gate = threshold("g", value, limit, kind="at_most", n=n, minimum_n=least)
    expected = value is not None and math.isfinite(value) and n >= least and value <= limit
    assert (gate.verdict is PASS) == expected
    assert Gate.model_validate_json(gate.model_dump_json()) == gate


def test_require_raises_for_the_first_that_is_no_pass():
    good = threshold("good", 0.0, 1.0, kind="at_most", n=1)
    unknown = threshold("unknown", None, 1.0, kind="at_most", n=1)
    bad = threshold("bad", 2.0, 1.0, kind="at_most", n=1, unit=" nats")
    require(good, good)
    with pytest.raises(GateHeld) as held:
        require(good, unknown, bad)
    assert held.value.gate is unknown
    assert str(held.value) == "gate unknown: INCONCLUSIVE: no finite value was measured"
    assert bad.reason == "2 nats is not at most 1 nats (n=1)"
