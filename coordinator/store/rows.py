"""Rows to columns and back."""

from __future__ import annotations
