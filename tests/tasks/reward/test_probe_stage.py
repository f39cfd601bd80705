from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from data_contracts.gates import Verdict
from data_contracts.records import Segment
from data_contracts.store import read_json, write_segments, write_trajectories
from models.policy import Base
from models.reward_classifier import ClassifierConfig
from models.reward_model import load_probe
from tasks.reward.config import ProbeConfig, RewardConfig
from tasks.reward.probe import choose_rollouts
from tasks.reward.steps import fit_reward_model, predicted_outcomes


def tiny_base() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).eval()


def segment(name: str, tokens: list[int]) -> Segment:
    n = len(tokens)
    return Segment(
        trajectory_id=name, token_ids=tokens, loss_mask=[1] * n, rollout_logprobs=[-1.0] * n, turn_index=[0] * n
    )


def test_the_stage_fits_measures_and_gates(make_trajectory, tmp_path):
    rng = np.random.default_rng(0)
    outcomes = rng.integers(0, 2, 320).astype(bool).tolist()
    rollouts = [make_trajectory(f"p{i // 4}", i % 4, outcome=outcome) for i, outcome in enumerate(outcomes)]
    segments = [segment(r.id, [*rng.integers(10, 40, 4), *([3] * 4 if r.outcome else [5] * 4)]) for r in rollouts]
    write_trajectories(tmp_path / "trajectories.parquet", rollouts)
    write_segments(tmp_path / "segments.parquet", segments)
    config = RewardConfig(probe=ProbeConfig(minimum_rollouts=40, bootstraps=20, bins=4, c=1.0))
    paths = [tmp_path / "trajectories.parquet"], [tmp_path / "segments.parquet"]
    gates = fit_reward_model.fn(*paths, Base(tiny_base(), None, "none", "d"), tmp_path / "reward", config)
    assert [(gate.name, gate.verdict) for gate in gates] == [
        ("reward.ece", Verdict.PASS),
        ("reward.auroc", Verdict.PASS),
    ]
    written = read_json(tmp_path / "reward" / "calibration.json")
    assert written["digest"] == load_probe(tmp_path / "reward" / "probe.joblib").digest
    assert written["all"]["auroc"] > 0.95
    told = written["calibrator"]
    assert told["kind"] in ("isotonic", "platt")
    assert told["by"] == pytest.approx(abs(told["isotonic"] - told["platt"]))
    assert written["versions"]["policy-00000"]["rollouts"] == written["all"]["rollouts"]
    assert written["horizons"]["long"]["rollouts"] == 0


def test_the_choice_of_rollouts_is_by_seed_and_leaves_the_unscorable_out(make_trajectory):
    rollouts = [make_trajectory(f"p{i:02}", outcome=None if i % 10 == 0 else True) for i in range(50)]
    few = ProbeConfig(rollouts=20)
    chosen = choose_rollouts(rollouts, few)
    assert len({t.id for t in chosen}) == 20
    assert all(t.scorable for t in chosen)
    assert choose_rollouts(rollouts[::-1], few) == chosen
    assert choose_rollouts(rollouts, ProbeConfig(rollouts=20, seed=1)) != chosen
    assert len(choose_rollouts(rollouts, ProbeConfig(rollouts=100))) == 45


@pytest.mark.parametrize("weights", ["lora", "full"])
def test_a_fine_tuned_classifier_is_fitted_calibrated_and_read_again(make_trajectory, tmp_path, weights):
    tiny_base().save_pretrained(tmp_path / "base")
    rng = np.random.default_rng(0)
    outcomes = rng.integers(0, 2, 240).astype(bool).tolist()
    rollouts = [make_trajectory(f"p{i // 4}", i % 4, outcome=outcome) for i, outcome in enumerate(outcomes)]
    segments = [segment(r.id, [*rng.integers(10, 40, 4), *([3] * 4 if r.outcome else [5] * 4)]) for r in rollouts]
    write_trajectories(tmp_path / "trajectories.parquet", rollouts)
    write_segments(tmp_path / "segments.parquet", segments)
    tuning = ClassifierConfig(weights=weights, epochs=6, learning_rate=5e-3, batch_size=16)
    probing = ProbeConfig(minimum_rollouts=40, bootstraps=20, bins=4)
    config = RewardConfig(model="classifier", classifier=tuning, probe=probing)
    base = Base(tiny_base(), None, str(tmp_path / "base"), "d")
    before = {name: value.clone() for name, value in base.model.state_dict().items()}
    folder = tmp_path / "reward"
    paths = tmp_path / "trajectories.parquet", tmp_path / "segments.parquet"
    gates = fit_reward_model.fn([paths[0]], [paths[1]], base, folder, config)
    assert [gate.verdict for gate in gates] == [Verdict.PASS, Verdict.PASS]
    written = read_json(folder / "calibration.json")
    assert (written["model"], written["all"]["auroc"] > 0.95) == ("classifier", True)
    assert (folder / "classifier" / "adapter_config.json").exists() == (weights == "lora")
    said = predicted_outcomes.fn(folder, *paths, base).values
    known = [r for r in rollouts if said[r.id] is not None]
    won, lost = ([said[r.id] for r in known if r.outcome is side] for side in (True, False))
    assert min(len(won), len(lost)) > 60
    assert np.mean(won) > np.mean(lost) + 0.5
    frozen = base.model.state_dict()
    assert all(torch.equal(before[name], value) for name, value in frozen.items())
