"""Text that can be stored."""

from __future__ import annotations

import pytest

from sluice.core.text import is_storable


@pytest.mark.parametrize("text", ["", "plain", "Käse", "\U0001f600", "a\nb", "\x7f"])
def test_printable_and_other_text_can_be_stored(text: str) -> None:
    assert is_storable(text)


@pytest.mark.parametrize("text", ["\0", "a\0b", "Käse\0", "\ud800", "a\udfffb", "\U0001f600\udc00"])
def test_nul_and_lone_surrogates_cannot(text: str) -> None:
    assert not is_storable(text)
