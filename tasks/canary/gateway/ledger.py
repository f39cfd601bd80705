"""What the audit log is told of a turn or an outcome.

conversation + what was measured and said -> redaction -> AuditRow -> on disk
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from tasks.canary.audit import AuditLog, AuditRow
from tasks.canary.conversation import Conversation
from tasks.canary.gateway.metrics import Metrics
from tasks.canary.gateway.redaction import BUILTIN, Redactor
from tasks.canary.gateway_config import GatewayConfig
from tasks.canary.routing import Route
from tasks.canary.wire import Message, WireError
from tasks.rollout.engine import Completion


class Ledger:
    """Writes rows; returns once they are on disk."""

    def __init__(self, audit: AuditLog, metrics: Metrics, config: GatewayConfig) -> None:
        self._audit, self._metrics = audit, metrics
        rules = [*(BUILTIN[name] for name in config.redact_builtin), *config.redact]
        self._redactor = Redactor(rules, lambda rule, count: metrics.redacted.labels(rule).inc(count))

    async def turn(
        self, held: Conversation, said: Sequence[Message], seconds: float, route: Route | None = None, **fields: Any
    ) -> None:
        """A turn of the session: the messages it added, and what came of them. `route`: if not the session's own."""
        texts = {"prompt": self._json(said)}
        if "completion" in fields:
            texts["completion"] = self._json(fields.pop("completion"))
        fields = {"turn": held.turn} | fields
        await self._write(held, "turn", route or held.route, latency=seconds, **texts, **fields)

    async def outcome(self, held: Conversation, outcome: bool | None, metadata: dict[str, Any]) -> None:
        """How the session ended."""
        cleaned = self._redactor.clean(metadata)
        await self._write(held, "outcome", held.route, turn=held.turn, outcome=outcome, metadata=cleaned)
        told = {True: "true", False: "false", None: "unknown"}[outcome]
        self._metrics.outcomes.labels(held.route.served.release, told).inc()

    async def _write(self, held: Conversation, kind: str, route: Route, **fields: Any) -> None:
        """A row of the session. Raises WireError (503) when it cannot be written: what is not recorded is not told."""
        named = {
            "kind": kind,
            "tenant": held.tenant.name,
            "session": held.session,
            "release": route.served.release,
            "arm": route.arm,
            "stage": route.stage,
            "trainable": held.tenant.config.train,
            "digest": route.served.digest,
        }
        row = AuditRow.model_validate(named | fields)
        try:
            await asyncio.wrap_future(self._audit.submit(row))
        except OSError as error:
            raise WireError(503, "audit_failed", f"the audit log could not be written: {error}") from error
        self._metrics.audit_rows.inc()

    def _json(self, said: Any) -> str:
        """What was said as JSON, redacted."""
        return json.dumps(self._redactor.clean(said))


def measured(completion: Completion) -> dict[str, Any]:
    """A completion's figures, by column."""
    return {
        "digest": completion.policy_digest,
        "prompt_tokens": completion.prompt_tokens,
        "cached_tokens": completion.cached_tokens,
        "completion_tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
    }
