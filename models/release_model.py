"""What makes a release a model to MLflow: `models:/<name>-release@champion` takes messages and gives a turn.

manifest -> MLmodel: the module that loads it, what it takes (messages, tools), what it gives (a turn)
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from models.release import Manifest

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

MLMODEL = "MLmodel"
LOADER = "tasks.release.serving_model"
"""By name, since it samples through the engine, and models may import nothing of tasks."""

MAX_TOKENS = 256


def mlmodel_text(manifest: Manifest) -> str:
    """The MLmodel file beside the manifest. It holds no code and no weights: the manifest says where those are."""
    from mlflow.models import Model

    model = Model(
        signature=turn_signature(), metadata={"release": manifest.key, "policy_version": manifest.policy_version}
    )
    model.add_flavor("python_function", loader_module=LOADER, python_version=platform.python_version())
    return str(model.to_yaml())


def turn_signature() -> ModelSignature:
    """Messages and tools in OpenAI's form; an assistant message with its tool calls, and how it ended."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import AnyType, Array, Object, Property

    def message(content: DataType | AnyType) -> Object:
        return Object(
            [
                Property("role", DataType.string),
                Property("content", content, required=isinstance(content, DataType)),
                Property("tool_calls", AnyType(), required=False),
            ]
        )

    return ModelSignature(
        inputs=Schema(
            [ColSpec(Array(message(AnyType())), "messages"), ColSpec(Array(AnyType()), "tools", required=False)]
        ),
        outputs=Schema(
            [
                ColSpec(message(DataType.string), "message"),
                *(ColSpec(DataType.string, name) for name in ("finish_reason", "policy_version", "policy_digest")),
            ]
        ),
        params=ParamSchema(
            [
                ParamSpec("max_tokens", DataType.long, MAX_TOKENS),
                ParamSpec("temperature", DataType.double, 0.0),
                ParamSpec("top_p", DataType.double, 1.0),
                ParamSpec("seed", DataType.long, 0),
            ]
        ),
    )
