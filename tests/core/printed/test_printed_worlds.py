"""Random worlds of ``test_promises.py`` that broke a promise before keep all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.printed import play

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_world_that_broke_a_promise_keeps_it(file: Path) -> None:
    play(file)
