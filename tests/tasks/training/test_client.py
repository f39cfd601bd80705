"""The worker as a process: every command, its errors, its end; without a compiler on the machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data_contracts.errors import UserError
from data_contracts.records import Segment, policy_name
from data_contracts.store import write_segments
from models.fingerprint import digest_folder, probe_logprobs
from models.policy import Base, merged_model
from tasks.training.client import Trainer, TrainerDied
from tasks.training.config import TrainingConfig
from tasks.training.packing import sampled_positions
from tasks.training.reports import TrainingDiverged
from tasks.training.scores import Score, write_scores

CONFIG = TrainingConfig(learning_rate=1e-2, warmup_steps=0, minibatches=2, micro_batch_tokens=200, threads=1)


@pytest.fixture(scope="module")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A machine without a compiler: PATH leads to an empty folder, nothing was ever built."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PATH", str(tmp_path_factory.mktemp("no-compilers")))
    patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
    for name in ("CC", "CXX"):
        patch.delenv(name, raising=False)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def trainer(base: Base, bare_path: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    with Trainer(base.path, tmp_path_factory.mktemp("trainer"), CONFIG) as trainer:
        yield trainer


def _gone(group: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_the_constructor_does_not_wait(base: Base, tmp_path: Path) -> None:
    began = time.monotonic()
    trainer = Trainer(base.path, tmp_path, CONFIG)
    started = time.monotonic() - began
    trainer.close()
    assert started < 5, "starting is a fork, not an import"
    assert _gone(trainer.pid)


def test_starts_without_a_compiler_and_says_so_once(trainer: Trainer, base: Base) -> None:
    assert trainer.wait_ready() == base.digest
    log = trainer.log_path.read_text()
    assert log.count("shared-memory op is not built: one process") == 1
    assert not any(Path(os.environ["TORCH_EXTENSIONS_DIR"]).rglob("*.so"))


def test_commands_before_load_are_refused_and_the_worker_lives_on(trainer: Trainer, tmp_path: Path) -> None:
    write_segments(tmp_path / "s.parquet", [])
    with pytest.raises(UserError, match=r"call load\(\)"):
        trainer.score(tmp_path / "s.parquet", tmp_path / "o.parquet")
    with pytest.raises(UserError, match="no adapter and no model"):
        trainer.load(tmp_path / "nothing")
    assert trainer.wait_ready()


def test_score_train_score(trainer: Trainer, base: Base, policy_zero: Path, sample_segments, tmp_path: Path) -> None:
    segments = sample_segments(12)
    idle = segments[5].model_copy(update={"advantages": [0.0] * len(segments[5].token_ids)})
    segments[5] = idle
    batch = tmp_path / "batch.parquet"
    write_segments(batch, segments)
    trainer.load(policy_zero)

    report = trainer.score(batch, tmp_path / "scores.parquet")
    tokens = sum(sum(s.loss_mask) for s in segments)
    assert report.tokens == tokens
    assert report.max_abs_diff < 1e-5
    rows = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    assert [row["trajectory_id"] for row in rows] == [s.trajectory_id for s in segments]
    for row, segment in zip(rows, segments, strict=True):
        assert row["logprobs"] == pytest.approx(segment.rollout_logprobs, abs=1e-5)
        assert all(e > 0 if m else e == 0 for e, m in zip(row["entropy"], segment.loss_mask, strict=True))

    out = tmp_path / "policies" / policy_name(1)
    done = trainer.train(batch, tmp_path / "scores.parquet", out, tmp_path / "checkpoint", step=0)
    assert (done.tokens, done.steps, done.skipped, done.idle_segments) == (tokens, 2, 0, 1)
    assert done.mean_abs_diff == pytest.approx(report.mean_abs_diff)
    assert done.mean_weight == pytest.approx(1, abs=1e-5)
    assert done.digest == digest_folder(out) == (out / "digest.txt").read_text().strip() != digest_folder(policy_zero)

    # the policy in the worker is the one on disk: what a sampler merges computes what the trainer scores
    moved = trainer.score(batch, tmp_path / "after.parquet")
    assert moved.mean_abs_diff > 1e-3
    model = merged_model(base, out)
    for row, segment in zip(pq.read_table(tmp_path / "after.parquet").to_pylist(), segments, strict=True):
        served = [0.0, *probe_logprobs(model, segment.token_ids)]
        assert row["logprobs"] == pytest.approx(
            [p * m for p, m in zip(served, segment.loss_mask, strict=True)], abs=1e-5
        )


def test_a_resumed_run_ends_with_the_same_weights(
    trainer: Trainer, policy_zero: Path, sample_segments, tmp_path: Path
) -> None:
    batches = [tmp_path / f"batch-{step}.parquet" for step in range(3)]
    for step, batch in enumerate(batches):
        write_segments(batch, sample_segments(6, seed=step))

    def run(folder: Path, *, resume_before: int | None) -> list[Path]:
        policies = [policy_zero]
        trainer.load(policy_zero)
        for step, batch in enumerate(batches):
            if step == resume_before:
                trainer.load(policies[-1], folder / "checkpoint")
            policies.append(folder / policy_name(step + 1))
            trainer.train(batch, None, policies[-1], folder / "checkpoint", step)
        return policies

    unbroken = run(tmp_path / "unbroken", resume_before=None)
    resumed = run(tmp_path / "resumed", resume_before=2)
    forgetful = run(tmp_path / "forgetful", resume_before=None)
    trainer.load(forgetful[2])
    trainer.train(batches[2], None, tmp_path / "forgetful" / policy_name(9), tmp_path / "forgetful" / "c", 2)
    assert _distance(unbroken[3], resumed[3]) < 1e-6
    assert _distance(unbroken[3], unbroken[2]) > 1e-3
    assert _distance(unbroken[3], tmp_path / "forgetful" / policy_name(9)) > 1e-4, "a fresh optimizer must differ"


def test_a_checkpoint_of_other_weights_is_refused(
    trainer: Trainer, policy_zero: Path, sample_segments, tmp_path: Path
) -> None:
    write_segments(tmp_path / "b.parquet", sample_segments(4))
    trainer.load(policy_zero)
    trainer.train(tmp_path / "b.parquet", None, tmp_path / "a" / "policy-00001", tmp_path / "c", 0)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "policy-00001").symlink_to(policy_zero)
    with pytest.raises(UserError, match="other weights"):
        trainer.load(tmp_path / "other" / "policy-00001", tmp_path / "c")
    with pytest.raises(UserError, match="no checkpoint"):
        trainer.load(policy_zero, tmp_path / "c")


def test_scores_of_other_segments_are_refused(
    trainer: Trainer, policy_zero: Path, sample_segments, tmp_path: Path
) -> None:
    write_segments(tmp_path / "one.parquet", sample_segments(3))
    write_segments(tmp_path / "two.parquet", sample_segments(4))
    trainer.load(policy_zero)
    trainer.score(tmp_path / "one.parquet", tmp_path / "scores.parquet")
    with pytest.raises(UserError, match="r003/0"):
        trainer.train(tmp_path / "two.parquet", tmp_path / "scores.parquet", tmp_path / "p", tmp_path / "c", 0)


def test_non_finite_steps_are_skipped_then_stop_the_run(
    trainer: Trainer, policy_zero: Path, sample_segments, tmp_path: Path
) -> None:
    segments = sample_segments(4)
    write_segments(tmp_path / "good.parquet", segments)
    broken = [_with_scale(s, 1e39) for s in segments]  # overflows float32
    write_segments(tmp_path / "bad.parquet", broken)
    trainer.load(policy_zero)
    first = trainer.train(tmp_path / "bad.parquet", None, tmp_path / "policy-00001", tmp_path / "c", 0)
    assert (first.steps, first.skipped, first.skipped_by_loss) == (0, 2, 2)
    assert _distance(policy_zero, tmp_path / "policy-00001") == 0
    good = trainer.train(tmp_path / "good.parquet", None, tmp_path / "policy-00002", tmp_path / "c", 1)
    assert (good.steps, good.skipped) == (2, 0)
    trainer.load(policy_zero)
    trainer.train(tmp_path / "good.parquet", None, tmp_path / "policy-00003", tmp_path / "c", 1)
    assert _distance(tmp_path / "policy-00002", tmp_path / "policy-00003") < 1e-6, "a skipped step left a trace"
    trainer.train(tmp_path / "bad.parquet", None, tmp_path / "policy-00004", tmp_path / "c", 2)
    with pytest.raises(TrainingDiverged, match="3 optimizer steps in a row"):
        trainer.train(tmp_path / "bad.parquet", None, tmp_path / "policy-00005", tmp_path / "c", 3)
    assert not (tmp_path / "policy-00005").exists()


def test_a_gradient_alone_that_is_not_finite_is_told_from_a_loss(
    trainer: Trainer, policy_zero: Path, sample_segments, tmp_path: Path
) -> None:
    # the loss still fits into float32, the gradient's way back through the layers does not
    huge = [_with_scale(s, 3e37) for s in sample_segments(4)]
    write_segments(tmp_path / "huge.parquet", huge)
    trainer.load(policy_zero)
    done = trainer.train(tmp_path / "huge.parquet", None, tmp_path / "policy-00001", tmp_path / "c", 0)
    assert (done.steps, done.skipped, done.skipped_by_loss) == (0, 2, 0)
    assert _distance(policy_zero, tmp_path / "policy-00001") == 0
    assert "optimizer step skipped: its gradient was not finite; first segment r00" in trainer.log_path.read_text()


def test_one_broken_old_logprob_costs_its_own_token_and_is_counted(
    trainer: Trainer, policy_zero: Path, sample_segments, tmp_path: Path
) -> None:
    segments = sample_segments(4)
    write_segments(tmp_path / "b.parquet", segments)
    trainer.load(policy_zero)
    trainer.score(tmp_path / "b.parquet", tmp_path / "scores.parquet")
    rows = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    rows[0]["logprobs"][segments[0].loss_mask.index(1)] = -1000.0
    broken = [Score(*([row[name][t] for t in sampled_positions(s)] for name in ("logprobs", "entropy")))
              for row, s in zip(rows, segments, strict=True)]  # fmt: skip
    write_scores(tmp_path / "broken.parquet", segments, broken)
    done = trainer.train(
        tmp_path / "b.parquet", tmp_path / "broken.parquet", tmp_path / "policy-00001", tmp_path / "c", 0
    )
    assert (done.steps, done.skipped, done.extreme_tokens) == (2, 0, 1)
    assert 0 < done.grad_norm < 10
    assert 0 < _distance(policy_zero, tmp_path / "policy-00001") < 0.1


def test_an_empty_batch_and_a_segment_beyond_the_window_are_refused_and_the_worker_lives_on(
    trainer: Trainer, base: Base, policy_zero: Path, sample_segments, tmp_path: Path
) -> None:
    segments = sample_segments(2)
    longer = segments[1].model_copy(
        update={
            "token_ids": [1] * 400, "loss_mask": [0] * 399 + [1], "rollout_logprobs": [0.0] * 399 + [-1.0],
            "turn_index": [0] * 400, "advantages": [0.0] * 399 + [1.0],
        }
    )  # fmt: skip
    write_segments(tmp_path / "empty.parquet", [])
    write_segments(tmp_path / "long.parquet", [segments[0], longer])
    trainer.load(policy_zero)
    with pytest.raises(UserError, match="no sampled token: there is nothing to train on"):
        trainer.train(tmp_path / "empty.parquet", None, tmp_path / "p", tmp_path / "c", 0)
    assert base.window == 256
    for command in (
        lambda path: trainer.score(path),
        lambda path: trainer.train(path, None, tmp_path / "p", tmp_path / "c", 0),
    ):
        with pytest.raises(UserError, match=r"segment r001/0 needs 399 tokens of context, the model has 256: lower"):
            command(tmp_path / "long.parquet")
    assert not (tmp_path / "p").exists()
    write_segments(tmp_path / "good.parquet", segments)
    assert trainer.score(tmp_path / "good.parquet").tokens == sum(sum(s.loss_mask) for s in segments)


def test_stale_tokens_are_scored_under_the_version_that_sampled_them(
    trainer: Trainer, policy_zero: Path, policy_moved: Path, sample_segments, tmp_path: Path
) -> None:
    segments = sample_segments(4)
    # the base, which version 0 is, sampled the first two; the third's tokens are said to be version 1's, and are not
    numbers = [0, 0, 1, None]
    given = [
        s if n is None else s.model_copy(update={"policy_numbers": [n if m else -1 for m in s.loss_mask]})
        for s, n in zip(segments, numbers, strict=True)
    ]
    write_segments(tmp_path / "s.parquet", given[:3])
    trainer.load(policy_zero)
    trainer.rescore(tmp_path / "s.parquet", tmp_path / "older.parquet", 0)
    assert len(pq.read_table(tmp_path / "older.parquet")) == 2
    trainer.load(policy_moved)
    blind = trainer.score(tmp_path / "s.parquet", None, 1)
    report = trainer.score(tmp_path / "s.parquet", None, 1, {0: tmp_path / "older.parquet"})
    stale = sum(sum(s.loss_mask) for s in given[:2])
    own = sum(given[2].loss_mask)
    assert (blind.tokens, report.tokens, report.staleness.tokens) == (own, own + stale, stale)
    assert report.mean_abs_diff == pytest.approx(blind.mean_abs_diff * own / (own + stale), abs=1e-5)
    assert report.staleness.mean_abs_diff > 0.1


def test_a_batch_without_signal_changes_nothing(
    trainer: Trainer, policy_zero: Path, sample_segments, tmp_path: Path
) -> None:
    write_segments(tmp_path / "b.parquet", sample_segments(4, signal=False))
    trainer.load(policy_zero)
    report = trainer.train(tmp_path / "b.parquet", None, tmp_path / "policy-00001", tmp_path / "c", 0)
    assert (report.steps, report.idle_segments) == (0, 4)
    assert report.digest == digest_folder(policy_zero)


def test_a_killed_worker_is_reported_with_its_log(base: Base, tmp_path: Path) -> None:
    trainer = Trainer(base.path, tmp_path, CONFIG)
    with trainer.log_path.open("a") as log:
        log.write("the last words\n")
    os.kill(trainer.pid, signal.SIGKILL)
    with pytest.raises(TrainerDied, match=r"(?s)exit code -9.*the last words"):
        trainer.wait_ready()
    trainer.close()
    with pytest.raises(TrainerDied):
        trainer.wait_ready()


def _with_scale(segment: Segment, factor: float) -> Segment:
    return segment.model_copy(update={"advantages": [a * factor for a in segment.advantages or []]})


def _distance(one: Path, other: Path) -> float:
    from safetensors.torch import load_file

    first, second = (load_file(folder / "adapter_model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)
