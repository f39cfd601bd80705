"""Rules of the table releases: the manifests of what may serve.

frame of manifests -> one bool a row
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
import pandas as pd

from data_contracts.rules._rows import each

_VERSION = re.compile(r"\d+\.\d+\.\d+")


def base_and_policy_pinned(frame: pd.DataFrame) -> np.ndarray:
    """A release pins a base and a policy, and no other part than these and a reward model."""
    known = {"base", "policy", "reward"}
    return each({"base", "policy"} <= set(parts) <= known for parts in frame["components"])


def components_whole(frame: pd.DataFrame) -> np.ndarray:
    """Each component names its model version, its digest, and where it lies."""
    return each(all(_whole(part) for part in parts.values()) for parts in frame["components"])


def content_covers_files(frame: pd.DataFrame) -> np.ndarray:
    """A component's content is the hash over the names and hashes of its files."""
    return each(
        all(part["content"] == _content(part["files"]) for part in parts.values()) for parts in frame["components"]
    )


def contracts_have_versions(frame: pd.DataFrame) -> np.ndarray:
    """The contracts that its data held to are named by whole versions."""
    return each(all(_VERSION.fullmatch(value) for value in named.values()) for named in frame["contract_versions"])


def evidence_named_once(frame: pd.DataFrame) -> np.ndarray:
    """A gate occurs once in the evidence."""
    return each(len({gate["name"] for gate in gates}) == len(gates) for gates in frame["evidence"])


def _whole(part: dict[str, Any]) -> bool:
    texts = all(isinstance(part.get(name), str) and part[name] for name in ("model", "digest", "content", "source"))
    files = part.get("files")
    hashed = isinstance(files, dict) and bool(files) and all(isinstance(each, str) for each in files.values())
    where = part.get("stored") == "copied" or (part.get("stored") == "referenced" and isinstance(part.get("path"), str))
    version = part.get("version")
    return texts and hashed and where and isinstance(version, int) and version >= 1


def _content(files: dict[str, str]) -> str:
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
