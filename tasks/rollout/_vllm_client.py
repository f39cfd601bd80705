"""One vLLM server over HTTP, and the thread in which all of them are spoken to.

VllmClient: POST /v1/completions, /v1/load_lora_adapter ... -> Answer;  LoopThread: coroutines from a blocking caller
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tasks.rollout._vllm_wire import Answer, base_model, read_answer, read_pressure
from tasks.rollout.engine import EngineError, Pressure

T = TypeVar("T")
_KEEPALIVE_SECONDS = 2.0
"""Below the 5 s after which vLLM's server closes an idle connection: none is used in the moment it is closed."""
_BRIEF = httpx.Timeout(10.0)


class ServerFault(EngineError):
    """The server did not answer, or said that it is broken; the request may be fine."""


class VllmClient:
    """Not for use outside one event loop. `log` is where the server writes, for one that we started."""

    def __init__(self, url: str, log: Path | None, turn_seconds: float) -> None:
        self.url, self.log = url, log
        self.base_name, self.context = "", 0
        key = os.environ.get("VLLM_API_KEY")  # what vLLM's own servers ask for when they are started with it
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(turn_seconds, connect=10.0),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_SECONDS),
            trust_env=False,
        )

    async def connect(self) -> None:
        """Learn the base model's name and the longest context."""
        self.base_name, self.context = base_model(await self._json("GET", "/v1/models"))

    async def complete(self, body: dict[str, Any]) -> Answer:
        """One completion. Raises ServerFault, or EngineError for a request that the server refuses."""
        return read_answer(await self._json("POST", "/v1/completions", body))

    async def load(self, name: str, path: Path) -> None:
        """Serve the adapter at `path`, as the server sees it, under a name that it does not know yet."""
        await self._ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path.resolve())})

    async def unload(self, name: str) -> None:
        await self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name}, _BRIEF)

    async def reload(self, weights: Path) -> None:
        """Put other full weights in the place of the model's, and forget what was computed with the old ones.

        For a server in developer mode (rollout.vllm.reload). That it answers proves nothing about what it serves.
        """
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(weights.resolve())}}
        await self._ask("POST", "/collective_rpc", call)
        await self._ask("POST", "/reset_prefix_cache")

    async def healthy(self) -> bool:
        try:
            return (await self._http.get("/health", timeout=_BRIEF)).status_code == 200
        except httpx.HTTPError:
            return False

    async def pressure(self) -> Pressure | None:
        """How full the KV-cache is; None where the server does not say."""
        return read_pressure((await self._ask("GET", "/metrics", timeout=_BRIEF)).text)

    async def close(self) -> None:
        await self._http.aclose()

    async def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        response = await self._ask(method, path, body)
        try:
            return response.json()
        except ValueError as error:
            raise ServerFault(f"the vLLM server {self.url} answered {path} with what is no JSON") from error

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: httpx.Timeout | None = None
    ) -> httpx.Response:
        try:
            response = await self._http.request(method, path, json=body, timeout=timeout or self._http.timeout)
        except httpx.HTTPError as error:
            raise ServerFault(f"the vLLM server {self.url} does not answer ({error!r})") from error
        if response.is_success:
            return response
        kind = ServerFault if response.is_server_error else EngineError
        said = " ".join(response.text.split())[:300]
        raise kind(f"the vLLM server {self.url} refused {path} with {response.status_code}: {said}")


class LoopThread:
    """An event loop in a thread of its own, for callers that block."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result()

    def cancel_all(self) -> None:
        """Cancel what is under way, and wait until it has ended."""
        self.run(_cancel_all())

    def close(self) -> None:
        """End the thread; nothing may be under way."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
