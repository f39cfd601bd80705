"""The registry on a real MLflow with sqlite: publishing, promoting, kills, races, damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UserError
from data_contracts.gates import Gate, GateHeld, Verdict
from models.registry import ChampionMoved, Registry, TrialMoved
from models.registry_retention import Doomed
from models.release import Bundle, Manifest, ReleaseDamaged, ReleaseRefused
from models.trial import Trial

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def registry(where: dict[str, str], request: pytest.FixtureRequest) -> Registry:
    """An agent of this test's own in the shared database."""
    return Registry(where["uri"], Path(where["artifacts"]), request.node.name.replace("[", "-").replace("]", ""))


def bundle(folder: Path, mark: str, *, base: str = "base", reward: bool = True, run_id: str = "run-1") -> Bundle:
    """Three small components whose files say which release and digest they belong to."""
    parts = {"base": base, "policy": f"policy-{mark}", "reward": f"reward-{mark}"}
    for role, digest in parts.items():
        (folder / digest / "deep").mkdir(parents=True, exist_ok=True)
        (folder / digest / "model.safetensors").write_text(f"{mark}|{digest}" if role != "base" else f"{base}|{digest}")
        (folder / digest / "deep" / "config.json").write_text("{}")
    return Bundle(
        run_id=run_id,
        base_path=folder / parts["base"],
        base_digest=parts["base"],
        policy_path=folder / parts["policy"],
        policy_version="policy-00001",
        policy_digest=parts["policy"],
        reward_path=folder / parts["reward"] if reward else None,
        reward_digest=parts["reward"] if reward else None,
        datasets={"train": "d1"},
        contract_versions={"problems": "1.0.0"},
        recipe={"training": {"lr": 0.001}},
        code_revision="abc",
    )


def test_publish_pins_versions_digests_and_files(registry: Registry, tmp_path: Path) -> None:
    first = registry.publish(bundle(tmp_path, "a"))
    second = registry.publish(bundle(tmp_path, "b"))
    assert (first, second) == (1, 2)
    release = registry.release(2)
    assert release.versions == {"base": 1, "policy": 2, "reward": 2}, "an unchanged base is registered once"
    assert release.digests == {"base": "base", "policy": "policy-b", "reward": "reward-b"}
    assert release.manifest.recipe == {"training": {"lr": 0.001}}
    assert release.manifest.datasets == {"train": "d1"}
    assert (release.policy_path / "model.safetensors").read_text() == "b|policy-b"
    assert release.policy_path != tmp_path / "policy-b", "it is loaded from the store, not from the run's folder"
    assert registry.champion() is None, "publishing moves nothing"
    assert [found.version for found in registry.releases()] == [1, 2]
    release.verify()


def test_publish_again_returns_the_same_version(registry: Registry, tmp_path: Path) -> None:
    first = registry.publish(bundle(tmp_path, "a"))
    assert registry.publish(bundle(tmp_path, "a")) == first
    assert registry.publish(bundle(tmp_path, "a", run_id="run-2")) == first + 1, "another run is another release"
    assert len(registry.releases()) == 2
    assert registry.release(first + 1).versions == registry.release(first).versions


def test_same_digest_with_other_files_is_another_version(registry: Registry, tmp_path: Path) -> None:
    registry.publish(bundle(tmp_path, "a"))
    changed = bundle(tmp_path, "a", run_id="run-2")
    (changed.base_path / "deep" / "config.json").write_text('{"vocab": 1}')
    assert registry.release(registry.publish(changed)).versions == {"base": 2, "policy": 1, "reward": 1}


def test_reward_model_may_be_missing_or_a_single_file(registry: Registry, tmp_path: Path) -> None:
    without = registry.release(registry.publish(bundle(tmp_path, "a", reward=False)))
    assert without.reward_path is None and set(without.versions) == {"base", "policy"}
    (tmp_path / "probe.joblib").write_bytes(b"probe")
    single = bundle(tmp_path, "b").model_copy(update={"reward_path": tmp_path / "probe.joblib", "reward_digest": "p"})
    release = registry.release(registry.publish(single))
    assert release.reward_path is not None and release.reward_path.read_bytes() == b"probe"
    release.verify()
    with pytest.raises(ValueError, match="give both, or neither"):
        Bundle(**{**single.model_dump(), "reward_digest": None})


def test_large_base_is_referenced_not_copied(where: dict[str, str], tmp_path: Path) -> None:
    registry = Registry(where["uri"], Path(where["artifacts"]), "large", reference_above=10)
    release = registry.release(registry.publish(bundle(tmp_path, "a", base="a-large-base")))
    base = release.manifest.components["base"]
    assert (base.stored, base.path) == ("referenced", str(tmp_path / "a-large-base"))
    assert release.base_path == tmp_path / "a-large-base"
    assert release.manifest.components["policy"].stored == "copied"
    (release.base_path / "model.safetensors").write_text("other weights")
    with pytest.raises(ReleaseDamaged, match=r"base of release 1: .*model\.safetensors was changed"):
        release.verify()


@pytest.mark.parametrize("role", ["base", "policy", "reward"])
def test_verify_sees_a_changed_byte_a_lost_and_an_added_file(registry: Registry, tmp_path: Path, role: str) -> None:
    version = registry.publish(bundle(tmp_path, "a", base=f"base-{role}"))
    path = registry.release(version).paths[role]  # type: ignore[index]
    weights = path / "model.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises(ReleaseDamaged, match=f"{role} of release 1: .*was changed"):
        registry.promote(version, who="me", why="better")
    assert registry.champion() is None and registry.history() == []
    weights.unlink()
    with pytest.raises(ReleaseDamaged, match="is missing"):
        registry.release(version).verify()
    weights.write_bytes(before)
    (path / "extra.bin").write_bytes(b"")
    with pytest.raises(ReleaseDamaged, match="was added"):
        registry.release(version).verify()


def test_changed_manifest_is_refused(registry: Registry, where: dict[str, str], tmp_path: Path) -> None:
    version = registry.publish(bundle(tmp_path, "a"))
    for manifest in Path(where["artifacts"]).rglob("manifest.json"):
        if Manifest.model_validate_json(manifest.read_text()) == registry.release(version).manifest:
            manifest.write_text(manifest.read_text().replace("policy-00001", "policy-00002"))
            fresh = Registry(where["uri"], Path(where["artifacts"]), registry.name)
            with pytest.raises(ReleaseDamaged, match="manifest of release 1"):
                fresh.release(version)
            manifest.unlink()
            with pytest.raises(ReleaseDamaged, match="manifest of release 1"):
                fresh.release(version)
            return
    pytest.fail("no manifest was found in the artifact store")


def test_missing_component_and_release_are_the_users_to_mend(registry: Registry, tmp_path: Path) -> None:
    gone = bundle(tmp_path, "a").model_copy(update={"policy_path": tmp_path / "nowhere"})
    with pytest.raises(UserError, match=r"the policy to release, .*nowhere, does not exist"):
        registry.publish(gone)
    with pytest.raises(UserError, match="there is no release 7"):
        registry.release(7)
    with pytest.raises(UserError, match="has no champion"):
        registry.rollback()


def test_promote_and_rollback_move_one_pointer_with_a_history(registry: Registry, tmp_path: Path) -> None:
    one, two, three = (registry.publish(bundle(tmp_path, mark)) for mark in "abc")
    proof = Gate(name="canary", verdict=Verdict.PASS, reason="better")
    registry.promote(one, who="ann", why="first", compared_with=0)
    registry.promote(two, who="ann", why="better", evidence=[proof], compared_with=one)
    registry.promote(two, who="ann", why="again", compared_with=one)
    registry.promote(three, who="bob", why="better still")
    assert registry.champion().version == three  # type: ignore[union-attr]
    assert registry.rollback(from_version=three, who="bob", why="worse").version == two
    assert registry.rollback(from_version=three, who="bob", why="asked twice").version == two
    assert registry.rollback().version == one
    with pytest.raises(UserError, match="is the first champion"):
        registry.rollback()
    told = [(move.kind, move.from_version, move.to_version, move.who, move.state) for move in registry.history()]
    assert told == [
        ("promote", None, 1, "ann", "done"),
        ("promote", 1, 2, "ann", "done"),
        ("promote", 2, 3, "bob", "done"),
        ("rollback", 3, 2, "bob", "done"),
        ("rollback", 2, 1, "operator", "done"),
    ]
    assert registry.history()[1].evidence == (proof,)


def test_promotion_needs_passing_gates_and_the_champion_it_was_measured_against(
    registry: Registry, tmp_path: Path
) -> None:
    one, two, three = (registry.publish(bundle(tmp_path, mark)) for mark in "abc")
    registry.promote(one, who="ann", why="first")
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        with pytest.raises(GateHeld, match="gate canary"):
            registry.promote(two, who="ann", why="x", evidence=[Gate(name="canary", verdict=verdict, reason="no")])
    registry.promote(two, who="ann", why="better", compared_with=one)
    with pytest.raises(ChampionMoved, match=r"release 3 was compared with release 1, but the champion .* is now 2"):
        registry.promote(three, who="ann", why="late", compared_with=one)
    assert registry.champion().version == two  # type: ignore[union-attr]


def test_alias_moved_by_hand_is_noted_and_can_be_rolled_back(registry: Registry, tmp_path: Path) -> None:
    one, two = (registry.publish(bundle(tmp_path, mark)) for mark in "ab")
    registry.promote(one, who="ann", why="first")
    registry._pointers.write_champion(two)
    assert [(move.kind, move.to_version) for move in registry.reconcile()] == [("outside", two)]
    assert registry.reconcile() == []
    assert registry.rollback().version == one


def test_two_promoters_and_four_readers_see_no_mix(run: Run, tmp_path: Path) -> None:
    ended = run({"do": "race", "name": "race", "offered": str(tmp_path), "seconds": 5})[0]
    assert ended["exit"] == 0
    told = ended["result"]
    assert (told["mixed"], told["errors"], told["linked"]) == (0, 0, True)
    assert told["reads"] >= 20 and told["promotions"] >= 2 and told["trials"] >= 2


def test_a_trial_is_read_with_the_champion_it_is_against_and_ends_when_that_changes(
    registry: Registry, tmp_path: Path
) -> None:
    first, second = (registry.publish(bundle(tmp_path, mark, run_id=mark)) for mark in ("a", "b"))
    assert registry.serving() is None
    registry.promote(first, who="t", why="first")
    trial = Trial(id="c1", champion=first, candidate=second, share=0.05, since="2026-12-01T00:00:00+00:00")
    registry.set_trial(trial, who="canary", why="begins")
    serving = registry.serving()
    assert serving is not None and (serving.champion.version, serving.trial) == (first, trial)
    assert serving.candidate is not None and serving.candidate.version == second
    lines = len(registry.history())
    registry.set_trial(trial, who="canary", why="again")
    assert len(registry.history()) == lines
    registry.promote(second, who="t", why="better")
    serving = registry.serving()
    assert serving is not None and (serving.champion.version, serving.trial, serving.candidate) == (second, None, None)
    with pytest.raises(ChampionMoved):
        registry.set_trial(trial.model_copy(update={"stage": 1}), who="canary", why="late")
    registry.set_trial(None, who="canary", why="over")
    assert registry.rollback().version == first
    serving = registry.serving()
    assert serving is not None and (serving.champion.version, serving.trial) == (first, None)


def test_a_quarantined_release_is_refused_until_the_quarantine_is_lifted(registry: Registry, tmp_path: Path) -> None:
    one, two = (registry.publish(bundle(tmp_path, mark)) for mark in "ab")
    registry.promote(one, who="ann", why="first")
    trial = Trial(id="c1", champion=one, candidate=two, share=0.05, since="2026-12-01T00:00:00+00:00")
    registry.set_trial(trial, who="canary", why="begins")
    with pytest.raises(TrialMoved, match="trial c0 of"):
        registry.set_trial(None, who="canary", why="late", only_if="c0")
    registry.quarantine_release(two, who="ann", why="it leaks secrets")
    assert registry.pointers().trial is None, "its trial ended with it"
    with pytest.raises(ReleaseRefused, match="release 2 is in quarantine: it leaks secrets"):
        registry.promote(two, who="bob", why="x")
    with pytest.raises(ReleaseRefused, match="in quarantine"):
        registry.set_trial(trial, who="canary", why="again")
    with pytest.raises(UserError, match="is the first champion of"):
        registry.quarantine_release(one, who="ann", why="and this one")
    registry.lift_quarantine(two, who="bob", why="false alarm")
    assert registry.promote(two, who="bob", why="better").version == two
    assert [(move.kind, move.release, move.who) for move in registry.history()][2:4] == [
        ("quarantine", two, "ann"),
        ("lift", two, "bob"),
    ]


def test_a_champion_in_quarantine_is_rolled_back_to_the_nearest_that_may_serve(
    registry: Registry, tmp_path: Path
) -> None:
    one, two, three = (registry.publish(bundle(tmp_path, mark)) for mark in "abc")
    for version in (one, two, three):
        registry.promote(version, who="ann", why="up")
    registry.quarantine_release(two, who="ann", why="bad")
    registry.quarantine_release(three, who="ann", why="bad too")
    assert registry.champion().version == one  # type: ignore[union-attr]
    registry._pointers.write_champion(two)
    assert [move.kind for move in registry.reconcile()] == ["outside", "rollback"]
    assert registry.champion().version == one  # type: ignore[union-attr]
    assert registry.history()[-1].why == "release 2 is in quarantine: bad"


def test_rollback_to_a_version_goes_to_former_champions_alone(registry: Registry, tmp_path: Path) -> None:
    one, two, three, four = (registry.publish(bundle(tmp_path, mark)) for mark in "abcd")
    for version in (one, two, three):
        registry.promote(version, who="ann", why="up")
    assert registry.rollback_targets() == [two, one]
    with pytest.raises(UserError, match="release 4 has never been champion"):
        registry.rollback(to=four)
    assert registry.rollback(to=one).version == one
    with pytest.raises(UserError, match="release 3 was rolled back from"):
        registry.rollback(to=three)
    assert registry.rollback_targets() == []


def test_a_release_with_an_unregistered_component_is_refused(registry: Registry, tmp_path: Path) -> None:
    version = registry.publish(bundle(tmp_path, "a"))
    registry._retention.delete(Doomed(components=((f"{registry.name}-reward", 1),)))
    with pytest.raises(ReleaseDamaged, match="release 1 is incomplete: its reward, version 1 of"):
        registry.promote(version, who="ann", why="x")


def test_a_release_keeps_its_reference_when_the_run_is_deleted(registry: Registry, tmp_path: Path) -> None:
    table = tmp_path / "reference.parquet"
    table.write_bytes(b"rows")
    offered = bundle(tmp_path, "a").model_copy(update={"reference": table, "compared_with": 0})
    release = registry.release(registry.publish(offered))
    table.unlink()
    assert release.reference_path is not None and release.reference_path.read_bytes() == b"rows"
    release.verify()
    release.reference_path.write_bytes(b"other rows")
    with pytest.raises(ReleaseDamaged, match="reference of release 1"):
        release.verify()
    assert registry.release(registry.publish(bundle(tmp_path, "b"))).reference_path is None
    with pytest.raises(UserError, match=r"the reference to release, .*, does not exist"):
        registry.publish(bundle(tmp_path, "c").model_copy(update={"reference": table}))


def test_collection_deletes_what_is_old_and_nothing_that_is_needed(registry: Registry, tmp_path: Path) -> None:
    """Releases 1 and 2 were champions, 3 is on trial, 5 is the newest: only 4 may go."""
    for mark in "abcde":
        registry.publish(bundle(tmp_path, mark))
    registry.promote(1, who="ann", why="first")
    registry.promote(2, who="ann", why="better")
    trial = Trial(id="c1", champion=2, candidate=3, share=0.05, since="2026-12-01T00:00:00+00:00")
    registry.set_trial(trial, who="canary", why="begins")
    policy = registry.release(4).policy_path
    assert registry.collect(keep_last=1, keep_days=1, who="ann", why="tidy").releases == (), "all are young"
    planned = registry.collect(keep_last=1, keep_days=0, who="ann", why="tidy", dry_run=True)
    assert (planned.releases, registry.versions()) == ((4,), [1, 2, 3, 4, 5]), "a dry run deletes nothing"
    assert registry.collect(keep_last=1, keep_days=0, who="ann", why="tidy") == planned
    assert registry.versions() == [1, 2, 3, 5] and not policy.exists()
    for release in registry.releases():
        registry._reader.require_whole(release)
    assert registry.champion().base_path.is_dir(), "the base is shared with what was deleted"  # type: ignore[union-attr]
    with pytest.raises(UserError, match="there is no release 4"):
        registry.promote(4, who="ann", why="x")
    assert registry.publish(bundle(tmp_path, "d")) == 6, "published again, it is a new version"
    assert registry.collect(keep_last=2, keep_days=0, who="ann", why="tidy").releases == ()
    assert registry.rollback().version == 1
