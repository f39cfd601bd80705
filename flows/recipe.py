"""The whole configuration of a run, and how a TOML file fills it.

recipe.toml + overrides -> Recipe(one section a stage)
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from data_contracts.config import Config
from data_contracts.errors import UserError
from tasks.canary.config import CanaryConfig
from tasks.credit.config import CreditConfig
from tasks.curriculum.config import CurriculumConfig
from tasks.drift.config import DriftConfig
from tasks.evaluation.config import EvaluationConfig
from tasks.release.config import ReleaseConfig
from tasks.reward.config import RewardConfig
from tasks.rollout.config import RolloutConfig
from tasks.training.config import TrainingConfig


class PolicyConfig(Config):
    """What is trained, and from where it starts."""

    base: str = Field(
        default="models/starter",
        min_length=1,
        description="folder of the base model: any Hugging Face causal language model with a chat template",
    )
    start: Literal["base", "champion"] = Field(
        default="base", description="the first policy: the base as it is, or the champion's adapter"
    )


class Recipe(Config):
    """Everything that decides a run. Two runs of one recipe do the same."""

    name: str = Field(
        default="quickstart", pattern=r"^[a-z0-9][a-z0-9\-]*$", description="first part of the run's id: a-z, 0-9, -"
    )
    seed: int = Field(default=0, ge=0, description="decides problems, sampling, minibatches; added to each stage's own")
    iterations: int = Field(default=60, ge=1, description="iterations of rollouts and training")
    round: int = Field(default=10, ge=1, description="iterations that share one Prefect flow run and its artifacts")
    policy: PolicyConfig = Field(default=PolicyConfig(), description="what is trained")
    curriculum: CurriculumConfig = Field(default=CurriculumConfig(), description="which problems are worth a rollout")
    rollout: RolloutConfig = Field(default=RolloutConfig(), description="how rollouts are sampled")
    reward: RewardConfig = Field(default=RewardConfig(), description="how rollouts are verified and rewarded")
    credit: CreditConfig = Field(default=CreditConfig(), description="which tokens earned the reward")
    training: TrainingConfig = Field(default=TrainingConfig(), description="how a batch becomes the next policy")
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description="held-out measurement")
    release: ReleaseConfig = Field(default=ReleaseConfig(), description="when and as what the policy is released")
    canary: CanaryConfig = Field(default=CanaryConfig(), description="trial on live sessions before promotion")
    drift: DriftConfig = Field(default=DriftConfig(), description="live sessions against the release's reference")

    @property
    def digest(self) -> str:
        """sha256 of the recipe's JSON, as hex."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def seeded(self) -> Recipe:
        """The recipe with `seed` added to the seeds of its stages, for the stages to use."""
        changed = {
            name: section.model_copy(update={"seed": section.seed + self.seed})
            for name in ("training", "evaluation", "canary")
            for section in [getattr(self, name)]
        }
        shuffle = self.credit.model_copy(update={"shuffle_seed": self.credit.shuffle_seed + self.seed})
        probe = self.reward.probe.model_copy(update={"seed": self.reward.probe.seed + self.seed})
        reward = self.reward.model_copy(update={"probe": probe})
        return self.model_copy(update={**changed, "credit": shuffle, "reward": reward})


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, and change it by overrides such as `training.learning_rate=1e-3`.

    Whatever is wrong is a UserError that names file, line and key, and says what to write instead.
    """
    file = Path(path)
    text = _read(file)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        where = f"{file}:{line[1]}" if line else f"{file}:{text.count(chr(10)) + 1}"
        raise UserError(f"{where}: not TOML ({error}): write `key = value`, texts in quotes.") from error
    sources: dict[tuple[str, ...], str] = {}
    for override in overrides:
        keys = _override(data, override)
        sources[keys] = f"--set {override}"
    try:
        # as JSON, in which a list may fill a tuple and yet no text passes for a number
        return Recipe.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise UserError(_explain(file, text, sources, error)) from error


def place_of(path: str | Path, overrides: Sequence[str], *keys: str) -> str:
    """Where a recipe was told the value of a key: an override, or `file:line`."""
    sources = {_keys(override): f"--set {override}" for override in overrides}
    return _place(Path(path), _read(Path(path)), sources, keys)


def _read(file: Path) -> str:
    if not file.is_file():
        near = difflib.get_close_matches(file.name, [f.name for f in file.parent.glob("*.toml")], n=1)
        hint = f"did you mean {file.parent / near[0]}?" if near else "give the path of a recipe (a TOML file)."
        raise UserError(f"{file} does not exist: {hint}")
    try:
        return file.read_text()
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 at byte {error.start + 1}: save the file as UTF-8.") from error


def _override(data: dict[str, Any], override: str) -> tuple[str, ...]:
    """Put `a.b=value` into `data`; the value is TOML, or a text where it is none."""
    _, equals, value = override.partition("=")
    keys = _keys(override)
    if not equals or not all(keys):
        raise UserError(f"--set {override}: no assignment: write for example --set training.learning_rate=1e-3")
    table = data
    for key in keys[:-1]:
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {override}: {key!r} is a value and has no keys of its own: set {key} itself.")
        table = inner
    table[keys[-1]] = _parsed(value)
    return keys


def _keys(override: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in override.partition("=")[0].split("."))


def _parsed(value: str) -> Any:
    """The value as TOML reads it, a number in shell's shorter forms (`.5`), or else a text."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return float(value) if re.fullmatch(r"[+-]?\.?\d+\.?(e[+-]?\d+)?", value) else value


def _explain(file: Path, text: str, sources: dict[tuple[str, ...], str], error: ValidationError) -> str:
    """One sentence for the first fault; the number of further ones at the end."""
    faults = error.errors()
    first = faults[0]
    keys = tuple(str(part) for part in first["loc"])
    where = _place(file, text, sources, keys)
    name = ".".join(keys)
    if first["type"] == "extra_forbidden":
        sentence = f"unknown key {name}: {_closest(keys)}"
    else:
        message = str(first["msg"]).removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        written = f"{name} = {_shown(first['input'])}" if not isinstance(first["input"], dict) else name
        remedy = "" if first["type"] == "value_error" else _meaning(keys)
        sentence = f"{written}: {message}{remedy}" if keys else message
    more = f" ({len(faults) - 1} more after this one)" if len(faults) > 1 else ""
    return f"{where}: {sentence}{more}"


def _place(file: Path, text: str, sources: dict[tuple[str, ...], str], keys: tuple[str, ...]) -> str:
    if source := next((source for known, source in sources.items() if keys[: len(known)] == known), None):
        return source
    line = line_of(text, keys)
    return f"{file}:{line}" if line else str(file)


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """The line (from 1) of a key in a TOML text; its table's header, or the nearest key above it, when not written."""
    table: tuple[str, ...] = ()
    best, found = 0, None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            table = _split(header[1])
            path = table
        elif assignment := re.match(r"\s*([\w.\-\"' ]+?)\s*=", line):
            path = table + _split(assignment[1])
        else:
            continue
        if path == tuple(keys[: len(path)]) and len(path) > best:
            best, found = len(path), number
    return found


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _closest(keys: tuple[str, ...]) -> str:
    """What to write instead of an unknown key."""
    section, _ = _model_at(keys[:-1])
    if section is None:
        return "remove it."
    known = list(section.model_fields)
    near = [key for key in known if _initials(key) == keys[-1]]  # `lr` stands for `learning_rate`
    near = near or difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.6)
    if near:
        return f"write {'.'.join((*keys[:-1], near[0]))}."
    elsewhere = [f"{name}.{keys[-1]}" for name, inner in _sections().items() if keys[-1] in inner.model_fields]
    if elsewhere:
        return f"write {elsewhere[0]}."
    return f"write one of {', '.join(known)}."


def _initials(key: str) -> str:
    return "".join(word[0] for word in key.split("_"))


def _sections() -> dict[str, type[BaseModel]]:
    return {name: _model(field.annotation) for name, field in Recipe.model_fields.items() if _model(field.annotation)}  # type: ignore[misc]


def _meaning(keys: tuple[str, ...]) -> str:
    """The field's description and default, as the remedy."""
    section, rest = _model_at(keys)
    if section is None or not rest or rest[0] not in section.model_fields:
        return ""
    field = section.model_fields[rest[0]]
    default = field.get_default(call_default_factory=True, validated_data={})
    example = "" if isinstance(default, BaseModel) else f"; write for example {rest[0]} = {_shown(default)}"
    return f" ({field.description}){example}."


def _model_at(keys: tuple[str, ...]) -> tuple[type[BaseModel] | None, tuple[str, ...]]:
    """The deepest section that `keys` lead into, and the keys that are left."""
    model: type[BaseModel] = Recipe
    for place, key in enumerate(keys):
        field = model.model_fields.get(key)
        inner = _model(field.annotation) if field else None
        if inner is None:
            return model, keys[place:]
        model = inner
    return model, ()


def _model(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        value = [part.model_dump(mode="json") if isinstance(part, BaseModel) else part for part in value]
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
