"""Secrets never reach a log, however the job writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_quota.backends.local.jobs.masking import Mask


@pytest.mark.parametrize(
    ("secrets", "pieces", "expected"),
    [
        pytest.param(["topsecret"], [b"say topsecret!"], b"say ***!", id="the whole secret"),
        pytest.param(["topsecret"], [b"say top", b"sec", b"ret!"], b"say ***!", id="a secret in three writes"),
        pytest.param(["topsecret"], [b"say top", b"hat"], b"say tophat", id="a prefix of a secret"),
        pytest.param(["topsecret"], [b"say topse"], b"say topse", id="a prefix at the end"),
        pytest.param(["topsecret", "topsecret-2"], [b"topsecret-2."], b"***.", id="the longer of two secrets"),
        pytest.param(["one"], [b"one and one"], b"one and one", id="a value that is too short"),
        pytest.param(["aaaa"], [b"aaa", b"aaaa", b"a"], b"******", id="a value that repeats itself"),
        pytest.param([], [b"plain"], b"plain", id="no secret"),
    ],
)
def test_secrets_in_a_log_are_masked(secrets: list[str], pieces: list[bytes], expected: bytes) -> None:
    mask = Mask(secrets)
    assert b"".join([*map(mask.feed, pieces), mask.rest()]) == expected


@given(st.lists(st.text("ab", max_size=9)), st.integers(1, 5))
def test_a_secret_is_masked_wherever_the_output_is_split(texts: list[str], step: int) -> None:
    whole = "abba".join(texts).encode()
    mask = Mask(["abba"])
    pieces = [whole[at : at + step] for at in range(0, len(whole), step)]
    shown = b"".join([*map(mask.feed, pieces), mask.rest()])
    assert b"abba" not in shown
    assert shown == whole.replace(b"abba", b"***")
