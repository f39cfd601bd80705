"""What Prometheus reads of the gateway: one registry a gateway.

requests, tokens, sessions, releases, refusals, audit rows -> GET /metrics
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tasks.canary.routing import State

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters and gauges; the names are those that alerts and dashboards use."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests answered.", "release", "arm", "path", "status")
        self.seconds = Histogram(
            "ratchet_gateway_request_seconds",
            "Seconds from a request to the end of its answer.",
            ["release", "arm"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.tokens = self._counter("tokens", "Tokens read and sampled.", "release", "kind")
        self.refused = self._counter("refused", "Requests that were not let in.", "tenant", "reason")
        self.call_errors = self._counter("tool_call_errors", "Calls that could not be read.", "release")
        self.outcomes = self._counter("outcomes", "Sessions whose end was told.", "release", "outcome")
        self.shadow = self._counter("shadow", "Copies for the candidate: answered, failed, dropped.", "result")
        self.redacted = self._counter("redacted", "Replacements before writing.", "rule")
        self.audit_rows = self._counter("audit_rows", "Rows of the audit log.")
        self.registry_errors = self._counter("registry_errors", "Times that the registry could not be followed.")
        self.sessions = self._gauge("sessions", "Sessions remembered.")
        self.in_flight = self._gauge("in_flight", "Requests under way.")
        self._share = self._gauge("candidate_share", "Share of new sessions that the candidate answers.")
        self._info = self._gauge("release_info", "1 for what new sessions get.", "release", "arm", "digest")

    def answered(self, path: str, status: int, headers: Mapping[str, str], seconds: float) -> None:
        """Count a request; the release is the one that its answer's headers name."""
        release, arm = headers.get("x-ratchet-release", ""), headers.get("x-ratchet-arm", "")
        self.requests.labels(release, arm, path, str(status)).inc()
        if release:
            self.seconds.labels(release, arm).observe(seconds)

    def serving(self, state: State) -> None:
        """Show what is served."""
        self._share.set(state.share)
        self._info.clear()
        for arm, served in (("champion", state.champion), ("candidate", state.candidate)):
            if served is not None:
                self._info.labels(served.release, arm, served.digest).set(1)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"ratchet_gateway_{name}", meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"ratchet_gateway_{name}", meaning, labels, registry=self.registry)
