"""Errors a user can act on: one line that says what is wrong, where, and what to do."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what the user gave. Commands print its message on one line and exit with code 2."""


class UncoveredUse(UserError):
    """A trainable parameter reached an operation that has no per-user gradient rule."""


class MixedUsers(UserError):
    """One user's data moved another user's gradient, so clipping per user would bound nothing."""
