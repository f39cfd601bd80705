"""Errors that are the user's to mend."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what the user gave: one sentence with the file, the line and the remedy. Exit code 2."""
