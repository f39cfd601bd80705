"""Everything once through the UIs in headless Chromium: python tests/benchmarks/screens.py HOME OUT

`ratchet up` over a home with a finished run -> forms filled in, runs waited for, pages -> OUT/*.png

Needs the package playwright and a Chromium of the system's (CHROMIUM names it). What a page must show is asserted;
the pictures are to be looked at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from flows.services import environment, running

RECIPE = "infra/recipes/quickstart.toml"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
PATIENCE = 300.0
"""Seconds for whatever is waited for: a starved machine takes minutes to import what a flow needs."""


class Screens:
    """A browser's page, and where its pictures go."""

    def __init__(self, page: Page, out: Path) -> None:
        self.page, self._out = page, out

    def shot(self, name: str) -> None:
        self.page.wait_for_timeout(2_000)  # charts and transitions
        self.page.screenshot(path=self._out / f"{name}.png")
        print(f"{name}: {self.page.url}")

    def open(self, url: str, text: str) -> None:
        """Go there, and wait until the page shows a text."""
        self.page.goto(url)
        self.sees(text)

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for(timeout=PATIENCE * 1_000)


def main(home: Path, out: Path) -> None:
    """All pages; raises where one does not show what it must."""
    out.mkdir(parents=True, exist_ok=True)
    with services(home) as urls, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(PATIENCE * 1_000)
        screens = Screens(page, out)
        prefect(screens, urls["prefect"])
        approval(screens, urls["prefect"], home)
        mlflow(screens, urls["mlflow"])
        browser.close()


def prefect(screens: Screens, url: str) -> None:
    """Deployments, the recipe's form, a run of the schedule's flow started by hand, an artifact."""
    screens.open(f"{url}/deployments", "post_train")
    screens.shot("1-deployments")
    found = asked(url, "/deployments/filter", {})
    ids = {one["name"]: one["id"] for one in found}
    screens.open(f"{url}/deployments/deployment/{ids['post_train']}/run", "recipe")
    screens.shot("2-form-of-post_train")
    screens.open(f"{url}/deployments/deployment/{ids['drift']}", "drift")
    screens.shot("3-schedule-of-drift")
    screens.open(f"{url}/deployments/deployment/{ids['drift']}/run", "Submit")
    before = runs_by_hand(url, ids["drift"])
    screens.page.get_by_role("button", name="Submit").click()
    [run] = waited_for(lambda: runs_by_hand(url, ids["drift"]) - before)
    state = ended(url, run)
    screens.open(f"{url}/runs/flow-run/{run}", state)
    screens.shot(f"4-run-of-drift-{state.lower()}")
    screens.open(f"{url}/artifacts", "learning")
    screens.shot("5-artifacts")
    curve = asked(url, "/artifacts/filter", {"artifacts": {"key": {"any_": ["learning-curve"]}}})[-1]
    screens.open(f"{url}/artifacts/artifact/{curve['id']}", "Verified success")
    screens.page.locator("img[src^='data:image']").first.wait_for()
    screens.shot("6-artifact")
    screens.open(f"{url}/automations", "heartbeat")
    screens.sees("post_train")
    screens.shot("7-automations")
    screens.open(f"{url}/concurrency-limits", "ratchet-promoter")
    screens.shot("8-concurrency-limit")


def approval(screens: Screens, url: str, home: Path) -> None:
    """A canary's question is answered in the form of its paused run."""
    code = "from flows.canary_approval import canary_approval; import sys; canary_approval('shown', *sys.argv[1:])"
    variables = {**os.environ, **environment(home), "PREFECT_API_URL": f"{url}/api"}
    asking = subprocess.Popen([sys.executable, "-c", code, str(home.resolve()), "repair-agent"], env=variables)
    try:
        run = paused(url)
        screens.open(f"{url}/runs/flow-run/{run}", "Paused")
        screens.page.get_by_role("button", name="Resume").first.click()
        form = screens.page.locator(".p-modal")
        form.get_by_text("promote the candidate").wait_for()
        form.get_by_role("switch").first.click()
        form.get_by_role("textbox").first.fill("seen in the traces")
        screens.shot("9-approval-form")
        waited_for(lambda: submitted(screens.page))
        asking.wait(PATIENCE)
        screens.open(f"{url}/runs/flow-run/{run}", "Completed")
        screens.shot("10-approved")
    finally:
        asking.terminate()
    answer = json.loads(next(home.glob("service/repair-agent/canary/shown/answer*.json")).read_text())
    assert answer["approved"] is True, answer


def submitted(page: Page) -> list[bool]:
    """Press the form's button, which does nothing while the page still checks what was typed."""
    if page.locator(".p-modal").is_visible():
        page.locator(".p-modal").get_by_role("button", name="Submit").click()
        page.wait_for_timeout(3_000)
    return [] if page.locator(".p-modal").is_visible() else [True]


def mlflow(screens: Screens, url: str) -> None:
    """The registry: models, the release's versions and its champion."""
    screens.open(f"{url}/#/models", "-release")
    welcome = screens.page.get_by_role("button", name="Try it now")
    welcome.or_(screens.page.get_by_text("@ champion")).first.wait_for()
    if welcome.is_visible():
        welcome.click()
    screens.shot("11-models")
    screens.page.get_by_text("-release").first.click()
    screens.sees("champion")
    screens.shot("12-release")


def asked(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """What the Prefect API answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/api{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def runs_by_hand(url: str, deployment: str) -> set[str]:
    """Ids of the runs of a deployment that no schedule asked for."""
    runs = asked(url, "/flow_runs/filter", {"deployments": {"id": {"any_": [deployment]}}})
    return {run["id"] for run in runs if not run["auto_scheduled"]}


def ended(url: str, run: str) -> str:
    """Name of the state that a run ended in."""
    final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    return waited_for(
        lambda: [state["name"] for state in [asked(url, f"/flow_runs/{run}")["state"]] if state["type"] in final]
    )[0]


def paused(url: str) -> str:
    """Id of a run that waits for a person."""
    chosen = {"flow_runs": {"state": {"type": {"any_": ["PAUSED"]}}}}
    return waited_for(lambda: [run["id"] for run in asked(url, "/flow_runs/filter", chosen)])[0]


def waited_for(look: Any) -> list[str]:
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(1.0)
    return list(found)


@contextmanager
def services(home: Path) -> Iterator[dict[str, str]]:
    """Addresses of a `ratchet up` that runs already, or of one of our own."""
    if {"prefect", "mlflow"} <= running(home).keys():
        yield running(home)
        return
    ports = [word for name in ("prefect", "mlflow", "gateway") for word in (f"--{name}-port", "0")]
    command = [sys.executable, "-m", "flows.cli", "up", "--home", str(home), "--recipe", RECIPE, *ports]
    up = subprocess.Popen(command)
    try:
        waited_for(lambda: [1] if {"prefect", "mlflow"} <= running(home).keys() else [])
        url = running(home)["prefect"]
        waited_for(lambda: [1] if len(asked(url, "/deployments/filter", {})) > 2 else [])
        yield running(home)
    finally:
        up.terminate()
        up.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
