"""Settings of the gateway: where it listens, who may ask for how much, what it keeps."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from data_contracts.config import Config


class TenantConfig(Config):
    """Who asks, and how much at most. Left out: no limit."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9\-]*$", description="as it stands in the audit log and in metrics")
    key_sha256: str | None = Field(
        default=None, pattern=r"^[0-9a-f]{64}$", description="sha256 of the tenant's API key, in hex"
    )
    key_file: Path | None = Field(default=None, description="a file that holds the API key, as secrets are mounted")
    requests_per_minute: int | None = Field(default=None, ge=1, description="requests a minute")
    tokens_per_minute: int | None = Field(default=None, ge=1, description="prompt + completion tokens a minute")
    in_flight: int | None = Field(default=None, ge=1, description="requests at the same time")
    train: bool = Field(default=False, description="the tenant agrees that its sessions are learned from")
    shadow: bool = Field(default=True, description="copies of its requests may go to a candidate in shadow")

    @property
    def open(self) -> bool:
        """Whether it is served without a key."""
        return self.key_sha256 is None and self.key_file is None


class RedactionRule(Config):
    """What is replaced in prompts, completions, calls and metadata before they are written."""

    name: str = Field(min_length=1, description="as it stands in metrics")
    pattern: str = Field(min_length=1, description="regular expression, as Python reads it")
    replacement: str = Field(description="what stands there instead")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression ({error}): mend it") from error
        return value


LOCAL = TenantConfig(name="local")


class GatewayConfig(Config):
    """The gateway."""

    host: str = Field(default="127.0.0.1", description="address to listen on; any but loopback needs tenants with keys")
    port: int = Field(default=0, ge=0, le=65535, description="0 takes a free port")
    model: str = Field(default="champion", min_length=1, description="the model name that /v1/models always offers")
    max_request_bytes: int = Field(default=1_000_000, ge=1024, description="a larger request is refused with 413")
    max_tokens: int = Field(default=256, ge=1, description="tokens of a completion when the request names no number")
    max_context: int = Field(default=4096, ge=16, description="prompt + completion tokens a session may reach")
    request_seconds: float = Field(default=60.0, gt=0, description="a completion that takes longer ends with 504")
    max_sessions: int = Field(default=4096, ge=1, description="sessions remembered; the longest idle goes first")
    session_seconds: float = Field(default=3600.0, gt=0, description="a session that is idle for so long has ended")
    poll_seconds: float = Field(default=1.0, gt=0, description="how often the registry is asked what to serve")
    shadow_in_flight: int = Field(default=4, ge=1, description="copies that a candidate in shadow answers at a time")
    shadow_queue: int = Field(default=64, ge=1, description="copies that wait for it; more are dropped and counted")
    tenants: tuple[TenantConfig, ...] = Field(
        default=(LOCAL,), min_length=1, description="who may ask; one without a key is alone, and on loopback"
    )
    redact: tuple[RedactionRule, ...] = Field(default=(), description="redaction rules of your own")
    redact_builtin: tuple[Literal["email", "secret"], ...] = Field(
        default=("email", "secret"), description="rules that are there: e-mail addresses, what looks like a key"
    )
    retention_days: int | None = Field(
        default=None, ge=1, description="days that rows of the audit log are kept; left out: for ever"
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) < len(names):
            raise ValueError(f"a tenant is named twice in {names}: give each a name of its own")
        if not any(tenant.open for tenant in self.tenants):
            return self
        if len(self.tenants) > 1:
            raise ValueError("a tenant has no key beside others: give it key_sha256 or key_file")
        if not _loopback(self.host):
            raise ValueError(
                f"host {self.host!r} is reached from other machines, and a tenant has no key: "
                'write host = "127.0.0.1", or give every tenant key_sha256 or key_file'
            )
        return self


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
