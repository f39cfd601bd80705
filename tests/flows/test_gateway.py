"""The standing gateway as its own process: it waits for a champion, serves it, and ends on SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai

from flows.recipe import load_recipe
from models.fingerprint import digest_folder
from models.policy import LoraSpec, init_adapter, load_base
from models.registry import Registry
from models.release import Bundle
from tasks.canary.audit import read_audit, verify
from tasks.paths import ServiceFolder
from tasks.supervision import free_port

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "infra" / "recipes" / "smoke.toml"


def promoted(home: Path) -> str:
    """The starter's first policy as the champion; returns its digest."""
    base = load_base(str(ROOT / "models" / "starter"))
    policy = home / "policy"
    init_adapter(base, LoraSpec(r=4, alpha=8, targets=load_recipe(RECIPE).training.lora_targets), policy, 0)
    registry = Registry(f"sqlite:///{home}/mlflow.db", home / "mlartifacts", "smoke-agent")
    digest = digest_folder(policy)
    version = registry.publish(
        Bundle(
            run_id="run", base_path=base.path, base_digest=base.digest, policy_path=policy,
            policy_version="policy-00000", policy_digest=digest,
        )
    )  # fmt: skip
    registry.promote(version, who="test", why="first")
    return digest


def answers(url: str) -> httpx.Response | None:
    try:
        return httpx.get(url, trust_env=False)
    except httpx.TransportError:
        return None


def test_it_waits_for_a_champion_and_serves_it(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "flows.gateway", str(tmp_path), str(RECIPE), str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        health, deadline = f"http://127.0.0.1:{port}/health", time.monotonic() + 300
        while (found := answers(health)) is None and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.2)
        assert found is not None and found.status_code == 503 and "no champion" in found.json()["status"]
        digest = promoted(tmp_path)
        while (found := answers(health)) is not None and found.status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.2)
        api = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        answer = api.chat.completions.create(
            model="champion", messages=[{"role": "user", "content": "hi"}], max_tokens=4
        )
        assert (answer.model, answer.system_fingerprint) == ("release-1", digest)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
    audit = ServiceFolder(tmp_path, "smoke-agent").audit
    assert list(read_audit(audit)["digest"]) == [digest] and verify(audit).fault is None
