"""Which tasks of the package can be played here: a conversation, with tools or without, that the task itself judges."""

from __future__ import annotations

import verifiers.v1 as vf
from verifiers.v1.utils.decorators import discover_decorated
from verifiers.v1.utils.loaders import environment_class

from tasks.rollout.environments.verifiers.play import stops_at_traces


def misfit(taskset: str, task: vf.Task) -> str:
    """What the task asks for that is not offered here, as what it "needs"; empty where it can be played."""
    data, config = task.data, task.config
    asks = {
        "an environment class of its own, which drives the agents": environment_class(taskset) is not vf.SingleAgentEnv,
        "a container": type(task).NEEDS_CONTAINER or data.image or data.agent_user,
        "artifacts of a runtime": data.artifacts,
        "skills": data.skills,
        "network rules": data.network_allow != ["*"] or data.network_block,
        "judges that are models": config.judges,
        "hooks that rewrite messages (@vf.intercept)": discover_decorated(task, "intercept"),
        "stops at requests or responses": not stops_at_traces(task),
        "a user who opens the conversation": data.prompt is None,
        "a prompt that is more than text": _beyond_text(data),
        "a reward (@vf.reward)": not task.hooks("reward"),
    }
    return next((what for what, asked in asks.items() if asked), "")


def _beyond_text(data: vf.TaskData) -> bool:
    messages = [] if isinstance(data.prompt, str) or data.prompt is None else data.prompt
    spoken = ("system", "user", "assistant")
    return any(
        message.role not in spoken or not isinstance(message.content, str) or getattr(message, "tool_calls", None)
        for message in messages
    )
