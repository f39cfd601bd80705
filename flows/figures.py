"""The pictures of a run, as SVG for the report and as PNG for Prefect.

learning rows + evaluations -> figure -> text that needs no file beside it
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from data_contracts.records import HORIZONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tasks.evaluation.ablation import ArmSuccess

COLOURS = {"short": "#2a78d6", "medium": "#eb6834", "long": "#4a9a5b", "all": "#52514e"}
ARMS = ("#2a78d6", "#eb6834", "#1baf7a", "#4a3aa7", "#e34948", "#52514e")
INK, MUTED, GRID = "#0b0b0b", "#6b6a65", "#e4e3dd"
WINDOW = 5
"""Iterations of the moving mean over noisy training batches."""

Row = dict[str, Any]


def learning_curve(rows: Sequence[Row], success: dict[str, dict[str, Any]]) -> Figure:
    """Verified success per horizon: training batches as a line, held-out evaluations with their intervals."""
    figure, axes = _canvas("Verified success", "iteration")
    for horizon in HORIZONS:
        _line(axes, rows, f"success.{horizon}", COLOURS[horizon], horizon)
        apart = 0.012 * (len(rows) + 2) * HORIZONS.index(horizon)  # so that intervals do not cover each other
        for side, x in (("before", -1 - apart), ("after", len(rows) + apart)):
            part = success.get(side, {}).get(horizon)
            if part and part["n"]:
                low, high = part["interval"]
                spread = [[part["rate"] - low], [high - part["rate"]]]
                style: Row = {"color": COLOURS[horizon], "fmt": "o", "ms": 5, "capsize": 3, "lw": 1.5}
                if side == "after" and not any(row.get(f"success.{horizon}") is not None for row in rows):
                    style["label"] = horizon  # never trained on, so it has no line that tells its colour
                axes.errorbar([x], [part["rate"]], yerr=spread, **style)
    _share(axes)
    _legend(axes)
    return figure


def reward_and_outcome(rows: Sequence[Row]) -> Figure:
    """The training reward beside what was verified: when they part, the reward is being gamed."""
    figure, axes = _canvas("Training reward beside verified outcome", "iteration")
    _line(axes, rows, "reward", "#4a3aa7", "training reward")
    _line(axes, rows, "success.all", "#1baf7a", "verified outcome", dashes=(4, 2))
    _share(axes)
    _legend(axes)
    return figure


def mismatch_curve(rows: Sequence[Row], limits: dict[str, float]) -> Figure:
    """|trainer - rollout| log-probability over the sampled tokens of each iteration (nats), with the gate's limits."""
    figure, axes = _canvas("Rollout against trainer, log-probability", "iteration")
    for key, colour, label in (("max", "#e34948", "largest"), ("mean", "#2a78d6", "mean")):
        points = [(r["iteration"], r[f"mismatch.{key}_abs_diff"]) for r in rows if r.get(f"mismatch.{key}_abs_diff")]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, lw=1.8, label=label)
        if key in limits:
            axes.axhline(limits[key], color=colour, lw=1, ls=":", label=f"limit of the {label}")
    axes.set_yscale("log")
    axes.set_ylabel("nats", color=MUTED)
    _legend(axes, ncols=2, loc="best")
    return figure


def mismatch_along(rows: Sequence[Row], kind: str, below: str) -> Figure:
    """Mean mismatch by `position` or by `turn`, first and last iterations: whether it grows along the trajectory."""
    figure, axes = _canvas(f"Rollout against trainer, by {kind}", below)
    early = rows[:WINDOW] if len(rows) > WINDOW else []
    for part, colour, label in ((early, "#a9cbef", "first"), (rows[-WINDOW:], "#2a78d6", "last")):
        points = _along(part, f"mismatch.{kind}.")
        if points:
            axes.plot(*zip(*points, strict=True), ".-", color=colour, lw=1.8, label=f"{label} {len(part)} iterations")
    axes.set_yscale("log")
    axes.set_ylabel("nats, mean", color=MUTED)
    _legend(axes, loc="best")
    return figure


def _along(rows: Sequence[Row], prefix: str) -> list[tuple[int, float]]:
    """The mean over rows of each figure `<prefix><number>`, by number; what no row holds, or as 0, is left out."""
    found: dict[int, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(prefix) and value:
                found.setdefault(int(name.removeprefix(prefix)), []).append(value)
    return [(number, sum(values) / len(values)) for number, values in sorted(found.items())]


def groups_curve(rows: Sequence[Row]) -> Figure:
    """Which share of the groups could teach anything: those with both outcomes."""
    figure, axes = _canvas("Groups by outcome", "iteration")
    names = (("mixed", "#1baf7a"), ("all_passed", "#a9cbef"), ("all_failed", "#f3b493"))
    if rows:
        shares = [[row[f"groups.{name}"] / max(row["groups.groups"], 1) for row in rows] for name, _ in names]
        labels = [name.replace("_", " ") for name, _ in names]
        xs = [row["iteration"] for row in rows]
        axes.stackplot(xs, *shares, labels=labels, colors=[colour for _, colour in names], lw=0)
        axes.legend(frameon=False, fontsize=9, loc="lower left", ncols=3)
    _share(axes)
    return figure


def ablation_curve(found: Sequence[ArmSuccess], horizon: str) -> Figure:
    """Held-out success of each arm against the tokens it had sampled for training, with 95 % intervals."""
    figure, axes = _canvas(f"Verified success on held-out problems, {horizon}", "tokens sampled for training")
    arms = list(dict.fromkeys(row.arm for row in found))
    for place, arm in enumerate(arms):
        rows = [row for row in found if (row.arm, row.horizon) == (arm, horizon)]
        xs = [row.tokens for row in rows]
        axes.plot(xs, [row.rate for row in rows], "o-", color=ARMS[place % len(ARMS)], lw=2, ms=4, label=arm)
        axes.fill_between(
            xs, [row.low for row in rows], [row.high for row in rows], color=ARMS[place % len(ARMS)], alpha=0.1, lw=0
        )
    _share(axes)
    _legend(axes, ncols=2)
    return figure


def reliability_curve(calibration: dict[str, Any]) -> Figure:
    """Predicted against observed success on problems that the reward model never saw, per horizon and over all."""
    figure, axes = _canvas("Is the predicted success rate true?", "predicted")
    axes.plot([0, 1], [0, 1], color=MUTED, lw=1, ls=":")
    parts = {**calibration["horizons"], "all": calibration["all"]}
    for name, part in parts.items():
        if part["table"]:
            points = [(row["predicted"], row["observed"]) for row in part["table"]]
            label = f"{name}: ECE {part['ece']:.3f}, n = {part['rollouts']}"
            axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[name], lw=1.8, ms=4, label=label)
    axes.set_xlim(0, 1)
    axes.set_ylabel("observed", color=MUTED)
    _share(axes)
    _legend(axes)
    return figure


def svg(figure: Figure) -> str:
    """The figure as an <svg> element; texts stay texts."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ratchet"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def png(figure: Figure) -> str:
    """The figure as a data address."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, facecolor="white")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def curve_png(rows: Sequence[Row]) -> str:
    """The learning curve of the training batches as a data address."""
    return png(learning_curve(rows, {}))


def moving(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Mean of each value and those before it, at most `window` of them."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def _line(axes: Axes, rows: Sequence[Row], key: str, colour: str, label: str, **style: Any) -> None:
    points = [(row["iteration"], row[key]) for row in rows if row.get(key) is not None]
    if points:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, ".", color=colour, alpha=0.25, ms=4)
        axes.plot(xs, moving(ys), color=colour, lw=2, label=label, **style)


def _canvas(title: str, below: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 3.4), layout="constrained")  # no pyplot: no state that outlives the call
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(below, color=MUTED)
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(colors=MUTED, length=0, labelsize=9)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _legend(axes: Axes, **style: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**{"frameon": False, "loc": "upper left", "fontsize": 9, **style})


def _share(axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
