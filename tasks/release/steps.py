"""The release stage as Prefect tasks."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_contracts.gates import Gate
from models.registry import Registry
from models.release import Bundle, Release
from tasks.release.config import ReleaseConfig
from tasks.release.publish import Outcomes, bootstrap_champion, publish_candidate, release_gate


@task(name="release gate", cache_policy=NO_CACHE)
def judge(champion: Outcomes, candidate: Outcomes, config: ReleaseConfig) -> Gate:
    """Candidate against champion on the same problems."""
    return release_gate(champion, candidate, config)


@task(name="publish release", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=2)
def publish(registry: Registry, bundle: Bundle, gates: Sequence[Gate]) -> Release:
    """Publish the candidate; retried, since publishing twice gives the same version."""
    return publish_candidate(registry, bundle, gates)


@task(name="first champion", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=2)
def bootstrap(registry: Registry, bundle: Bundle) -> Release:
    """The champion, or the base as the first one."""
    return bootstrap_champion(registry, bundle)


@task(name="collect releases", cache_policy=NO_CACHE)
def collect(registry: Registry, config: ReleaseConfig) -> list[int]:
    """Delete the releases that the policy lets go; returns their versions."""
    why = f"older than {config.keep_days:g} days and not among the newest {config.keep_last}"
    gone = registry.collect(keep_last=config.keep_last, keep_days=config.keep_days, who="ratchet", why=why)
    return list(gone.releases)
