"""Sessions per second and latency of the gateway, over those of the engine alone, under a bounded load on loopback.

    python tests/benchmarks/gateway.py [--sessions 64] [--turns 4] [--tokens 16] [--concurrency 4] [--rounds 4]
    python tests/benchmarks/gateway.py --minutes 30        sessions one after another; resident memory as time goes by

Both sides sample the same sessions (prompts, lengths) with the same engine over the starter model, in turns: a round of
the one, a round of the other. The clients are a process of their own. At the end every response is looked for in the
audit log, exactly once under its session, turn and release.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from models.chat import Chat
    from tasks.canary.gateway import Gateway
    from tasks.rollout.slot_engine import SlotEngine

OBSERVATION = "ok: 3 checks passed, 1 failed"


def question(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"Repair add in main.py, case {number}.\n\ndef add(a, b):\n    return a - b\n"}


def by_engine(engine: SlotEngine, chat: Chat, options: argparse.Namespace, first: int) -> list[float]:
    """Seconds of each turn, driven without server, threads or log."""
    todo = list(range(first, first + options.sessions))[::-1]
    contexts: dict[str, list[int]] = {}
    turns: Counter[str] = Counter()
    asked: dict[str, float] = {}
    seconds = []

    def ask(name: str) -> None:
        asked[name] = time.perf_counter()
        request = sample_request(name, contexts[name], options.tokens, chat)
        engine.submit(request)

    def begin() -> None:
        if todo:
            name = str(todo.pop())
            contexts[name] = chat.prompt([question(int(name))])
            ask(name)

    for _ in range(options.concurrency):
        begin()
    while asked:
        for name, completion in engine.poll():
            seconds.append(time.perf_counter() - asked.pop(name))
            turns[name] += 1
            if turns[name] == options.turns:
                engine.close_session(name)
                begin()
                continue
            closed = completion.finish_reason == "stop"
            contexts[name] += [*completion.token_ids, *chat.observation([OBSERVATION], closed=closed)]
            ask(name)
    return seconds


def sample_request(name: str, ids: list[int], tokens: int, chat: Chat) -> Any:
    from tasks.rollout.engine import SampleRequest

    return SampleRequest(name, "release-1", list(ids), tokens, seed=int(name), stop_ids=chat.stop_ids)


def by_gateway(gateway: Gateway, options: argparse.Namespace, first: int, seconds: float = 0.0) -> dict[str, Any]:
    """What the clients' process measured."""
    command = [sys.executable, __file__, "--client", gateway.url, "--first", str(first), "--seconds", str(seconds)]
    for name in ("sessions", "turns", "tokens", "concurrency"):
        command += [f"--{name}", str(getattr(options, name))]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


class Client:
    """HTTP/1.1 over one connection that is kept: little enough of its own to be left out of the account."""

    def __init__(self, url: str) -> None:
        self.host, self.port = url.removeprefix("http://").split(":")

    async def post(self, path: str, session: str, body: dict[str, Any]) -> tuple[dict[str, str], Any]:
        if not hasattr(self, "reader"):
            self.reader, self.writer = await asyncio.open_connection(self.host, int(self.port))
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1", f"host: {self.host}", f"x-session-id: {session}", f"content-length: {len(data)}"
        self.writer.write("\r\n".join([*head, "", ""]).encode() + data)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        answer = json.loads(await self.reader.readexactly(int(headers["content-length"])))
        assert lines[0].split()[1] == "200", answer
        return headers, answer


async def clients(options: argparse.Namespace) -> dict[str, Any]:
    """Sessions from `first` on, `concurrency` at a time: so many, or for so many seconds."""
    until = time.monotonic() + options.seconds if options.seconds else None
    numbers = itertools.count(options.first)
    todo = numbers if until is not None else itertools.islice(numbers, options.sessions)
    latencies: list[float] = []
    served: list[tuple[str, int, str]] = []

    async def work() -> None:
        client = Client(options.client)
        for number in todo:
            if until is not None and time.monotonic() > until:
                return
            messages: list[Any] = [question(number)]
            for turn in range(options.turns):
                body = {"messages": messages, "max_tokens": options.tokens, "seed": number}
                started = time.perf_counter()
                headers, answer = await client.post("/v1/chat/completions", str(number), body)
                latencies.append(time.perf_counter() - started)
                served.append((str(number), turn, headers["x-ratchet-release"]))
                messages += [answer["choices"][0]["message"], {"role": "tool", "content": OBSERVATION}]
            await client.post("/feedback", str(number), {"session": str(number), "outcome": True})

    started = time.monotonic()
    await asyncio.gather(*(work() for _ in range(options.concurrency)))
    return {"latencies": latencies, "served": served, "seconds": time.monotonic() - started}


def unrecorded(folder: Path, served: list[Any]) -> int:
    """Responses that are not in the audit log exactly once."""
    from tasks.canary.audit import read_audit

    rows = read_audit(folder, columns=["kind", "session", "turn", "release"]).query("kind == 'turn'")
    written = Counter(zip(rows["session"], rows["turn"].astype(int), rows["release"], strict=True))
    return sum(written[tuple(one)] != 1 for one in served) + (sum(written.values()) - len(served))


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def compare(engine: SlotEngine, chat: Chat, gateway: Gateway, options: argparse.Namespace, audit: Path) -> None:
    alone: list[float] = []
    through: list[float] = []
    served: list[Any] = []
    seconds = {"engine": 0.0, "gateway": 0.0}
    for number in range(options.rounds + 1):
        started = time.monotonic()
        first = number * options.sessions
        one = by_engine(engine, chat, options, first)
        elapsed = time.monotonic() - started
        other = by_gateway(gateway, options, first)
        served += other["served"]
        if number:  # the first round warms both up
            alone, through = alone + one, through + other["latencies"]
            seconds["engine"] += elapsed
            seconds["gateway"] += other["seconds"]
    count = options.rounds * options.sessions
    for name, values in (("engine", alone), ("gateway", through)):
        p50, p95 = np.quantile(values, [0.5, 0.95]) * 1000
        print(f"{name:8} {count / seconds[name]:6.2f} sessions/s   turn p50 {p50:.1f} ms  p95 {p95:.1f} ms")
    added = (np.quantile(through, [0.5, 0.95]) - np.quantile(alone, [0.5, 0.95])) * 1000
    print(f"added    p50 {added[0]:.1f} ms  p95 {added[1]:.1f} ms")
    print(f"responses {len(served)}, not in the audit log exactly once: {unrecorded(audit, served)}")


def hold(gateway: Gateway, options: argparse.Namespace, audit: Path) -> None:
    """A minute of sessions, a line, the next minute; what was served lies in a file, not in the memory shown."""
    first = total = 0
    kept = audit.with_name("served.jsonl")
    print(f"minute  0: {resident_mb():.1f} MB resident", flush=True)
    for minute in range(1, options.minutes + 1):
        found = by_gateway(gateway, options, first, seconds=60.0)
        first = 1 + max(int(session) for session, _, _ in found["served"])
        total += len(found["served"])
        with kept.open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in found["served"])
        p50, p95 = np.quantile(found["latencies"], [0.5, 0.95]) * 1000
        line = f"minute {minute:2}: {resident_mb():.1f} MB resident, {total} turns"
        print(f"{line}, p50 {p50:.1f} ms, p95 {p95:.1f} ms", flush=True)
    served = [json.loads(line) for line in kept.read_text().splitlines()]
    print(f"responses {total}, not in the audit log exactly once: {unrecorded(audit, served)}", flush=True)


def main(options: argparse.Namespace) -> None:
    import torch

    from models.chat import Chat
    from models.policy import load_base
    from tasks.canary.audit import AuditLog, verify
    from tasks.canary.gateway import Gateway
    from tasks.canary.routing import Served
    from tasks.rollout.slot_engine import SlotEngine

    torch.set_num_threads(options.threads)
    base = load_base(options.base)
    chat = Chat(base.tokenizer)
    champion = Served("release-1", base.digest)
    alone = SlotEngine.from_base(base, slots=64)
    alone.load_adapter("release-1", None)
    with tempfile.TemporaryDirectory() as home, AuditLog(Path(home) / "audit") as audit:
        with Gateway(SlotEngine.from_base(base, slots=64), chat, champion, audit, slots=64) as gateway:
            if options.minutes:
                hold(gateway, options, audit.folder)
            else:
                compare(alone, chat, gateway, options, audit.folder)
        print(f"audit chain: {verify(audit.folder).fault or 'unbroken'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for key, value in (("sessions", 64), ("turns", 4), ("tokens", 16), ("concurrency", 4), ("rounds", 4)):
        parser.add_argument(f"--{key}", type=int, default=value)
    for key in ("minutes", "first"):
        parser.add_argument(f"--{key}", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--base", default="models/starter")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--client")
    given = parser.parse_args()
    if given.client:
        print(json.dumps(asyncio.run(clients(given))))
    else:
        main(given)
