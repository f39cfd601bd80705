"""What terms say beside the verified outcome: potentials of the shaping terms, and the proxy's word.

trajectories + their problems' limits -> potential before each turn and at the end;  proxy -> one value a rollout

Shaping is F(s, s') = potential(s') - potential(s), with a potential of 0 once the rollout has ended: whatever the path,
it adds up to minus the potential of the start, so that the best policy stays the best (Ng, Harada and Russell 1999).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from pydantic import Field

from data_contracts.records import Limits, Problem, Record, Trajectory, Turn
from tasks.reward.config import TermConfig, TermsConfig
from tasks.reward.terms import SHAPING, clipped


class Signals(Record):
    """What the enabled terms beside the outcome say of an iteration's rollouts; nothing of those without a verdict."""

    potentials: dict[str, dict[str, tuple[float, ...]]] = Field(
        default={}, description="by shaping term and trajectory: before each turn, then as the last one left it [T + 1]"
    )
    proxies: dict[str, float] = Field(default={}, description="by trajectory: the proxy's word, before its weight")
    abstained: int = Field(default=0, ge=0, description="rollouts of which the proxy said nothing")
    note: str = Field(default="", description="why the proxy said nothing at all")

    def by_rollout(self, term: str) -> Mapping[str, float]:
        """One number a rollout: the proxy's word, or a shaping term's last potential."""
        if term == "proxy":
            return self.proxies
        return {name: values[-1] for name, values in self.potentials.get(term, {}).items()}


NO_SIGNALS = Signals()


class Proxies(NamedTuple):
    """The reward model's word on rollouts by id, None where it abstained; without any, `note` says why."""

    values: Mapping[str, float | None]
    note: str = ""


NOT_ASKED = Proxies({})


def shaping_signals(
    trajectories: Sequence[Trajectory], problems: Mapping[str, Problem], config: TermsConfig
) -> Signals:
    """Potentials of the enabled shaping terms, and the proxy where it can be told from the rollout itself."""
    scored = [t for t in trajectories if t.scorable]
    limits = {t.id: problems[t.problem_id].limits for t in scored}
    potentials = {
        name: {t.id: potential(name, t, limits[t.id], term) for t in scored}
        for name, term in config.items().items()
        if name in SHAPING and term.enabled
    }
    if not config.proxy.enabled or config.proxy.source == "model":
        return Signals(potentials=potentials)
    tell = _visible if config.proxy.source == "visible" else _brevity
    proxies = {t.id: clipped(tell(t, limits[t.id]), config.proxy) for t in scored}
    return Signals(potentials=potentials, proxies=proxies)


def with_model(signals: Signals, trajectories: Sequence[Trajectory], said: Proxies, config: TermsConfig) -> Signals:
    """The signals with the reward model's word as the proxy, where the recipe asks for it."""
    if not config.proxy.enabled or config.proxy.source != "model":
        return signals
    spoken = {name: clipped(value, config.proxy) for name, value in said.values.items() if value is not None}
    silent = sum(t.scorable and t.id not in spoken for t in trajectories)
    return signals.model_copy(update={"proxies": spoken, "abstained": silent, "note": said.note})


def potential(name: str, trajectory: Trajectory, limits: Limits, term: TermConfig) -> tuple[float, ...]:
    """A shaping term's potential before each turn and after the last [T + 1], within the term's bounds; 0 at first."""
    turns, values = trajectory.turns, list[float]()
    match name:
        case "process":
            values = list(accumulate((turn.progress or 0.0 for turn in turns), initial=0.0))
        case "format":
            values = [_malformed_share(part) for part in _prefixes(turns)]
        case "cost":
            values = [_budget_share(part, limits) for part in _prefixes(turns)]
    return tuple(clipped(value, term) for value in values)


def _prefixes(turns: Sequence[Turn]) -> list[Sequence[Turn]]:
    return [turns[:stop] for stop in range(len(turns) + 1)]


def _malformed_share(turns: Sequence[Turn]) -> float:
    malformed = sum(len(turn.call_errors) for turn in turns)
    calls = malformed + sum(len(turn.calls) for turn in turns)
    return -malformed / calls if calls else 0.0


def _budget_share(turns: Sequence[Turn], limits: Limits) -> float:
    return -(sum(turn.completion_tokens for turn in turns) / limits.tokens + len(turns) / limits.turns) / 2


def _visible(trajectory: Trajectory, limits: Limits) -> float:
    del limits
    return (trajectory.visible_passed or 0) / trajectory.visible_total if trajectory.visible_total else 0.0


def _brevity(trajectory: Trajectory, limits: Limits) -> float:
    return 1.0 + _budget_share(trajectory.turns, limits)
