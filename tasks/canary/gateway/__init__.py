"""The gateway: an OpenAI-compatible server that sends each session to the champion or to the candidate.

HTTP request -> tenant -> session's conversation (route, ids) -> EnginePump -> audit row -> HTTP response

POST /v1/chat/completions (streamed too), /v1/completions, /feedback; GET /v1/models, /health, /metrics. The header
`x-session-id` says which session a request belongs to; a request without one begins a session and is told its id.
"""

from tasks.canary.gateway.server import Gateway

__all__ = ["Gateway"]
