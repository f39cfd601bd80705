"""Drift for a person's eyes: a picture of the effects window by window, and evidently's page of an episode.

Nothing here decides anything: evidently drops missing values in silence and changes its test with the reference's size,
so the verdicts are those of `checks`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tasks.drift.episodes import Window
from tasks.drift.tables import COLUMNS

_LISTS = ("session", "prompt", "tools", "tools_offered")


def write_page(reference: pd.DataFrame, window: pd.DataFrame, path: Path) -> None:
    """evidently's report of the columns that both sides have values in, as one HTML file."""
    os.environ["DO_NOT_TRACK"] = "1"  # read at import
    from evidently import Report
    from evidently.presets import DataDriftPreset

    shown = [name for name in COLUMNS if name not in _LISTS and min(reference[name].count(), window[name].count()) > 1]
    found = Report([DataDriftPreset()]).run(window[shown], reference[shown])
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.tmp")
    found.save_html(str(scratch))
    scratch.replace(path)


def draw_effects(windows: Sequence[Window], path: Path) -> None:
    """Each check's effect over its limit, window by window (PNG); drift lies at 1 and above, where p agrees."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    places = range(len(windows))
    for name in dict.fromkeys(name for window in windows for name in window.effects):
        drawn = any(name in window.drifted for window in windows)
        style = {"label": name, "marker": "o"} if drawn else {"color": "0.75", "linewidth": 0.8}
        axes.plot(places, [window.effects.get(name, float("nan")) for window in windows], **style)
    axes.axhline(1.0, color="black", linestyle="--", linewidth=0.8)
    axes.set_xticks([*places], [window.id[-12:] for window in windows], rotation=90, fontsize=7)
    axes.set_ylabel("effect / limit")
    axes.set_title("Live sessions against the release's reference; grey: checks that never drifted")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}")
    figure.savefig(scratch, dpi=110, format="png")
    scratch.replace(path)
