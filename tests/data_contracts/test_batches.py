"""A batch beside those accepted before: warnings are noted, what is critical holds."""

from __future__ import annotations

from data_contracts.batches import LAST, Ledger, bounds, statistics_of
from data_contracts.contract import load_contract
from data_contracts.gates import Verdict
from data_contracts.store import frame_of
from data_contracts.validate import expect


def test_statistics_of_a_batch(trajectories, segments):
    found = statistics_of("trajectories", frame_of("trajectories", trajectories))
    assert (found["volume_near_last"], found["solved_near_last"], found["infrastructure_near_last"]) == (8, 0.5, 0)
    found = statistics_of("segments", frame_of("segments", segments))
    assert (found["length_near_last"], found["sampled_share_near_last"]) == (10, 0.5)
    assert abs(found["logprob_near_last"] - (-0.5 - 1.25 - 2.0 - 1e-9) / 5) < 1e-12


def test_bounds_are_around_the_median_of_the_last():
    volume = load_contract("trajectories").across[0]
    assert bounds(volume, []) is None
    assert bounds(volume, [{"volume_near_last": n} for n in (100.0, 1.0, 120.0)]) == (50.0, 150.0)
    assert bounds(volume, [{"volume_near_last": 4.0}]) == (-4.0, 12.0)


def test_the_same_batch_again_passes(trajectories, segments, tmp_path):
    ledger = Ledger(tmp_path)
    for table, records in (("trajectories", trajectories), ("segments", segments)):
        frame = frame_of(table, records)
        ledger.accept(table, 0, statistics_of(table, frame))
        report = expect(table, frame, ledger.before(table, 1))
        assert (report.failed, report.noted, len(report.pages)) == ([], (), 2)
        alone = expect(table, frame, ledger.before(table, 0))
        assert len(alone.pages) == 1
        assert report.evaluated == alone.evaluated + len(load_contract(table).across)
        ledger.show(1, [report])
        assert (tmp_path / f"00001-{table}-1.html").read_text().count("near") or "mean" in report.pages[1]


def test_a_warning_is_noted_and_goes_on(trajectories):
    usual = statistics_of("trajectories", frame_of("trajectories", trajectories))
    report = expect("trajectories", frame_of("trajectories", trajectories), [{**usual, "volume_near_last": 40.0}])
    assert (report.failed, report.noted) == ([], ("volume_near_last",))
    gate = report.gate()
    assert gate.verdict is Verdict.PASS
    assert "warning: volume_near_last" in gate.reason
    assert gate.evidence["warnings"] == 1


def test_what_is_critical_holds(trajectories, trajectory):
    usual = statistics_of("trajectories", frame_of("trajectories", trajectories))
    lost = {"status": "sandbox_error", "outcome": None, "hidden_passed": None, "rewards": {}}
    report = expect(
        "trajectories",
        frame_of("trajectories", [*trajectories[:4], *(trajectory(n, **lost) for n in range(4, 8))]),
        [usual],
    )
    assert report.failed == ["infrastructure_near_last", "outcome_known_near_last"]
    assert report.gate().verdict is Verdict.FAIL


def test_the_ledger_remembers_the_last_and_a_batch_once(tmp_path):
    ledger = Ledger(tmp_path)
    for number in (*range(8), 7):
        ledger.accept("segments", number, {"volume_near_last": float(number)})
    assert [one["volume_near_last"] for one in ledger.before("segments", 7)] == [2, 3, 4, 5, 6]
    assert len(ledger.before("segments", 99)) == LAST
    assert ledger.before("segments", 0) == []
