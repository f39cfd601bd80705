"""The canary stage as Prefect tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.records import Problem
from models.chat import Chat
from models.release import Release
from tasks.canary.audit import AuditLog
from tasks.canary.config import CanaryConfig
from tasks.canary.gateway import Gateway
from tasks.canary.routing import served_of
from tasks.canary.sessions import LiveSession
from tasks.canary.trial import CanaryReport, run_trial
from tasks.rollout.engine import Engine
from tasks.rollout.sandbox import WarmPool


@task(name="canary", cache_policy=NO_CACHE, persist_result=False)
def canary(
    engine: Engine,
    chat: Chat,
    releases: tuple[Release, Release],
    problems: Sequence[Problem],
    pools: tuple[WarmPool, WarmPool],
    config: CanaryConfig,
    folders: tuple[Path, Path],
    on_session: Callable[[LiveSession], None] | None = None,
    *,
    tool_format: str = "hermes",
) -> CanaryReport:
    """Champion and candidate behind a gateway; `pools`: agent's, verifier's; `folders`: the canary's, the audit's."""
    champion, candidate = (served_of(release) for release in releases)
    with (
        AuditLog(folders[1]) as audit,
        Gateway(engine, chat, champion, audit, config.gateway, tool_format=tool_format) as gateway,
    ):
        return run_trial(gateway, candidate, problems, pools, config, folders[0], on_session)
