from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from data_contracts.errors import UserError
from tasks.training.config import TrainingConfig, check_sampling


def test_unknown_keys_and_crossed_bounds_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValidationError, match="learning_rat"):
        TrainingConfig(learning_rat=1e-3)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="write for example mismatch_low"):
        TrainingConfig(mismatch_low=2.0, mismatch_high=0.5)
    with pytest.raises(ValidationError):
        TrainingConfig(learning_rate=float("nan"))


def test_a_penalty_to_the_base_needs_a_base_beside_the_policy() -> None:
    with pytest.raises(ValueError, match=r"weights = 'adapter', or kl_coefficient = 0"):
        TrainingConfig(weights="full", kl_coefficient=0.1)


def test_every_field_is_documented_and_survives_json() -> None:
    assert all(field.description for field in TrainingConfig.model_fields.values())
    config = TrainingConfig(lora_targets=("q_proj", "v_proj"), mismatch="icepop", mismatch_low=0.5)
    assert TrainingConfig.model_validate_json(config.model_dump_json()) == config


def test_rollouts_of_another_distribution_are_refused() -> None:
    config = TrainingConfig(temperature=0.6)
    check_sampling(config, temperature=0.6, top_p=1.0)
    with pytest.raises(UserError, match=r"training.temperature = 1\."):
        check_sampling(config, temperature=1.0, top_p=1.0)
    with pytest.raises(UserError, match="top_p = 1"):
        check_sampling(config, temperature=0.6, top_p=0.95)


def test_the_flows_side_needs_no_torch() -> None:
    heavy = "('torch', 'transformers', 'pyarrow')"
    code = f"import sys, tasks.training.client; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
