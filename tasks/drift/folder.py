"""What drift checks leave in a service's drift folder.

ledger.jsonl, told.jsonl, windows/<id>.json + .parquet, effects.png, <episode>/candidates.jsonl + report.html
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DriftFolder:
    """`ledger.jsonl` and `told.jsonl` are the truth; the rest is made from them, the audit log and the reference."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def ledger(self) -> Path:
        """Windows as judged, episodes as opened and closed."""
        return self.root / "ledger.jsonl"

    @property
    def told(self) -> Path:
        """Episodes whose event was sent: intent, done."""
        return self.root / "told.jsonl"

    @property
    def plot(self) -> Path:
        return self.root / "effects.png"

    def predicted(self, release: int) -> Path:
        """What a release's reward model said of its reference."""
        return self.root / f"predicted-{release}.json"

    def report(self, window: str) -> Path:
        """All checks of a window."""
        return self.root / "windows" / f"{window}.json"

    def table(self, window: str) -> Path:
        """A window's sessions in figures; what was said stays in the audit log."""
        return self.root / "windows" / f"{window}.parquet"

    def candidates(self, episode: str) -> Path:
        """Sessions that a person may make problems of."""
        return self.root / episode / "candidates.jsonl"

    def page(self, episode: str) -> Path:
        """The episode's windows against the reference, for a person."""
        return self.root / episode / "report.html"
