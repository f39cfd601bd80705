"""Who asks, and whether they may: API keys, and what a tenant may ask for a minute and at a time.

Authorization header -> Tenant -> enter(): in, or 429 with the seconds to wait -> charge(tokens)
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data_contracts.errors import UserError
from tasks.canary.gateway_config import TenantConfig
from tasks.canary.wire import WireError


class Refused(WireError):
    """A request that is not let in; `tenant` and `reason` are those of the metric."""

    def __init__(self, tenant: str, reason: str, status: int, code: str, message: str, wait: float = 0.0) -> None:
        super().__init__(status, code, message, {"retry-after": str(math.ceil(wait))} if wait else {})
        self.tenant, self.reason = tenant, reason


class Bucket:
    """So many a minute, and as many at once; it may be overdrawn once, and is then closed until it is paid back."""

    def __init__(self, per_minute: int | None) -> None:
        self._most = math.inf if per_minute is None else float(per_minute)
        self._left, self._at = self._most, time.monotonic()

    def wait(self) -> float:
        """Seconds until something may be taken; 0 now."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._most / 60)
        self._at = now
        return max(0.0, 1 - self._left) * 60 / self._most

    def take(self, count: int) -> None:
        self._left -= count


class Tenant:
    """One tenant, and what it has asked lately. Of the event loop's thread alone."""

    def __init__(self, config: TenantConfig) -> None:
        self.config, self.name = config, config.name
        self._requests, self._tokens = Bucket(config.requests_per_minute), Bucket(config.tokens_per_minute)
        self._in_flight = 0

    def scoped(self, session: str) -> str:
        """A session's name here: two tenants may give the same one."""
        return session if self.config.open else f"{self.name}:{session}"

    def given(self, session: str) -> str:
        """A session's name as the tenant gave it."""
        return session if self.config.open else session.removeprefix(f"{self.name}:")

    @contextmanager
    def visit(self) -> Iterator[None]:
        """A request's stay; raises Refused where it would be one too many."""
        for what, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if wait := bucket.wait():
                raise self._limited(what, f"{what} a minute are used up", wait)
        if self.config.in_flight is not None and self._in_flight >= self.config.in_flight:
            raise self._limited("in_flight", f"{self._in_flight} requests are under way, and no more may be", 1.0)
        self._requests.take(1)
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def charge(self, tokens: int) -> None:
        """Count the tokens of an answer against the tenant's."""
        self._tokens.take(tokens)

    def _limited(self, reason: str, message: str, wait: float) -> Refused:
        return Refused(self.name, reason, 429, "rate_limit_exceeded", f"{message}: try again later", wait)


class Tenants:
    """All of them, by their keys."""

    def __init__(self, configs: Sequence[TenantConfig]) -> None:
        self._open = next((Tenant(config) for config in configs if config.open), None)
        self._by_key = {_key(config): Tenant(config) for config in configs if not config.open}
        if len(self._by_key) + (self._open is not None) < len(configs):
            raise UserError("two tenants have the same API key: give each its own.")

    def named(self, name: str) -> Tenant | None:
        known = [*self._by_key.values(), *([self._open] if self._open else [])]
        return next((tenant for tenant in known if tenant.name == name), None)

    def of(self, authorization: str | None) -> Tenant:
        """Whose key the header holds; raises Refused (401)."""
        if self._open is not None:
            return self._open
        scheme, _, key = (authorization or "").partition(" ")
        tenant = self._by_key.get(hashlib.sha256(key.strip().encode()).hexdigest())
        if scheme.lower() != "bearer" or tenant is None:
            raise Refused("", "key", 401, "invalid_api_key", "no such API key: send Authorization: Bearer KEY")
        return tenant


def _key(config: TenantConfig) -> str:
    """sha256 of a tenant's key."""
    if config.key_file is None:
        return config.key_sha256 or ""
    path = Path(config.key_file)
    key = path.read_text().strip() if path.is_file() else ""
    if not key:
        raise UserError(f"{path}, the API key of tenant {config.name!r}, is missing or empty: write the key into it.")
    return hashlib.sha256(key.encode()).hexdigest()
