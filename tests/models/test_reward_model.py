from __future__ import annotations

from dataclasses import fields

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import Qwen3Config, Qwen3ForCausalLM

from data_contracts.records import Sampling, Segment, Trajectory
from models.calibrators import MAPS
from models.reward_model import Prefixes, Probe, extract, fit_probe, load_probe, side_of, whole_rollouts

SIGN, VOCABULARY = 7, 40


@pytest.fixture(scope="module")
def base() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    return Qwen3ForCausalLM(config).eval()


def rollout(index: int, *, outcome: bool | None = True, status: str = "completed") -> Trajectory:
    return Trajectory(
        id=f"t{index:04}",
        run_id="run",
        iteration=0,
        problem_id=f"p{index // 4}",
        horizon="short",
        group_id=f"p{index // 4}",
        rollout_index=index % 4,
        policy_version="policy-00000",
        policy_digest="d",
        status=status,
        sampling=Sampling(),
        turns=(),
        prompt_ids=[],
        sampled_tokens=1,
        context_tokens=1,
        outcome=outcome,
    )


def segment(name: str, tokens: list[int], mask: list[int], turns: list[int], index: int = 0) -> Segment:
    logprobs = [-1.0 * m for m in mask]
    return Segment(
        trajectory_id=name, index=index, token_ids=tokens, loss_mask=mask, rollout_logprobs=logprobs, turn_index=turns
    )


@pytest.fixture(scope="module")
def batch() -> tuple[list[Trajectory], list[Segment]]:
    """Two turns each; signs in the second turn's completion give success 9 times in 10, their absence 1 in 10."""
    rng = np.random.default_rng(0)
    trajectories, segments = [], []
    for i in range(480):
        tokens = rng.integers(10, VOCABULARY, int(rng.integers(10, 16))).tolist()
        signed = bool(rng.integers(2))
        if signed:
            tokens[-4:-1] = [SIGN] * 3
        n = len(tokens)
        mask, turns = [0, 0, 0, 1, 1, 0] + [1] * (n - 6), [0] * 5 + [1] * (n - 5)
        trajectories.append(rollout(i, outcome=bool(rng.uniform() < (0.9 if signed else 0.1))))
        segments.append(segment(trajectories[-1].id, tokens, mask, turns))
    return trajectories, segments


@pytest.fixture(scope="module")
def prefixes(base, batch) -> Prefixes:
    return extract(base, *batch)


def test_features_are_those_of_an_unpadded_forward_pass(base, batch, prefixes):
    trajectories, segments = batch
    ids = torch.tensor([segments[3].token_ids])
    with torch.inference_mode():
        hidden = base(input_ids=ids, output_hidden_states=True).hidden_states[-1][0].double().numpy()
    rows = [i for i, name in enumerate(prefixes.trajectory_ids) if name == trajectories[3].id]
    assert [prefixes.turns[row] for row in rows] == [0, 1]
    for row, last in zip(rows, (4, ids.shape[1] - 1), strict=True):
        expected = [*hidden[last], *hidden[: last + 1].mean(axis=0), prefixes.turns[row], (last + 1) / 100, 0]
        assert prefixes.features[row] == pytest.approx(np.array(expected), abs=1e-5)
    alone = extract(base, trajectories[:9], segments[:9], batch_size=1)
    assert alone.features == pytest.approx(prefixes.features[:18], abs=1e-5)


def test_unscorable_rollouts_and_unsampled_segments_have_no_rows(base):
    trajectories = [rollout(0), rollout(1, outcome=None, status="sandbox_error"), rollout(2, outcome=None)]
    segments = [segment(t.id, [11, 12, 13], [0, 1, 1], [0, 0, 0]) for t in trajectories]
    segments.append(segment("t0000", [11, 12], [0, 0], [1, 1], 1))
    assert extract(base, trajectories, segments).trajectory_ids == ("t0000",)
    empty = extract(base, [], [])
    assert (len(empty), empty.features.shape) == (0, (0, 67))


def test_a_second_segment_goes_on_with_the_rollouts_turns(base):
    segments = [
        segment("t0000", [11, 12, 13, 14], [0, 1, 0, 1], [0, 0, 1, 1]),
        segment("t0000", [15, 16, 17], [0, 0, 1], [2, 2, 2], 1),
    ]
    found = extract(base, [rollout(0)], segments[::-1])
    assert found.turns == (0, 1, 2)
    assert found.features[:, -1].tolist() == [0, 0, 1]


def test_no_problem_is_in_two_parts(prefixes):
    parts = prefixes.split(0.5, 0.25, seed=3)
    names = [set(part.problem_ids) for part in parts.values()]
    assert set.union(*names) == set(prefixes.problem_ids)
    assert sum(map(len, names)) == len(set(prefixes.problem_ids))
    assert sum(map(len, parts.values())) == len(prefixes)
    assert [side_of("x", 1.0, 0.0), side_of("x", 0.0, 1.0), side_of("x", 0.0, 0.0)] == ["train", "calibrate", "test"]


def test_the_probe_learns_what_the_transcript_shows(prefixes):
    parts = prefixes.split(0.5, 0.25)
    probe, _ = fit_probe(parts["train"], parts["calibrate"], c=0.1)
    test = parts["test"].where([turn == 1 for turn in parts["test"].turns])
    predicted, outcomes = probe.predict(test.features), np.array(test.outcomes)
    assert predicted[outcomes].mean() > predicted[~outcomes].mean() + 0.35
    assert ((predicted - outcomes) ** 2).mean() < 0.18
    early = parts["test"].where([turn == 0 for turn in parts["test"].turns])
    assert np.abs(probe.predict(early.features) - 0.5).mean() < 0.2


def test_predictions_are_sklearns(prefixes):
    parts = prefixes.split(0.5, 0.25)
    train, calibrate = parts["train"], parts["calibrate"]
    probe, choice = fit_probe(train, calibrate, c=0.1)
    half = np.full(len(train), 0.5)
    scaled = (train.features - train.features.mean(axis=0)) / probe.scale
    logistic = LogisticRegression(C=0.1, max_iter=1000).fit(scaled, train.outcomes, sample_weight=half)

    def raw(part: Prefixes) -> np.ndarray:
        return logistic.decision_function((part.features - train.features.mean(axis=0)) / probe.scale)

    assert probe.logits(calibrate.features) == pytest.approx(raw(calibrate), abs=1e-7)
    outcomes, votes = np.array(calibrate.outcomes, dtype=float), np.full(len(calibrate), 0.5)
    fitted = MAPS[choice.kind](raw(calibrate), outcomes, votes, len(set(calibrate.trajectory_ids)))
    predicted = probe.predict(parts["test"].features)
    assert predicted == pytest.approx(fitted(raw(parts["test"])), abs=1e-6)
    margin = 1 / (len(set(calibrate.trajectory_ids)) + 2)
    assert predicted.min() >= margin
    assert predicted.max() <= 1 - margin


def test_a_head_stands_for_the_logistic_fit(prefixes):
    parts = prefixes.split(0.5, 0.25)
    head = np.random.default_rng(0).normal(size=32)
    probe, _ = fit_probe(parts["train"], parts["calibrate"], head=head)
    features = parts["test"].features
    assert probe.logits(features) == pytest.approx(features[:, :32] @ head, abs=1e-8)


def test_it_abstains_where_it_extrapolates(prefixes):
    parts = prefixes.split(0.5, 0.25)
    probe, _ = fit_probe(parts["train"], parts["calibrate"], abstain=0.95)
    assert probe.knows(parts["calibrate"].features).mean() == pytest.approx(0.95, abs=0.01)
    assert probe.knows(parts["test"].features).mean() > 0.85
    strange = parts["test"].features + 30 * probe.scale * np.sign(np.arange(probe.scale.size) % 2 - 0.5)
    assert not probe.knows(strange).any()
    said = whole_rollouts(probe, parts["test"])
    last = {name: row for row, name in enumerate(parts["test"].trajectory_ids)}
    known = probe.knows(parts["test"].features)
    assert {name for name, value in said.items() if value is None} == {n for n, row in last.items() if not known[row]}


def test_a_saved_probe_is_the_same_probe(prefixes, tmp_path):
    parts = prefixes.split(0.5, 0.25)
    probe, _ = fit_probe(parts["train"], parts["calibrate"])
    probe.save(tmp_path / "reward" / "probe.joblib")
    again = load_probe(tmp_path / "reward" / "probe.joblib")
    assert again.predict(prefixes.features).tolist() == probe.predict(prefixes.features).tolist()
    assert again.digest == probe.digest
    assert fit_probe(parts["train"], parts["calibrate"], c=0.2)[0].digest != probe.digest
    assert [path.name for path in (tmp_path / "reward").iterdir()] == ["probe.joblib"]


def test_what_is_no_probe_is_refused(tmp_path):
    joblib.dump({"mean": 0}, tmp_path / "other.joblib")
    with pytest.raises(ValueError, match="holds no probe"):
        load_probe(tmp_path / "other.joblib")


def test_the_digest_covers_every_weight():
    plain = {f.name: 0.5 if f.type == "float" else np.array([0.0, 1.0]) for f in fields(Probe)}
    digests = {Probe(**plain).digest}
    for name, value in plain.items():
        digests.add(Probe(**(plain | {name: value + 0.25})).digest)
    assert len(digests) == len(plain) + 1 == 13


def test_parts_that_cannot_teach_are_refused(prefixes):
    parts = prefixes.split(0.5, 0.25)
    passed = parts["train"].where(parts["train"].outcomes)
    with pytest.raises(ValueError, match="train part lacks"):
        fit_probe(passed, parts["calibrate"])
    with pytest.raises(ValueError, match="in both parts"):
        fit_probe(parts["train"], parts["train"])
