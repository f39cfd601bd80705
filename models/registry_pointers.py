"""What of a release can change after it was published: which one serves, which is on trial, which is in quarantine.

alias `champion` + tags of `<name>-release` -> Pointers, from one read
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from models.trial import Trial

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION = "champion"
TRIAL = "ratchet.trial"
QUARANTINE = "ratchet.quarantine."


@dataclass(frozen=True, slots=True)
class Pointers:
    """The champion's version, the trial as written, and why each release in quarantine is there."""

    champion: int | None = None
    trial: Trial | None = None
    quarantined: Mapping[int, str] = field(default_factory=dict)

    @property
    def live_trial(self) -> Trial | None:
        """The trial, while it counts: against the present champion, of a candidate that is not in quarantine."""
        trial = self.trial
        if trial is None or trial.champion != self.champion or trial.candidate in self.quarantined:
            return None
        return trial


class PointerStore:
    """Reads them at once, and writes each by one call to MLflow."""

    def __init__(self, client: MlflowClient, model: str) -> None:
        self._client, self._model = client, model

    def read(self) -> Pointers:
        from mlflow.exceptions import MlflowException

        try:
            model = self._client.get_registered_model(self._model)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return Pointers()
            raise
        champion, trial = model.aliases.get(CHAMPION), model.tags.get(TRIAL)
        return Pointers(
            int(champion) if champion else None,
            Trial.model_validate_json(trial) if trial else None,
            {int(key.removeprefix(QUARANTINE)): why for key, why in model.tags.items() if key.startswith(QUARANTINE)},
        )

    def write_champion(self, version: int) -> None:
        self._client.set_registered_model_alias(self._model, CHAMPION, str(version))

    def write_trial(self, trial: Trial | None) -> None:
        if trial is None:
            self._client.delete_registered_model_tag(self._model, TRIAL)
        else:
            self._client.set_registered_model_tag(self._model, TRIAL, trial.model_dump_json())

    def write_quarantine(self, version: int, why: str | None) -> None:
        """Put a release into quarantine, or lift it (None)."""
        if why is None:
            self._client.delete_registered_model_tag(self._model, f"{QUARANTINE}{version}")
        else:
            self._client.set_registered_model_tag(self._model, f"{QUARANTINE}{version}", why[:5000])
