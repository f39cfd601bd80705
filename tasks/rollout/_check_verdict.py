"""Judges what a fork reported about its checks, outside of the fork, and words each failure in a line.

steps (with what they expect), signed records -> Verdict a check
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tasks.rollout._check_child import signature
from tasks.rollout._check_plain import OPERATORS, decode
from tasks.rollout._check_plan import Step
from tasks.rollout._parse import literal
from tasks.rollout.sandbox import Ended

WIDTH = 80
"""Characters of a failure's message."""


class Verdict(NamedTuple):
    """`message` is empty where the check passed; `ended` is not "exit" where it was cut short."""

    message: str
    ended: Ended = "exit"
    last: bool = False


class _Feed:
    """The records in order, without the reports of reaches, the latest of which it keeps."""

    def __init__(self, records: Iterable[dict[str, Any]]) -> None:
        self._records = iter(records)
        self.reached = ""

    def take(self) -> dict[str, Any] | None:
        for record in self._records:
            if "reach" not in record:
                return record
            self.reached = record["reach"]
        return None


def signed(report: str, secret: bytes) -> Iterator[dict[str, Any]]:
    """The records that carry the right signature for their place; anything else on the pipe is not the runner's."""
    number = 0
    for line in report.split("\n"):
        mark, _, text = line.partition(" ")
        if secrets.compare_digest(mark.encode(), signature(secret, number, text).encode()):
            number += 1
            record = _well_formed(text)
            if record is None:
                return  # only code that took the runner over writes such; nothing after it is believed
            yield record


def _well_formed(text: str) -> dict[str, Any] | None:
    """The record with all its keys, None where it is none: code that forges one must not stop the judge either."""
    try:
        record = literal(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if "reach" in record:
        return record if isinstance(record["reach"], str) else None
    record = {"error": "", "left": None, "right": None, "truth": False, "shown": ""} | record
    sides = all(
        side is None or (isinstance(side, list) and len(side) == 1) for side in (record["left"], record["right"])
    )
    return record if sides and isinstance(record["shown"], str) and _is_error(record["error"]) else None


def _is_error(error: object) -> bool:
    if not isinstance(error, dict):
        return error is None
    return all(isinstance(error.get(key), str) for key in ("type", "text", "file")) and isinstance(
        error.get("line"), int
    )


def judge(plans: Sequence[Sequence[Step]], records: Iterable[dict[str, Any]], cut: Verdict) -> list[Verdict]:
    """A verdict for each check up to the one that ended the process; `cut` says how it ended, and why, without place.

    Where the import failed or never ended, that is the verdict on every check.
    """
    feed = _Feed(records)
    loaded = feed.take()
    if loaded is None:
        return [cut._replace(message=joined("import", f": {cut.message}"))] * len(plans)
    if loaded["error"] is not None:
        return [Verdict(_import_failed(loaded["error"]), _ended(loaded["error"]))] * len(plans)
    verdicts: list[Verdict] = []
    for steps in plans:
        verdicts.append(_judge_one(steps, feed, cut))
        if verdicts[-1].last:
            break
    return verdicts


def _judge_one(steps: Sequence[Step], feed: _Feed, cut: Verdict) -> Verdict:
    first = ""
    for step in steps:
        record = feed.take()
        if record is None:
            return cut._replace(message=first or joined(step.shown, f": {cut.message}"), last=True)
        if record["error"] is not None:
            return Verdict(first or _raised(step, record["error"]), _ended(record["error"]))
        first = first or _failure(step, record, feed.reached)
    return Verdict(first)


def _ended(error: dict[str, Any]) -> Ended:
    return "memory" if error["type"] == "MemoryError" else "exit"


def _failure(step: Step, record: dict[str, Any], reached: str) -> str:
    """ "" where the step holds. Once the code looked into the runner, only what it was not told is believed."""
    untold = step.operator is not None and step.right is None and not isinstance(step.expected, bool)
    if reached and not untold:
        return _disbelieved(step, reached)
    if step.left is None:
        return ""
    try:
        holds = _holds(step, record)
        if holds is None:
            holds = record["truth"] is not step.negated
        got = record["shown"] if record["left"] is None else show(decode(*record["left"]))
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        return joined(step.shown, f": {type(error).__name__}: {error}")
    return "" if holds else joined(f"assert {step.shown}", f" : got {scrubbed(got)}")


def _holds(step: Step, record: dict[str, Any]) -> bool | None:
    """Whether an assert holds by plain data alone; None where only the fork can say."""
    left, right = record["left"], record["right"]
    if step.operator is None:
        return None if left is None else bool(decode(*left)) is not step.negated
    compare = OPERATORS[step.operator]
    if step.right is None:  # no class of the agent's own equals what it was not told
        if left is None:
            return False
        sides = (step.expected, decode(*left)) if step.flipped else (decode(*left), step.expected)
        return bool(compare(*sides))
    if left is None or right is None or step.operator in ("Is", "IsNot"):
        return None
    return bool(compare(decode(*left), decode(*right)))


def _disbelieved(step: Step, reached: str) -> str:
    return joined(step.shown, f": the code looked into the runner ({reached})")


def _raised(step: Step, error: dict[str, Any]) -> str:
    text = scrubbed(error["text"])
    if error["type"] == "AssertionError" and text.startswith("assert ") and " : got " in text:
        head, _, got = text.partition(" : got ")
        return joined(head, f" : got {got}")
    return joined(step.shown, f": {error['type']}: {text}" if text else f": {error['type']}")


def _import_failed(error: dict[str, Any]) -> str:
    what = f"{error['type']}: {scrubbed(error['text'])}"
    if not error["file"]:
        return joined(what, "")
    return joined(f"{error['file']}, line {error['line']}: ", what)


def show(value: object) -> str:
    """`repr` of plain data, the same in every process: sets are sorted."""
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(show, value))) + "}" if value else "set()"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show(key)}: {show(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(show, value)) + (",)" if len(value) == 1 else ")")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return hex(value)
    return repr(value)


def scrubbed(text: str) -> str:
    """Text without addresses, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def joined(head: str, tail: str) -> str:
    """Head and tail in at most 80 characters; the tail keeps at least half of them."""
    tail = _short(tail, max(WIDTH // 2, WIDTH - len(head)))
    return _short(head, WIDTH - len(tail)) + tail


def _short(text: str, length: int) -> str:
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= length else text[: length - 3] + "..."
