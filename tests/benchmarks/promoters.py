"""Two promoters and four readers on one registry: does a reader ever see a mix of two releases?

    python tests/benchmarks/promoters.py [--seconds 60] [--promoters 2] [--readers 4]

Promoters promote, roll back, and begin, move on and end trials, as fast as the lock lets them. A reader takes one
reading of what serves, hashes every pinned file of champion and candidate, and loads their weights: files that are not
those of the digests, or a trial that is not the champion's, are a mixed read. Each is a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from models.registry import ChampionMoved, Registry
from models.release import Bundle, Release
from models.trial import Trial

Open = Callable[[], Registry]


def offer(folder: Path, mark: str) -> Bundle:
    """A release whose files say which digest they belong to."""
    parts = {role: f"{role}-{mark}" for role in ("base", "policy", "reward")}
    for digest in parts.values():
        (folder / digest).mkdir(parents=True, exist_ok=True)
        (folder / digest / "model.safetensors").write_text(digest * 5000)
    paths = {f"{role}_path": folder / digest for role, digest in parts.items()}
    digests = {f"{role}_digest": digest for role, digest in parts.items()}
    return Bundle(run_id=f"run-{mark}", policy_version="policy-00001", **paths, **digests)


def promoter(registry: Registry, versions: list[int], until: float, seed: int) -> Counter[str]:
    """Move the champion and its trials until then, and ten times at least; how often each was done, or refused."""
    draw, done = random.Random(seed), Counter[str]()
    while time.time() < until or done.total() < 10:
        try:
            done[_move(registry, draw, versions)] += 1
        except ChampionMoved:
            done["refused"] += 1
    return done


def _move(registry: Registry, draw: random.Random, versions: list[int]) -> str:
    who, why = str(os.getpid()), "race"
    serving = registry.serving()
    assert serving is not None
    match draw.randrange(6):
        case 0 | 1:
            registry.promote(draw.choice(versions), who=who, why=why)
            return "promotions"
        case 2 if registry.rollback_targets():
            registry.rollback(from_version=serving.champion.version, who=who, why=why)
            return "rollbacks"
        case 3 if serving.trial is not None:
            registry.set_trial(None, who=who, why=why)
        case _:
            stage = serving.trial.stage + 1 if serving.trial else 0
            candidate = serving.trial.candidate if serving.trial else draw.choice(versions)
            trial = Trial(
                id=f"{candidate}", champion=serving.champion.version, candidate=candidate, stage=stage, share=0.5,
                since="now",
            )  # fmt: skip
            registry.set_trial(trial, who=who, why=why)
    return "trials"


def reader(registry: Registry, until: float) -> Counter[str]:
    """Read and load until then, and five times at least; counts reads, those with a candidate, and mixed ones."""
    seen: Counter[str] = Counter()
    while time.time() < until or seen["reads"] < 5:
        registry._releases.clear()  # a process that has just begun
        serving = registry.serving()
        assert serving is not None
        releases = [serving.champion, *([serving.candidate] if serving.candidate else [])]
        fits = serving.trial is None or (
            (serving.trial.champion, serving.trial.candidate) == tuple(release.version for release in releases)
        )
        seen["reads"] += 1
        seen["with a candidate"] += serving.candidate is not None
        seen["mixed"] += not (fits and all(map(_whole, releases)))
    return seen


def _whole(release: Release) -> bool:
    release.verify()
    loaded = {role: (path / "model.safetensors").read_text() for role, path in release.paths.items()}
    digests = release.digests
    marks = {digest.rpartition("-")[2] for digest in digests.values()}
    return len(marks) == 1 and all(text == digests[role] * 5000 for role, text in loaded.items())


def race(open_registry: Open, versions: list[int], seconds: float, promoters: int, readers: int) -> Counter[str]:
    """All at once, each in a process of its own; the sum of what they counted, and the errors."""
    until = time.time() + seconds
    jobs: list[Callable[[], Counter[str]]] = [
        *(lambda seed=seed: promoter(open_registry(), versions, until, seed) for seed in range(promoters)),  # type: ignore[misc]
        *(lambda: reader(open_registry(), until) for _ in range(readers)),
    ]
    total: Counter[str] = Counter()
    for pid, pipe in [_fork(job) for job in jobs]:
        with os.fdopen(pipe) as told:
            total.update(json.loads(told.read() or "{}"))
        total["errors"] += os.waitpid(pid, 0)[1] != 0
    return total


def _fork(job: Callable[[], Counter[str]]) -> tuple[int, int]:
    receive, send = os.pipe()
    if pid := os.fork():
        os.close(send)
        return pid, receive
    code = 1
    try:
        os.write(send, json.dumps(job()).encode())
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.stderr.flush()
        os._exit(code)


def prepare(open_registry: Open, folder: Path) -> list[int]:
    """Three releases, the first of them champion."""
    registry = open_registry()
    versions = [registry.publish(offer(folder, mark)) for mark in "abc"]
    registry.promote(versions[0], who="bench", why="first")
    return versions


def linked(registry: Registry) -> bool:
    """Whether the history is one chain: each move of the champion begins where the one before ended."""
    moves = [move for move in registry.history() if move.moves_champion]
    ends = all(after.from_version == before.to_version for before, after in itertools.pairwise(moves))
    return ends and all(move.state == "done" for move in registry.history())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--promoters", type=int, default=2)
    parser.add_argument("--readers", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        uri, artifacts = f"sqlite:///{home}/mlflow.db", Path(home) / "mlartifacts"

        def open_registry() -> Registry:
            return Registry(uri, artifacts, "agent")

        versions = prepare(open_registry, Path(home) / "offered")
        told = race(open_registry, versions, given.seconds, given.promoters, given.readers)
        print(", ".join(f"{told[name]} {name}" for name in sorted({*told, "mixed", "errors", "refused"})))
        print(f"one chain of moves: {linked(open_registry())}")


if __name__ == "__main__":
    main()
