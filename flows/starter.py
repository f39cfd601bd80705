"""Build the starter model: demonstrations -> tokenizer -> skilled stage -> careless stage -> evaluation.

`ratchet starter build` runs it; the result is committed under models/starter/ so that a quick start begins at once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from random import Random

from pydantic import Field

from data_contracts.config import Config
from data_contracts.records import Horizon
from models.starter import Example, StarterConfig, encode, new_model, save, train_tokenizer, warm_up
from tasks.curriculum.generator.problems import stream
from tasks.rollout.demonstrations import CARELESS, SKILLED, Demonstration, Habits, demonstrate
from tasks.rollout.sandbox import WarmPool

Progress = Callable[[str, int, int], None]
"""stage, done, total"""


class StarterRecipe(Config):
    """How much the starter model is shown, by horizon."""

    model: StarterConfig = StarterConfig()
    skilled: dict[Horizon, int] = Field(default={"short": 14_000, "medium": 4_000, "long": 1_000})
    careless: dict[Horizon, int] = Field(default={"short": 3_000, "medium": 600, "long": 150})
    tokenizer_texts: int = Field(default=6_000, description="demonstrations that the tokenizer is trained on")


def build_starter(out: Path, recipe: StarterRecipe, progress: Progress) -> None:
    """Write the starter model's folder; the same recipe gives the same weights on one machine."""
    from models.chat import Chat

    with WarmPool(2, "demonstrations") as pool:
        skilled = _demonstrations("skilled", recipe.skilled, SKILLED, recipe.model.seed, pool, progress)
        careless = _demonstrations("careless", recipe.careless, CARELESS, recipe.model.seed + 1, pool, progress)
    tokenizer = train_tokenizer(map(_text, skilled[: recipe.tokenizer_texts]), recipe.model.vocabulary)
    chat = Chat(tokenizer)
    model = new_model(recipe.model, tokenizer)
    for name, demonstrations, rate, copy in (
        ("skilled stage", skilled, recipe.model.skilled_rate, recipe.model.copy_share),
        ("careless stage", careless, recipe.model.careless_rate, 0.0),
    ):
        examples: list[Example] = [encode(d, chat) for d in demonstrations]

        def on_step(step: int, total: int, loss: float, name: str = name) -> None:
            progress(f"{name} (loss {loss:.3f})", step, total)

        warm_up(model, examples, recipe.model, rate=rate, copy_share=copy, on_step=on_step)
    save(model, tokenizer, out)


def _demonstrations(
    name: str, counts: dict[Horizon, int], habits: Habits, seed: int, pool: WarmPool, progress: Progress
) -> list[Demonstration]:
    """Demonstrations on training problems of every horizon, in the same order whatever the threads' timing."""
    total, made = sum(counts.values()), []
    with ThreadPoolExecutor(2) as threads:
        for horizon, count in counts.items():
            problems = islice(stream(1_000_000 + seed, "train", horizon), count)
            jobs = threads.map(lambda p: demonstrate(p, habits, Random(f"{seed}/{p.id}"), pool), problems)
            for demonstration in jobs:
                made.append(demonstration)
                progress(f"{name} demonstrations", len(made), total)
    Random(seed).shuffle(made)
    return made


def _text(demonstration: Demonstration) -> str:
    said = [text for step in demonstration.steps for text in (step.text, step.observation)]
    return "\n".join([demonstration.messages[0]["content"], *said])
