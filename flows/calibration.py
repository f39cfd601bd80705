"""The reward model of a run, fitted again and measured on the run's held-out sessions.

run's rollouts -> reward model in another folder;  reward model + evaluation sessions -> calibration rows, gates
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_contracts.errors import UserError
from data_contracts.gates import Gate
from data_contracts.store import read_segments, read_trajectories
from flows.recipe import Recipe
from flows.stage import gate_rows
from models.policy import load_base
from models.reward_model import extract
from tasks.paths import RunFolder
from tasks.reward.calibration import Calibration, CalibrationReport, calibration_gate
from tasks.reward.probe import measure, open_reward_model
from tasks.reward.steps import fit_reward_model


def fit_again(run: Path, to: Path, model: str, rollouts: int | None) -> list[dict[str, Any]]:
    """Fit on the rollouts of a run and write the reward model to another folder; its gates as rows."""
    folder, recipe = _opened(run)
    if model not in ("probe", "classifier"):
        raise UserError(f"--model {model}: no such reward model: write probe or classifier.")
    probing = recipe.reward.probe.model_copy(update={"rollouts": rollouts or recipe.reward.probe.rollouts})
    config = recipe.reward.model_copy(update={"model": model, "probe": probing})
    done = [Path(path).parent for path in sorted(folder.root.glob("iterations/*/trajectories.parquet"))]
    gates: list[Gate] = fit_reward_model.fn(
        [path / "trajectories.parquet" for path in done],
        [path / "segments.parquet" for path in done],
        load_base(recipe.policy.base),
        to,
        config,
    )
    return gate_rows(gates)


def heldout_rows(run: Path, model: Path | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Calibration on the sessions of the run's evaluations, and the gates of using predictions as values, as rows."""
    folder, recipe = _opened(run)
    base = load_base(recipe.policy.base)
    probe, body = _reward_model(base, model or folder.reward)
    sides = [folder.evaluation(side) for side in ("before", "after", "champion")]
    done = [side for side in sides if side.trajectories.exists()]
    if not done:
        raise UserError(f"{folder.root}: no evaluation is done: go on with the run first.")
    sessions = [t for side in done for t in read_trajectories(side.trajectories)]
    tokens = [segment for side in done for segment in read_segments(side.segments)]
    config = recipe.reward.probe.for_values()
    report = measure(probe, extract(body, sessions, tokens, config.batch_size), config)
    return _rows(report), gate_rows(calibration_gate(report, config))


def _opened(run: Path) -> tuple[RunFolder, Recipe]:
    folder = RunFolder(run.resolve())
    if not folder.recipe.is_file():
        raise UserError(f"{folder.recipe} does not exist: give the folder of a run.")
    return folder, Recipe.model_validate_json(folder.recipe.read_text()).seeded()


def _reward_model(base: Any, folder: Path) -> tuple[Any, Any]:
    try:
        return open_reward_model(base, folder)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(f"{error}: `ratchet reward fit RUN --to FOLDER`, then give --model FOLDER.") from error


def _rows(report: CalibrationReport) -> list[dict[str, Any]]:
    parts = {"every turn": report.all, "last turn": report.ends, **report.horizons, **report.versions}
    rows = [_row(name, part) for name, part in parts.items() if part.predictions]
    blank = dict.fromkeys(list(rows[0])[2:], "") if rows else {}
    return [*rows, {"part": "abstained", "turns": report.abstained, **blank}]


def _row(name: str, part: Calibration) -> dict[str, Any]:
    return {
        "part": name,
        "turns": part.predictions,
        "rollouts": part.rollouts,
        "success": f"{part.base_rate:.1%}",
        "ECE": f"{part.ece:.3f} ({part.ece_low:.3f} to {part.ece_high:.3f})",
        "Brier": f"{part.brier:.3f}",
        "AUROC": "-" if part.auroc is None else f"{part.auroc:.3f}",
    }
