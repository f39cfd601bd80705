"""The starter model from nothing but a seed: `ratchet starter build`.

training problems -> demonstrations -> tokenizer -> skilled stage -> careless stage -> model folder -> model card
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import NamedTuple

from pydantic import Field

from data_contracts.config import Config
from data_contracts.records import HORIZONS, Horizon
from flows import progress
from flows.starter_card import Made, write_card
from tasks.rollout.demonstrations import CARELESS, SKILLED, Demonstration, Habits, demonstrate, with_more_bugs

TOKENIZER_TEXTS = 6000
PROBLEM_SEED = 1_000_000
"""Demonstrations use problems of their own, all on the training side of the split."""
CHUNK = 250
PROCESSES = 2


class BuildConfig(Config):
    """How many demonstrations each stage of the warm-up sees, and how many problems the model card reports on."""

    skilled: dict[Horizon, int] = Field(default={"short": 24_000, "medium": 6_000, "long": 750})
    careless: dict[Horizon, int] = Field(default={"short": 2_000, "medium": 300, "long": 60})
    evaluation: dict[Horizon, int] = Field(default={"short": 320, "medium": 160, "long": 80})


class _Chunk(NamedTuple):
    """Demonstrations that one process makes: all that decides them."""

    name: str
    seed: int
    horizon: Horizon
    n: int
    habits: Habits


def build_starter(out: Path, seed: int, config: BuildConfig | None = None) -> Path:
    """Make the starter model in `out`; equal seeds give equal models on one machine."""
    from models.chat import Chat
    from models.starter import StarterConfig, encode, new_model, save, train_tokenizer, warm_up

    settings, counts = StarterConfig(seed=seed), config or BuildConfig()
    skilled = _demonstrations("skilled", counts.skilled, SKILLED, seed)
    careless = _demonstrations("careless", counts.careless, CARELESS, seed + 1)
    tokenizer = train_tokenizer((_text(one) for one in skilled[:TOKENIZER_TEXTS]), settings.vocabulary)
    chat, model = Chat(tokenizer), new_model(settings, tokenizer)
    stages = (
        ("skilled", skilled, settings.skilled_rate, settings.copy_share, settings.observed_weight),
        ("careless", careless, settings.careless_rate, 0.0, 0.0),
    )
    for name, demonstrations, rate, copy_share, observed_weight in stages:
        examples = [encode(one, chat, observed_weight) for one in demonstrations]
        with progress.stage(f"warm-up: {name}", None) as tick:
            on_step = _reporter(tick)
            warm_up(model, examples, settings, rate=rate, copy_share=copy_share, on_step=on_step)
        model.half().float()  # a stage ends with what its folder would hold
    out.mkdir(parents=True, exist_ok=True)
    save(model, tokenizer, out)
    write_card(out, Made(seed, len(skilled), len(careless)), counts.evaluation)
    return out


def _reporter(tick: Callable[..., None]) -> Callable[[int, int, float], None]:
    def on_step(step: int, steps: int, loss: float) -> None:
        tick(note=f"step {step} of {steps}, loss {loss:.3f}")

    return on_step


def _demonstrations(name: str, counts: dict[Horizon, int], habits: Habits, seed: int) -> list[Demonstration]:
    """All demonstrations of a stage in random order, made by processes of their own."""
    chunks = list(_chunks(name, counts, habits, seed))
    found: list[Demonstration] = []
    with (
        ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as workers,
        progress.stage(f"demonstrations: {name}", sum(counts.values())) as tick,
    ):
        for made in workers.map(_demonstrate, chunks):
            found += made
            tick(len(made))
    Random(f"order/{seed}").shuffle(found)
    return found


def _chunks(name: str, counts: dict[Horizon, int], habits: Habits, seed: int) -> Iterator[_Chunk]:
    for horizon in (horizon for horizon in HORIZONS if counts.get(horizon)):
        for start in range(0, counts[horizon], CHUNK):
            yield _Chunk(name, PROBLEM_SEED * (seed + 1) + start, horizon, min(CHUNK, counts[horizon] - start), habits)


def _demonstrate(chunk: _Chunk) -> list[Demonstration]:
    from tasks.curriculum.generator.problems import stream
    from tasks.rollout.sandbox import WarmPool

    rng = Random(f"{chunk.name}/{chunk.seed}/{chunk.horizon}")
    with WarmPool(1) as pool:
        problems = islice(stream(chunk.seed, "train", chunk.horizon), chunk.n)
        harder = (with_more_bugs(problem, rng.choice(chunk.habits.more_bugs), rng) for problem in problems)
        return [demonstrate(problem, chunk.habits, rng, pool) for problem in harder]


def _text(demonstration: Demonstration) -> str:
    told = [text for step in demonstration.steps for text in (step.text, step.observation)]
    return "\n".join([demonstration.messages[0]["content"], *told])
