"""Each fault between engine and trainer is told apart by the gate's message: real sessions of the starter model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from data_contracts.gates import Gate, Verdict
from data_contracts.problems import write_pack
from data_contracts.records import Sampling, Segment
from data_contracts.store import read_segments
from models.chat import Chat
from models.policy import Base, LoraSpec, init_adapter, load_base
from tasks.curriculum.generator import generate
from tasks.rollout.config import RolloutConfig
from tasks.rollout.engine import SampleRequest
from tasks.rollout.gate import mismatch_gate
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.slot_engine import SlotEngine
from tasks.rollout.steps import Destination, Pass, sample_rollouts
from tasks.training.diagnosis import diagnose
from tasks.training.explanations import gather
from tasks.training.packing import sampled_positions
from tasks.training.recompute import Recompute
from tasks.training.scores import Score, mismatch

STARTER = Path(__file__).parents[3] / "models" / "starter"
NUMBER = 2
LIMITS = RolloutConfig()


class OtherTemplate(SlotEngine):
    """An engine whose side renders no newline after a message's end."""

    newline = (0, 0)
    """ids of the end of a message and of the newline after it"""

    def submit(self, request: SampleRequest) -> None:
        pairs = itertools.pairwise([-1, *request.token_ids])
        super().submit(
            replace(request, token_ids=[after for before, after in pairs if (before, after) != self.newline])
        )


class NoBrief(SlotEngine):
    """An engine whose side begins its conversations in mid-sentence."""

    def submit(self, request: SampleRequest) -> None:
        super().submit(replace(request, token_ids=request.token_ids[9:]))


@dataclass(frozen=True)
class World:
    """Three versions of the starter model's policy, and what samples from them."""

    base: Base
    policies: list[Path]
    pool: WarmPool
    home: Path

    def sample(self, name: str, served: Path, engine_of: type[SlotEngine] = SlotEngine, heat: float = 1.0):
        """Sessions of what is served as the newest version."""
        folder = self.home / name
        folder.mkdir()
        engine, version = engine_of.from_base(self.base, slots=16), self.policies[NUMBER].name
        engine.load_adapter(version, served)
        bench = SimpleNamespace(engine=engine, chat=Chat(self.base.tokenizer), agent_pool=self.pool)
        out = Destination(*(folder / name for name in ("j.jsonl", "rollouts.parquet", "segments.parquet", "q")))
        problems = generate(5, "train", "short", 4)
        sample_rollouts.fn(
            bench, write_pack(folder, problems), [p.id for p in problems], out, RolloutConfig(capacity=16),
            [Pass(Sampling(seed=7, temperature=heat), range(3))], policy_version=version, iteration=0, run_id="run",
        )  # fmt: skip
        return read_segments(out.segments)

    def gate(self, segments: list[Segment], scores: list[Score]) -> Gate:
        """The mismatch gate over these scores of the newest version, with its diagnosis."""

        def explain() -> tuple[str, str]:
            found = diagnose(
                self.base, segments, scores, policy=self.policies[NUMBER], number=NUMBER, temperature=1.0,
                versions={"the base": None, **{policy.name: policy for policy in self.policies[:NUMBER]}},
            )  # fmt: skip
            return found.cause, found.sentence

        report = mismatch(segments, scores, NUMBER)
        return mismatch_gate(
            report.mean_abs_diff, report.max_abs_diff, n=report.tokens, mean_limit=LIMITS.maximum_mean_mismatch,
            max_limit=LIMITS.maximum_token_mismatch, figures=report.figures(), explain=explain,
        )  # fmt: skip

    def trained(self, segments: list[Segment], dtype: torch.dtype = torch.float32) -> list[Score]:
        return Recompute(self.base, self.policies[NUMBER], dtype).scores(segments, 1.0)


@pytest.fixture(scope="module")
def world(moved: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home, base = tmp_path_factory.mktemp("diagnosis"), load_base(STARTER)
    policies = [init_adapter(base, LoraSpec(r=4, alpha=8), home / "policy-00000", seed=0)]
    for number, noise in ((1, 0.03), (2, 0.01)):
        policies.append(moved(base, policies[-1], home / f"policy-0000{number}", noise))
    chat = Chat(base.tokenizer)
    ends = base.tokenizer.convert_tokens_to_ids(chat.end_of_turn)
    OtherTemplate.newline = (ends, chat.ids(chat.end_of_turn + "\n")[-1])
    with WarmPool(2, "agent") as pool:
        yield World(base, policies, pool, home)


@pytest.fixture(scope="module")
def right(world: World) -> list[Segment]:
    return world.sample("right", world.policies[NUMBER])


def shifted(segments: list[Segment]) -> list[Segment]:
    """Each sampled token with the log-probability of the one before it."""
    found = []
    for segment in segments:
        row = list(segment.rollout_logprobs)
        for before, after in itertools.pairwise(sampled_positions(segment)):
            row[after] = segment.rollout_logprobs[before]
        found.append(segment.model_copy(update={"rollout_logprobs": row}))
    return found


def points_to(gate: Gate, cause: str, *words: str) -> None:
    assert gate.verdict is Verdict.FAIL, gate.reason
    assert gate.evidence["cause"] == cause, gate.reason
    assert f"this points to {cause}: " in gate.reason
    for word in words:
        assert word in gate.reason


def test_equal_weights_tokens_and_temperature_pass_unasked(world: World, right: list[Segment]) -> None:
    gate = world.gate(right, world.trained(right))
    assert gate.verdict is Verdict.PASS, gate.reason
    assert gate.evidence["max_abs_diff"] < 1e-4
    assert "cause" not in gate.evidence
    turns = [value for name, value in gate.evidence.items() if name.startswith("turn.")]
    assert len(turns) >= 3 and max(value for value in turns if value is not None) < 1e-5


def test_a_float32_sampler_under_a_bfloat16_trainer(world: World, right: list[Segment]) -> None:
    gate = world.gate(right, world.trained(right, torch.bfloat16))
    points_to(gate, "precision", "plain float32 under the same weights agrees with the engine")


def test_a_wrong_temperature(world: World) -> None:
    segments = world.sample("hot", world.policies[NUMBER], heat=0.8)
    points_to(world.gate(segments, world.trained(segments)), "temperature", "sampled at 0.8, the trainer scores at 1")


def test_a_wrong_template(world: World) -> None:
    segments = world.sample("template", world.policies[NUMBER], OtherTemplate)
    gate = world.gate(segments, world.trained(segments))
    points_to(gate, "template", r"the engine read no '\n' after '<|im_end|>'")


def test_a_template_that_nobody_can_guess_is_told_by_its_pattern(world: World) -> None:
    segments = world.sample("brief", world.policies[NUMBER], NoBrief)
    points_to(world.gate(segments, world.trained(segments)), "template", "right after inserted tokens")


@pytest.mark.parametrize("stale", [0, 1])
def test_stale_weights_are_named(world: World, stale: int) -> None:
    segments = world.sample(f"stale-{stale}", world.policies[stale])
    # version 0 computes what the base does
    name = world.policies[stale].name if stale else "the base"
    points_to(world.gate(segments, world.trained(segments)), "weights", f"the engine sampled with {name}")


def test_weights_that_nobody_knows(world: World, moved: Callable[..., Path]) -> None:
    other = moved(world.base, world.policies[NUMBER], world.home / "other", 0.02)
    segments = world.sample("unknown", other)
    points_to(world.gate(segments, world.trained(segments)), "weights", "that no known version holds")


def test_a_shift_by_one_position(world: World, right: list[Segment]) -> None:
    segments = shifted(right)
    gate = world.gate(segments, world.trained(segments))
    points_to(gate, "position", "each token that is off has the log-probability of the one before it")


def test_tokens_of_older_versions_are_not_looked_at(world: World, right: list[Segment]) -> None:
    older = [s.model_copy(update={"policy_numbers": [1 if m else -1 for m in s.loss_mask]}) for s in right[:2]]
    scores = world.trained(older)
    assert not gather(older, scores, NUMBER).looked_at.any()
    found = diagnose(
        world.base, older, scores, policy=world.policies[NUMBER], number=NUMBER, versions={}, temperature=1.0
    )
    assert "older ones" in found.sentence
