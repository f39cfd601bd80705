"""What must not be written: e-mail addresses, keys, and what the recipe's own rules name.

messages, calls, metadata -> every text in them -> rule after rule -> the same, with replacements
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tasks.canary.gateway_config import RedactionRule

_EMAIL = r"[\w.+\-]{1,64}@[\w\-]{1,63}(?:\.[\w\-]{1,63}){1,8}"
_SECRET = "|".join(
    (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----",
        r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_\-]{16,}",
        r"\bgh[opsur]_[A-Za-z0-9]{20,}",
        r"\bxox[abprs]-[A-Za-z0-9\-]{10,}",
        r"\bAKIA[A-Z0-9]{16}\b",
        r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}",
        r"(?i:(?<=bearer )[A-Za-z0-9._~+/\-]{16,})",
        r"(?i:(?<![a-z])(?:api[_\-]?key|secret|token|passwd|password)[\"']?\s{0,3}[:=]\s{0,3}[\"']?"
        r"(?=[a-z_\-+/=.]*\d)[a-z0-9_\-+/=.]{8,})",
    )
)
BUILTIN = {
    "email": RedactionRule(name="email", pattern=_EMAIL, replacement="[email]"),
    "secret": RedactionRule(name="secret", pattern=_SECRET, replacement="[secret]"),
}


class Redactor:
    """Applies rules in their order; `count(rule, replacements)` hears of each that found something."""

    def __init__(self, rules: Sequence[RedactionRule], count: Callable[[str, int], object]) -> None:
        self._rules = [(rule.name, re.compile(rule.pattern), rule.replacement) for rule in rules]
        self._count = count

    def clean(self, value: Any) -> Any:
        """`value` with every text in it redacted, also within lists and objects, whose keys stay."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {key: self.clean(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(part) for part in value]
        return value

    def _text(self, text: str) -> str:
        for name, pattern, replacement in self._rules:
            text, found = pattern.subn(replacement, text)
            if found:
                self._count(name, found)
        return text
