"""When a person may promote a release, and on which evidence.

release + history -> the gates it was published with, or the reason why they are not enough
"""

from __future__ import annotations

from data_contracts.errors import UserError
from data_contracts.gates import Gate, Verdict
from models.registry import Registry
from models.release import Release


def promote_by_hand(registry: Registry, version: int, *, who: str, why: str, force: bool = False) -> Release:
    """Make `version` the champion on the evidence it was published with, or, forced, without any.

    Raises `UserError` for a release without evidence, or one that was rolled back from since, unless it is forced, and
    what `Registry.promote` raises. The history says that it was forced.
    """
    if force and not why:
        raise UserError("--force needs --why: the history keeps the reason.")
    release = registry.release(version)
    if force:
        return registry.promote(version, who=who, why=why, forced=True)
    gates = _evidence(registry, release)
    reason = why or f"promoted by hand on {', '.join(gate.name for gate in gates)}"
    return registry.promote(version, who=who, why=reason, evidence=gates, compared_with=release.manifest.compared_with)


def _evidence(registry: Registry, release: Release) -> tuple[Gate, ...]:
    gates = release.manifest.evidence
    remedy = f"to promote it all the same: `ratchet release promote {release.version} --force --why REASON`."
    if not gates:
        raise UserError(f"release {release.version} was published without evidence; {remedy}")
    for gate in gates:
        if gate.verdict is not Verdict.PASS:
            raise UserError(f"{gate.name} of release {release.version} is {gate.verdict} ({gate.reason}); {remedy}")
    left = [move for move in registry.history() if move.moves_champion and move.from_version == release.version]
    if left and left[-1].kind in ("rollback", "quarantine"):
        raise UserError(
            f"release {release.version} was rolled back from ({left[-1].why}): its evidence is from before; {remedy}"
        )
    return gates
