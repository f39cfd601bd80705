"""Tasks with a fault each: `kind` says where it is."""

import os
import sys
import time

import verifiers.v1 as vf
from pydantic import Field


class OddConfig(vf.TasksetConfig):
    kinds: list[str] = Field(default=[])


class OddData(vf.TaskData):
    kind: str


class OddTools(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def sleep(self, seconds: float) -> str:
        """Block, as code does that knows no timeout."""
        time.sleep(seconds)
        return "awake"

    @vf.tool
    def die(self) -> str:
        """End the process."""
        print("out of order", file=sys.stderr, flush=True)
        os._exit(3)


class OddTask(vf.Task[OddData]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [OddTools(vf.ToolsetConfig())]

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if self.data.kind == "setup":
            raise KeyError("no shelf")

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return self.data.kind == "stops" and len(trace.tool_messages) > 1

    @vf.reward
    async def worth(self, trace: vf.Trace) -> float:
        if self.data.kind == "slow":
            time.sleep(60)
        values = {"double": 2.0, "nan": float("nan"), "below": -0.5, "free": 1.0}
        return values.get(self.data.kind, 1 / len(trace.assistant_messages) if self.data.kind == "silence" else 0.0)

    async def validate(self, runtime: vf.Runtime) -> bool | None:
        return {"wrong": False, "unsure": None}.get(self.data.kind, True)


class OddTaskset(vf.Taskset[OddTask, OddConfig]):
    def load(self) -> list[OddTask]:
        image = {"image": "ubuntu"}
        return [
            OddTask(OddData(name=kind, kind=kind, prompt="Go on.", **(image if kind == "boxed" else {})))
            for kind in self.config.kinds
        ]


__all__ = ["OddTaskset"]
