"""Episodes: opened by drift that persists, once; ended by quiet windows or a new champion; then a pause."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from data_contracts.gates import Verdict
from tasks.drift.config import DriftConfig
from tasks.drift.episodes import Entry, Ledger, Window, append_entry, close_for, judge, read_ledger

START = datetime(2026, 12, 1, tzinfo=UTC)
CONFIG = DriftConfig(windows=3, drifted=2, quiet=2, cooldown_hours=4.0)
VERDICT = {"P": Verdict.PASS, "F": Verdict.FAIL, "I": Verdict.INCONCLUSIVE, "M": Verdict.FAIL}


def window(number: int, kind: str, release: int = 1) -> Window:
    """One an hour: P quiet, F success fell, I no verdict, M values went missing."""
    at = START + timedelta(hours=number)
    return Window(
        id=f"{number:05d}",
        source="gateway",
        release=release,
        start=at,
        end=at,
        sessions=200,
        verdict=VERDICT[kind],
        drifted={"F": ("success",), "M": ("missing",)}.get(kind, ()),
        effects={"success": 1.5},
    )


def history(kinds: str) -> Ledger:
    entries: tuple[Entry, ...] = ()
    for number, kind in enumerate(kinds):
        entries = (*entries, judge(Ledger(entries), window(number, kind), CONFIG))
    return Ledger(entries)


def opened_at(kinds: str) -> list[int]:
    return [place for place, entry in enumerate(history(kinds).entries) if entry.opened]


def test_k_of_n_drifted_windows_open_an_episode() -> None:
    assert opened_at("FF") == [1]
    assert opened_at("FPF") == [2]
    assert opened_at("FIPF") == []
    assert opened_at("PFPPF") == []
    assert opened_at("MMMM") == []


def test_an_open_episode_opens_no_other_until_it_is_over_and_the_pause_after_it_too() -> None:
    assert opened_at("FFFFFFFF") == [1]
    assert opened_at("FFPIPFFF") == [1]  # two quiet windows in a row end it, an inconclusive one is not quiet
    assert opened_at("FFPPFFFFF") == [1, 7]  # over at 3 o'clock, four hours of pause
    ledger = history("FFPP")
    [episode] = ledger.episodes
    assert (episode.id, episode.windows, episode.checks) == ("release-1-00000", ("00000", "00001"), ("success",))
    assert ledger.open is None and ledger.closings[episode.id].why == "2 windows in a row without drift"


def test_a_new_champion_ends_the_episode_and_begins_without_a_past() -> None:
    ledger = history("FF")
    assert close_for(ledger, 1, START) is None
    ended = close_for(ledger, 2, START + timedelta(hours=2))
    assert ended is not None and ended.closed is not None and ended.closed.why == "release 2 is the champion"
    ledger = Ledger((*ledger.entries, ended))
    assert ledger.open is None and ledger.since(2) == []
    entry = judge(ledger, window(9, "F", release=2), CONFIG)
    assert entry.opened is None
    assert judge(Ledger((*ledger.entries, entry)), window(10, "F", release=2), CONFIG).opened is not None


def test_the_event_of_an_episode_has_one_id() -> None:
    first, again, other = history("FF").episodes, history("FFP").episodes, history("PFF").episodes
    assert first[0].event == again[0].event != other[0].event


@given(st.text("PFIM", max_size=40))
def test_episodes_never_overlap_and_survive_the_disk(kinds: str) -> None:
    ledger = history(kinds)
    alive = 0
    for entry in ledger.entries:
        alive += bool(entry.opened) - bool(entry.closed)
        assert alive in (0, 1)
    assert (
        Ledger(tuple(Entry.model_validate_json(e.model_dump_json(exclude_defaults=True)) for e in ledger.entries))
        == ledger
    )


def test_the_ledger_comes_back_as_it_was_written(tmp_path: Path) -> None:
    ledger = history("FFPPF")
    for entry in ledger.entries:
        append_entry(tmp_path / "ledger.jsonl", entry)
    assert read_ledger(tmp_path / "ledger.jsonl") == ledger
