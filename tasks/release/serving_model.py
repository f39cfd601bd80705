"""What MLflow loads a release with: messages in, one turn out, sampled as the gateway would.

models:/<name>-release@champion -> manifest -> verified files -> engine -> assistant message with its tool calls

    model = mlflow.pyfunc.load_model("models:/repair-agent-release@champion")
    model.predict({"messages": [...], "tools": [...]}, params={"max_tokens": 128})

Any process can, that has this package and MLflow's address: the weights are those that the manifest pins.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from data_contracts.errors import UserError
from models.chat import Chat, Message
from models.mlflow_client import connect
from models.policy import load_base
from models.registry_reader import MANIFEST, ReleaseReader
from models.release import Manifest, Release, ReleaseDamaged
from tasks.rollout.engine import Completion, SampleRequest
from tasks.rollout.slot_engine import SlotEngine
from tasks.rollout.toolformats import FORMATS

if TYPE_CHECKING:
    from pandas import DataFrame


class TurnModel:
    """One release, ready to speak. One call at a time."""

    def __init__(self, release: Release) -> None:
        """Raises `ReleaseDamaged` when base or policy are not those of the manifest."""
        self._base = load_base(release.base_path)
        self._chat = Chat(self._base.tokenizer)
        self._engine = SlotEngine.from_base(self._base, slots=1)
        self._name = release.policy_version
        loaded = {"base": self._base.digest, "policy": self._engine.load_adapter(self._name, release.policy_path)}
        for role, digest in loaded.items():
            if digest != release.digests[role]:
                raise ReleaseDamaged(f"{role} of release {release.version} has digest {digest}: publish again")
        rollout = release.manifest.recipe.get("rollout", {})
        self._form = FORMATS[rollout.get("tool_format", "hermes")]

    def predict(self, model_input: DataFrame, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """One turn a row; `params` as the model's signature has them."""
        asked = params or {}
        rows = model_input.to_dict("records")
        return [self._turn(row["messages"], _listed(row.get("tools")), asked) for row in rows]

    def _turn(self, messages: Sequence[Message], tools: list[dict[str, Any]], asked: dict[str, Any]) -> dict[str, Any]:
        prompt = self._chat.prompt([_for_template(message) for message in messages], tools)
        completion = self._sample(prompt, asked)
        cut = completion.finish_reason == "length"
        message = self._message(self._chat.decode(completion.token_ids), cut=cut)
        return {
            "message": message,
            "finish_reason": "length" if cut else "tool_calls" if "tool_calls" in message else "stop",
            "policy_version": completion.policy_version,
            "policy_digest": completion.policy_digest,
        }

    def _sample(self, prompt: list[int], asked: dict[str, Any]) -> Completion:
        room = self._base.window - len(prompt)
        if room < 1:
            raise UserError(f"the messages are {len(prompt)} tokens, the model holds {self._base.window}: send fewer.")
        session = uuid4().hex
        sampling = {name: asked[name] for name in ("temperature", "top_p", "seed") if name in asked}
        request = SampleRequest(
            session, self._name, prompt, min(asked.get("max_tokens", room), room), **sampling,
            stop_ids=self._chat.stop_ids,
        )  # fmt: skip
        self._engine.submit(request)
        try:
            while True:
                for _, completion in self._engine.poll():
                    return completion
        finally:
            self._engine.close_session(session)

    def _message(self, text: str, *, cut: bool) -> Message:
        """What was sampled in OpenAI's form; of a turn cut by length no call is taken, since more was to come."""
        parsed = self._form.parse(text)
        if cut or not parsed.calls:
            return {"role": "assistant", "content": text}
        calls = [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for index, call in enumerate(parsed.calls)
        ]
        return {"role": "assistant", "content": parsed.content, "tool_calls": calls}


def _load_pyfunc(path: str) -> TurnModel:
    """MLflow calls this with the folder in which the release's manifest lies."""
    import mlflow

    manifest = Manifest.model_validate_json((Path(path) / MANIFEST).read_text())
    reader = ReleaseReader(connect(mlflow.get_tracking_uri()), manifest.name)
    version = reader.search(f"{manifest.name}-release", {"ratchet.key": manifest.key})
    if version is None:
        raise ReleaseDamaged(f"{path} is no release of {manifest.name!r} in {mlflow.get_tracking_uri()}: load by alias")
    release = reader.load(version)
    reader.require_whole(release)
    return TurnModel(release)


def _listed(tools: Any) -> list[dict[str, Any]]:
    """The tools; MLflow gives NaN for a row without, and may give an array."""
    return [] if tools is None or isinstance(tools, float) else list(tools)


def _for_template(message: Message) -> Message:
    """A message for the template: content as text, a call's arguments as an object where they are one."""
    calls = [call | {"function": call["function"] | _arguments(call)} for call in message.get("tool_calls") or []]
    return {"role": message["role"], "content": message.get("content") or ""} | ({"tool_calls": calls} if calls else {})


def _arguments(call: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"arguments": json.loads(call["function"]["arguments"])}
    except json.JSONDecodeError:
        return {}
