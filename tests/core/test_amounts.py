"""Amounts of GPU, memory and time as text: parsed exactly, or refused without an exception."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_quota.core.amounts import (
    AmountRefusal,
    duration_ms,
    duration_s,
    duration_text,
    elapsed_text,
    exact_milli,
    gpu_amount,
    gpu_hours_text,
    gpu_text,
    matches_model,
    memory_mib,
    memory_share_mib,
    ranks_text,
    slice_amount,
)

T4 = [("Tesla T4", 15360)]


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        pytest.param("0.5", 500, id="half a GPU"),
        pytest.param("1/8", 125, id="an eighth"),
        # R1
        pytest.param("1/3", 333, id="a third floors to milli"),
        pytest.param("2/3", 666, id="two thirds floor to milli"),
        pytest.param("0.001", 1, id="the smallest part"),
        pytest.param("1", 1000, id="one whole GPU"),
        pytest.param("1.0", 1000, id="one whole GPU with a point"),
        pytest.param("2", 2000, id="two GPUs"),
        pytest.param("4/2", 2000, id="four halves are two GPUs"),
        pytest.param(" 0.25 ", 250, id="surrounding spaces are ignored"),
        # R1
        pytest.param("8GiB", 552, id="memory is charged rounded up, beside the headroom"),
        pytest.param("15GiB", 1000, id="all of the memory is all of the device"),
        pytest.param("14849MiB", 1000, id="more than the shares of a device have is all of it"),
        pytest.param("1MiB", 1, id="one MiB is the smallest part"),
        pytest.param("1.5 GiB", 104, id="memory with a point"),
    ],
)
def test_a_request_is_charged(text: str, milli: int) -> None:
    assert gpu_amount(text, T4) == milli


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        pytest.param("-1", "negative", "below zero", id="minus one GPU"),
        pytest.param("-0", "negative", "below zero", id="minus nothing"),
        pytest.param("nan", "not_an_amount", "not an amount", id="not a number"),
        pytest.param("inf", "not_an_amount", "not an amount", id="infinity"),
        pytest.param("1e9", "not_an_amount", "not an amount", id="an exponent"),
        pytest.param("1000000000", "too_large", "100000", id="a thousand million GPUs"),
        pytest.param("100001", "too_large", "100000", id="one more than the maximum"),
        pytest.param("999999999/1", "too_large", "100000", id="a ratio above the maximum"),
        pytest.param("0.0005", "too_fine", "three", id="half a thousandth"),
        # R1
        pytest.param("0.5000", "too_fine", "three", id="four decimals, even zeros"),
        pytest.param("0", "too_small", "0.001", id="no GPU"),
        pytest.param("0.000", "too_small", "0.001", id="no GPU to three decimals"),
        pytest.param("1/5000", "too_small", "0.001", id="a ratio under a milli"),
        pytest.param("1.5", "not_placeable", "ask for 1 or 2", id="one and a half"),
        pytest.param("7/2", "not_placeable", "ask for 3 or 4", id="seven halves"),
        pytest.param("1/0", "not_an_amount", "divides by zero", id="a part of nothing"),
        pytest.param("", "not_an_amount", "not an amount", id="nothing written"),
        pytest.param("1,5", "not_an_amount", "not an amount", id="a comma"),
        pytest.param("+1", "not_an_amount", "not an amount", id="a plus sign"),
        pytest.param("٣", "not_an_amount", "not an amount", id="digits of another script"),
        pytest.param("1_000", "not_an_amount", "not an amount", id="an underscore"),
        pytest.param("0x10", "not_an_amount", "not an amount", id="hexadecimal"),
        pytest.param("8GB", "not_memory", "GiB", id="GB instead of GiB"),
        pytest.param("8g", "not_memory", "GiB", id="memory as another tool writes it"),
        pytest.param("16GiB", "too_large", "15360 MiB", id="more memory than a device has"),
        pytest.param("0GiB", "too_small", "1MiB", id="no memory"),
        pytest.param("1\x00", "not_an_amount", "\\x00", id="a control character is shown, not printed"),
        pytest.param("9" * 100_000, "too_large", "...", id="a hundred thousand digits"),
    ],
)
def test_a_request_is_refused_with_a_sentence(text: str, code: str, words: str) -> None:
    refusal = gpu_amount(text, T4)
    assert isinstance(refusal, AmountRefusal)
    assert refusal.code == code
    assert words in refusal.message
    assert len(refusal.message) < 250


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("1/3", "'1/3' is a part, and no exact amount; write a decimal, such as 0.333", id="a third"),
        pytest.param("8GiB", "write a decimal with up to three places, such as 2 or 0.5", id="memory"),
        pytest.param("8g", "write a decimal with up to three places, such as 2 or 0.5", id="memory in short"),
        pytest.param("much", "write a decimal with up to three places, such as 2 or 0.5", id="a word"),
        pytest.param("1/5000", "write a decimal with up to three places, such as 2 or 0.5", id="too small a part"),
        pytest.param("999999999/1", "write a decimal with up to three places, such as 2 or 0.5", id="too large a part"),
        pytest.param("1/0", "write a decimal with up to three places, such as 2 or 0.5", id="a part of nothing"),
    ],
)
def test_an_exact_amount_gets_no_proposal(text: str, words: str) -> None:
    refusal = exact_milli(text)
    assert isinstance(refusal, AmountRefusal)
    assert words in refusal.message
    assert "1/3)" not in refusal.message and "(8GiB" not in refusal.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("2", "2 GPU is too much; a notebook's slice is at most one whole device", id="two devices"),
        pytest.param("1.5", "1.5 GPU is too much; a notebook's slice is at most", id="one and a half"),
        pytest.param("16GiB", "has (15360 MiB); ask for less, or for all of one device (1)", id="more than a device"),
        pytest.param("much", "a decimal up to 1 with up to three places (0.5), a part (1/3) or memory", id="a word"),
        pytest.param("0", "0.001", id="nothing"),
    ],
)
def test_a_notebook_gets_at_most_one_device(text: str, words: str) -> None:
    refusal = slice_amount(text, T4)
    assert isinstance(refusal, AmountRefusal)
    assert words in refusal.message


def test_a_notebook_is_charged_like_a_job() -> None:
    assert [slice_amount(text, T4) for text in ("1/8", "0.5", "1", "8GiB")] == [125, 500, 1000, 552]


def test_the_refusal_for_a_notebook_does_not_propose_a_model() -> None:
    refusal = slice_amount("8GiB", [("A100", 40960), ("T4", 15360)])
    assert isinstance(refusal, AmountRefusal)
    assert refusal.message.endswith("T4 (15360 MiB); ask for a part of a device (1/3)")


@pytest.mark.parametrize(
    ("text", "processes", "milli"),
    [
        pytest.param("1", 2, 500, id="two processes on a device"),
        pytest.param("2", 2, 1000, id="a device for each"),
        pytest.param("4", 2, 2000, id="two devices for each"),
        pytest.param("1.5", 3, 500, id="an amount that no process alone could have, shared"),
        pytest.param("1/3", 3, 111, id="a part of a part"),
        pytest.param("15GiB", 4, 250, id="memory"),
    ],
)
def test_processes_share_evenly(text: str, processes: int, milli: int) -> None:
    assert gpu_amount(text, T4, processes=processes) == milli


@pytest.mark.parametrize(
    ("text", "processes", "words"),
    [
        pytest.param("1", 3, "1000 milli-GPU / 3 = 333, and 1 are left", id="a device by three"),
        pytest.param("3", 2, "1.5 GPU for each is neither", id="three devices by two"),
        pytest.param("0", 2, "0 milli-GPU / 2 = 0", id="nothing"),
        pytest.param("0.001", 2, "and 1 are left", id="the smallest part"),
    ],
)
def test_an_amount_that_cannot_be_shared_evenly_is_refused_with_the_arithmetic(
    text: str, processes: int, words: str
) -> None:
    refusal = gpu_amount(text, T4, processes=processes)
    assert isinstance(refusal, AmountRefusal) and refusal.code == "not_divisible"
    assert words in refusal.message and len(refusal.message) < 250


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        pytest.param((1, None, None), "", id="a job alone"),
        pytest.param((3, None, None), "3 ranks", id="a gang"),
        pytest.param((4, 2, None), "2-4 ranks", id="an elastic job that waits"),
        pytest.param((4, 2, 3), "3 of 2-4 ranks", id="an elastic job that runs"),
    ],
)
def test_text_of_ranks(ranks: tuple[int, int | None, int | None], said: str) -> None:
    assert ranks_text(*ranks) == said


def test_memory_on_several_models_requires_a_model() -> None:
    refusal = gpu_amount("8GiB", [("A100", 40960), ("T4", 15360), ("T4", 15360)])
    assert refusal == AmountRefusal(
        code="which_model",
        message=(
            "8GiB is a different part of each model here: A100 (40960 MiB), T4 (15360 MiB); ask for a part of a device"
            " (1/3), or name one with --gpu-model"
        ),
    )


def test_memory_on_models_of_the_same_size_needs_no_model() -> None:
    assert gpu_amount("8GiB", [("A30", 24576), ("L4", 24576)]) == 341


def test_memory_without_any_device_is_refused() -> None:
    refusal = gpu_amount("8GiB", [])
    assert isinstance(refusal, AmountRefusal)
    assert refusal.code == "no_device"


@given(st.integers(0, 100_000_000))
def test_an_amount_reads_back_as_itself(milli: int) -> None:
    assert exact_milli(gpu_text(milli)) == milli


@given(st.text(max_size=60), st.lists(st.tuples(st.text(max_size=5), st.integers(1, 10**6)), max_size=3))
def test_any_text_is_a_placeable_amount_or_a_refusal(text: str, models: list[tuple[str, int]]) -> None:
    found = gpu_amount(text, models)
    if isinstance(found, int):
        assert 1 <= found <= 1000 or found % 1000 == 0
    else:
        assert found.message


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_ratio_is_the_exact_part_floored(above: int, below: int) -> None:
    found = gpu_amount(f"{above}/{below}", [])
    exact = Fraction(above * 1000, below)
    assert (
        found == exact.__floor__()
        if isinstance(found, int)
        else found.code in {"too_small", "too_large", "not_placeable"}
    )


# R1
@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_memory_is_charged_the_smallest_share_that_has_it(asked: int, memory: int) -> None:
    found = gpu_amount(f"{asked}MiB", [("m", memory)])
    if isinstance(found, int):
        assert memory_share_mib(memory, found - 1) < asked <= memory_share_mib(memory, found)
    else:
        assert asked > memory


# R1
@pytest.mark.parametrize(
    ("device_mib", "milli", "mib"),
    [
        pytest.param(16_384, 125, 1984, id="an eighth of 16 GiB"),
        pytest.param(16_384, 999, 15_856, id="all but a thousandth"),
        pytest.param(16_384, 1000, 16_384, id="a whole device has no headroom"),
        pytest.param(1024, 500, 448, id="of a small device an eighth"),
    ],
)
def test_a_share_has_its_part_of_the_memory_less_the_headroom(device_mib: int, milli: int, mib: int) -> None:
    assert memory_share_mib(device_mib, milli) == mib


def test_0_1_and_0_2_are_0_3() -> None:
    assert exact_milli("0.1") + exact_milli("0.2") == exact_milli("0.3")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("milli_s", "text"),
    [(0, "0"), (1, "<0.001"), (3_599, "<0.001"), (25_000, "0.006"), (36_000, "0.01"), (5_400_000, "1.5")],
)
def test_gpu_hours_as_they_are_printed(milli_s: int, text: str) -> None:
    assert gpu_hours_text(milli_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (61, "1 min 1 s"), (3_600, "1 h"), (90_061, "1 d 1 h"), (-5, "0 s")]
)
def test_a_measured_duration_has_two_units(seconds: int, text: str) -> None:
    assert elapsed_text(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("45s", 45, id="seconds"),
        pytest.param("90m", 5400, id="minutes"),
        pytest.param("24h", 86_400, id="hours"),
        pytest.param("2d", 172_800, id="days"),
        pytest.param("1h30m", 5400, id="hours and minutes"),
        pytest.param("3600", 3600, id="plain seconds"),
        pytest.param("0s", 0, id="no time"),
    ],
)
def test_a_duration_is_seconds(text: str, seconds: int) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "1.5h", "20:00", "1e3", "h", "30m1h", "10y", "500ms", "99999999999s", "nan", "1 h", "٣s"],
)
def test_an_ambiguous_duration_is_refused(text: str) -> None:
    assert isinstance(duration_s(text), AmountRefusal)


def test_a_tick_is_shown_in_milliseconds() -> None:
    assert duration_ms("500ms") == 500
    assert duration_ms("1s") == 1000


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (90, "90s"), (5400, "90m"), (86_400, "24h"), (604_800, "7d"), (90_000, "25h")]
)
def test_a_duration_is_written_in_its_largest_unit(seconds: int, text: str) -> None:
    assert duration_text(seconds) == text


@given(st.integers(0, 10**8))
def test_a_duration_reads_back_as_itself(seconds: int) -> None:
    assert duration_s(duration_text(seconds)) == seconds


@pytest.mark.parametrize(("text", "mib"), [("512MiB", 512), ("1.5GiB", 1536), ("1TiB", 1 << 20), ("0.001GiB", 2)])
def test_memory_is_mib(text: str, mib: int) -> None:
    assert memory_mib(text) == mib


@pytest.mark.parametrize(
    ("asked", "model", "same"),
    [
        pytest.param("H100", "NVIDIA H100 80GB HBM3", True, id="the short name"),
        pytest.param("h100", "NVIDIA H100 80GB HBM3", True, id="in small letters"),
        pytest.param("H100 80GB", "NVIDIA H100 80GB HBM3", True, id="two words side by side"),
        pytest.param("A100-SXM4", "NVIDIA A100-SXM4-40GB", True, id="with the maker's hyphen"),
        pytest.param("A10", "NVIDIA A100-SXM4-40GB", False, id="A10 does not match A100"),
        pytest.param("L4", "NVIDIA L40S", False, id="L4 does not match L40S"),
        pytest.param("NVIDIA HBM3", "NVIDIA H100 80GB HBM3", False, id="words that are not side by side"),
        pytest.param("", "NVIDIA H100", False, id="an empty name matches nothing"),
    ],
)
def test_a_model_matches_by_its_words(asked: str, model: str, same: bool) -> None:
    assert matches_model(asked, model) is same
