"""Who is let in, by configuration, key and minute; what is taken out before writing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.errors import UserError
from tasks.canary import tenants as module
from tasks.canary.gateway.redaction import BUILTIN, Redactor
from tasks.canary.gateway_config import GatewayConfig, TenantConfig
from tasks.canary.tenants import Bucket, Refused, Tenants

KEY = hashlib.sha256(b"k").hexdigest()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"host": "0.0.0.0"}, "is reached from other machines"),
        ({"tenants": [{"name": "a"}, {"name": "b", "key_sha256": KEY}]}, "has no key beside others"),
        ({"tenants": [{"name": "a", "key_sha256": KEY}, {"name": "a", "key_sha256": KEY}]}, "named twice"),
        ({"redact": [{"name": "r", "pattern": "(", "replacement": ""}]}, "no regular expression"),
    ],
)
def test_settings_that_would_let_anybody_in_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        GatewayConfig.model_validate(settings)
    GatewayConfig.model_validate({"host": "0.0.0.0", "tenants": [{"name": "a", "key_sha256": KEY}]})


def test_a_key_may_lie_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    config = TenantConfig(name="a", key_file=path)
    with pytest.raises(UserError, match="missing or empty"):
        Tenants([config])
    path.write_text("k\n")
    assert Tenants([config]).of("Bearer k").name == "a"
    with pytest.raises(Refused, match="no such API key"):
        Tenants([config]).of("Basic k")
    with pytest.raises(UserError, match="the same API key"):
        Tenants([config, TenantConfig(name="b", key_sha256=KEY)])


def test_a_bucket_refills_by_the_minute_and_pays_its_debt(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bucket = Bucket(60)
    bucket.take(60)
    assert bucket.wait() == pytest.approx(1.0)
    now[0] = 1.0
    assert bucket.wait() == 0
    bucket.take(31)
    assert bucket.wait() == pytest.approx(31.0)
    now[0] = 1000.0
    assert bucket.wait() == 0
    bucket.take(60)
    assert bucket.wait() > 0, "it never holds more than a minute's"
    assert Bucket(None).wait() == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to ada.l+x@mail.example.org now", "write to [email] now"),
        ("OPENAI_API_KEY=sk-abcdefghijklmnopqrstuv", "OPENAI_API_KEY=[secret]"),
        ("use sk-abcdefghijklmnopqrstuv", "use [secret]"),
        ("Authorization: Bearer abcdefghijklmnopqrstuvwx", "Authorization: Bearer [secret]"),
        ("AKIAABCDEFGHIJKLMNOP", "[secret]"),
        ('{"password": "correct-horse-1 x"}', '{"[secret] x"}'),
        ("a -----BEGIN RSA PRIVATE KEY-----\nx\n-----END RSA PRIVATE KEY----- b", "a [secret] b"),
        ("token = tokens[index1]; token = tokenize(line)", "token = tokens[index1]; token = tokenize(line)"),
        ("a@b is no address, x = y", "a@b is no address, x = y"),
    ],
)
def test_addresses_and_keys_are_taken_out_and_counted(text: str, expected: str) -> None:
    counts: list[tuple[str, int]] = []
    redactor = Redactor(list(BUILTIN.values()), lambda rule, count: counts.append((rule, count)))
    told = redactor.clean([{"role": "user", "content": text, "deep": [1, None, {"x": text}]}])
    assert told == [{"role": "user", "content": expected, "deep": [1, None, {"x": expected}]}]
    assert sum(count for _, count in counts) == (2 if expected != text else 0)
