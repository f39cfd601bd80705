"""Settings of the context policy: what of a session its model is shown."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from data_contracts.config import Config

PolicyName = Literal["keep", "clip", "externalise", "compact", "notes"]
PARAMETERS: dict[str, tuple[str, ...]] = {
    "keep": (),
    "clip": ("observation_tokens",),
    "externalise": ("observation_tokens", "preview_tokens"),
    "compact": ("compact_at", "summary_tokens", "observation_tokens"),
    "notes": ("notes_tokens", "notes_within"),
}


class ContextConfig(Config):
    """One policy and its parameters; those of other policies are refused."""

    policy: PolicyName = Field(
        default="keep",
        description="keep: all of it; clip: long observations cut in the middle; externalise: large results outside, "
        "read on demand; compact: the model sums up and goes on from its summary; notes: a state it keeps by a tool",
    )
    observation_tokens: int = Field(
        default=512, ge=32, description="clip, compact: most tokens of a turn's results; externalise: of one result"
    )
    preview_tokens: int = Field(default=64, ge=1, description="externalise: tokens of a large result that are shown")
    compact_at: int = Field(default=3072, ge=64, description="compact: context tokens from which a summary is asked")
    summary_tokens: int = Field(default=256, ge=8, description="compact: most tokens of a summary")
    notes_tokens: int = Field(default=256, ge=16, description="notes: most tokens of all notes together")
    notes_within: int = Field(
        default=0,
        ge=0,
        description="notes: tokens that may follow the notes before they move to the end again, which begins a new "
        "segment; 0: they are always last",
    )

    @model_validator(mode="after")
    def _own_parameters(self) -> Self:
        own = PARAMETERS[self.policy]
        for name, field in type(self).model_fields.items():
            if name == "policy" or name in own or getattr(self, name) == field.default:
                continue
            users = " or ".join(f"'{policy}'" for policy, names in PARAMETERS.items() if name in names)
            raise ValueError(
                f"rollout.context.{name} is for the policy {users}, not for '{self.policy}': "
                f"remove it, or set rollout.context.policy"
            )
        return self
