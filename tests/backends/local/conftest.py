"""A world whose jobs may run under other accounts; some modules have a world of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.worlds import LocalWorld, passable_folder


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    with passable_folder() as state_dir:
        world = LocalWorld(state_dir)
        yield world
        world.close()
