"""The starter model from nothing but a seed: `ratchet starter build`.

training problems -> demonstrations -> tokenizer -> skilled stage -> careless stage -> model folder
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from data_contracts.config import Config
from data_contracts.records import HORIZONS, Horizon
from flows import progress
from tasks.rollout.demonstrations import CARELESS, SKILLED, Demonstration, Habits, demonstrate

SKILLED_DEMONSTRATIONS: dict[Horizon, int] = {"short": 14000, "medium": 3500, "long": 600}
CARELESS_DEMONSTRATIONS: dict[Horizon, int] = {"short": 2000, "medium": 300, "long": 60}
TOKENIZER_TEXTS = 6000
PROBLEM_SEED = 1_000_000
"""Demonstrations use problems of their own, all on the training side of the split."""


class BuildConfig(Config):
    """How many demonstrations each stage of the warm-up sees."""

    skilled: dict[Horizon, int] = SKILLED_DEMONSTRATIONS
    careless: dict[Horizon, int] = CARELESS_DEMONSTRATIONS


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
    out.mkdir(parents=True, exist_ok=True)
    save(model, tokenizer, out)
    return out


def _reporter(tick: Callable[..., None]) -> Callable[[int, int, float], None]:
    def on_step(step: int, steps: int, loss: float) -> None:
        tick(note=f"step {step} of {steps}, loss {loss:.3f}")

    return on_step


def _demonstrations(name: str, counts: Mapping[Horizon, int], habits: Habits, seed: int) -> list[Demonstration]:
    from tasks.curriculum.generator.problems import generate
    from tasks.rollout.sandbox import WarmPool

    rng, found = Random(f"{name}/{seed}"), []
    with WarmPool(2) as pool, progress.stage(f"demonstrations: {name}", sum(counts.values())) as tick:
        for horizon in (horizon for horizon in HORIZONS if counts.get(horizon)):
            for problem in generate(PROBLEM_SEED + seed, "train", horizon, counts[horizon]):
                found.append(demonstrate(problem, habits, rng, pool))
                tick()
    return found


def _text(demonstration: Demonstration) -> str:
    told = [text for step in demonstration.steps for text in (step.text, step.observation)]
    return "\n".join([demonstration.messages[0]["content"], *told])
