"""Settings of the gateway: where it listens, and what it lets pass."""

from __future__ import annotations

from pydantic import Field

from data_contracts.config import Config


class GatewayConfig(Config):
    """Limits of the gateway."""

    host: str = Field(default="127.0.0.1", description="address to listen on; loopback unless a proxy stands before it")
    port: int = Field(default=0, ge=0, le=65535, description="0 takes a free port")
    model: str = Field(default="champion", min_length=1, description="the model name that /v1/models always offers")
    max_request_bytes: int = Field(default=1_000_000, ge=1024, description="a larger request is refused with 413")
    max_tokens: int = Field(default=256, ge=1, description="tokens of a completion when the request names no number")
    max_context: int = Field(default=4096, ge=16, description="prompt + completion tokens a session may reach")
    request_seconds: float = Field(default=60.0, gt=0, description="a completion that takes longer ends with 504")
    max_sessions: int = Field(default=4096, ge=1, description="sessions remembered; the longest idle goes first")
