"""Every reason is a record that is stored, read back and said as a sentence, with each of its figures or with few."""

from __future__ import annotations

import json
import re
from string import Formatter

import pytest
from pydantic import TypeAdapter

from jupyter_gpu_quota.core.amounts import gpu_text
from jupyter_gpu_quota.core.canonical import canonical
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import (
    OLD_CODES,
    OLD_FIGURES,
    code_of,
    figure_pairs,
    figure_types,
    figures_of,
    needed_figures,
    reason_from,
)
from jupyter_gpu_quota.core.reasons import (
    RECORDS,
    EnforcementTooWeak,
    OtherReason,
    OverShare,
    Reason,
    StoppedIdle,
    WaitsForDrain,
)
from jupyter_gpu_quota.messages.reason_sentences import SENTENCES
from jupyter_gpu_quota.messages.reasons import sentence, short_sentence, warning
from jupyter_gpu_quota.store.database.codecs import REASON
from jupyter_gpu_quota.wire import ReasonView
from jupyter_gpu_quota.wire.reason_schema import reasons_schema

ADDED = {"starts", "is", "are", "until", "failed_rank", "exit", "hint", "why_not"}
"""What a sentence may name beside the figures of its record."""

EXAMPLES = {int: 1500, str: "x", tuple: ("x", "y")}


def example(code: ReasonCode, *, whole: bool = True) -> Reason:
    """A reason with all figures that it can have, or with those alone that it must have."""
    kind = RECORDS[code]
    names = figure_types(kind) if whole else needed_figures(kind)
    return kind(**{name: EXAMPLES[figure_types(kind)[name]] for name in names})  # type: ignore[arg-type, return-value]


EVERY = [*ReasonCode]


@pytest.mark.parametrize("code", EVERY)
def test_a_sentence_names_only_figures_of_its_record(code: ReasonCode) -> None:
    full, short = SENTENCES[code]
    named = {name for _, name, _, _ in Formatter().parse(full) if name}
    assert named <= figure_types(RECORDS[code]).keys() | ADDED
    assert {name for _, name, _, _ in Formatter().parse(short) if name} <= ADDED


@pytest.mark.parametrize("code", EVERY)
def test_a_sentence_has_each_figure_in_its_unit(code: ReasonCode) -> None:
    units = {name: spec for words in SENTENCES[code] for _, name, spec, _ in Formatter().parse(words) if name}
    for name, spec in units.items():
        assert spec == ("gpu" if name.endswith("_milli") else "time" if name.endswith("_s") else spec), name


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("code", EVERY)
def test_every_reason_is_a_sentence(code: ReasonCode, whole: bool) -> None:
    for said in (sentence(example(code, whole=whole)), sentence(example(code, whole=whole), began=True, ended=True)):
        assert said.endswith(".") and said[0].isupper() | (said[0] == "x") | said[0].isdigit()
        assert not re.search(r"[{}]|None|\b1500 GPU\b|\s\s", said), said


@pytest.mark.parametrize("code", EVERY)
def test_a_stored_reason_without_its_figures_is_a_short_sentence(code: ReasonCode) -> None:
    assert sentence(OtherReason(code=code)).endswith(".")
    short = short_sentence(code)
    assert short is not None and not re.search(r"[{}]", short), short


@pytest.mark.parametrize(("pauses", "says"), [(1, "is 1 pause within 1 day"), (4, "is 4 pauses within 1 day")])
def test_one_pause_is_no_plural(pauses: int, says: str) -> None:
    figures = {"project": "a", "asked_milli": 1000, "used_milli": 0, "guarantee_milli": 1000, "fair_milli": 1000}
    reason = reason_from("pauses_used_up", [*figures.items(), ("max_pauses", pauses), ("per_s", 86_400)])
    assert says in sentence(reason)


def test_a_code_of_another_release_is_shown_unchanged() -> None:
    reason = reason_from("from_the_future", [("x_milli", 5)])
    assert reason == OtherReason(code="from_the_future", figures=(("x_milli", 5),))
    assert "from_the_future" in sentence(reason)


# --- stored and read ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("code", EVERY)
def test_a_reason_is_stored_as_code_and_figures_and_read_back_the_same(code: ReasonCode, whole: bool) -> None:
    reason = example(code, whole=whole)
    text = REASON.encode(reason)
    assert text is not None and text.encode() == canonical(reason)
    assert json.loads(text) == {"code": code.value, "figures": [list(each) for each in figure_pairs(reason)]}
    assert REASON.decode(text) == reason


@pytest.mark.parametrize(("old", "new"), OLD_CODES.items())
def test_an_old_code_is_read_and_written_by_its_new_name(old: str, new: ReasonCode) -> None:
    pairs = figure_pairs(example(new))
    found = REASON.decode(json.dumps({"code": old, "figures": pairs}))
    assert found == example(new)
    written = REASON.encode(found)
    assert written is not None and f'"{new}"' in written and f'"{old}"' not in written


def test_no_code_and_no_figure_has_an_old_name() -> None:
    assert not OLD_CODES.keys() & set(EVERY)
    assert not OLD_FIGURES.keys() & {name for kind in RECORDS.values() for name in figure_types(kind)}


@pytest.mark.parametrize(("old", "new"), OLD_FIGURES.items())
def test_an_old_figure_is_read_by_its_new_name(old: str, new: str) -> None:
    with_it = [example(code) for code in EVERY if new in dict(figure_pairs(example(code)))]
    for reason in with_it:
        pairs = [(old if name == new else name, value) for name, value in figure_pairs(reason)]
        assert reason_from(code_of(reason), pairs) == reason
    assert with_it


@pytest.mark.parametrize(
    "figures",
    [
        pytest.param([("used_milli", 1)], id="one lacks"),
        pytest.param([("freed_s", 1), ("else_s", 2)], id="one is unknown"),
        pytest.param([("freed_s", "1")], id="one is of another type"),
        pytest.param([("freed_s", 1), ("freed_s", 2)], id="one occurs twice"),
    ],
)
def test_stored_reasons_round_trip(figures: list[tuple[str, int | str]]) -> None:
    found = reason_from("stopped_idle", figures)
    assert (found.code, figure_pairs(found)) == (ReasonCode.STOPPED_IDLE, tuple(figures))
    assert sentence(found).startswith("The service stopped th")


def test_several_values_of_a_figure_are_pairs_in_the_store_and_one_text_elsewhere() -> None:
    reason = WaitsForDrain(project="a", asked_milli=1000, leaving=0, grace_s=1, took_over_from=("b1", "b2"))
    assert figure_pairs(reason)[-2:] == (("took_over_from", "b1"), ("took_over_from", "b2"))
    assert figures_of(reason)["took_over_from"] == "b1, b2"


# --- what a client sees ---------------------------------------------------------------------------------------------
def test_the_schema_has_an_alternative_for_each_code_with_its_figures() -> None:
    *known, other = reasons_schema()["oneOf"]  # type: ignore[misc, has-type]
    found = {one["properties"]["code"]["const"]: one["properties"]["figures"] for one in known}
    assert sorted(found) == sorted(EVERY) and other["properties"]["code"] == {"type": "string"}
    for code, figures in found.items():
        shown = figures_of(example(ReasonCode(code)))
        assert list(figures["properties"]) == list(shown)
        types = {int: "integer", str: "string"}
        assert all(figures["properties"][name] == {"type": types[type(value)]} for name, value in shown.items())
        assert set(figures["required"]) == figures_of(example(ReasonCode(code), whole=False)).keys()


def test_openapi_describes_a_reason_by_that_schema() -> None:
    assert TypeAdapter(ReasonView).json_schema()["oneOf"] == reasons_schema()["oneOf"]


# --- amounts and times ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("milli", "shown"), [(0, "0"), (125, "0.125"), (500, "0.5"), (4000, "4"), (-250, "-0.25")])
def test_amounts_have_no_trailing_zeros(milli: int, shown: str) -> None:
    assert gpu_text(milli) == shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (60, "60 s"),
        (90, "90 s"),
        (600, "10 minutes"),
        (3600, "1 hour"),
        (7200, "2 hours"),
        (7201, "2 hours 1 s"),
        (86_382, "23 hours 59 minutes 42 s"),
        (5400, "1 hour 30 minutes"),
    ],
)
def test_a_time_is_never_rounded(seconds: int, said: str) -> None:
    assert f"was freed as unused {said} before" in sentence(StoppedIdle(freed_s=seconds))


def test_a_warning_describes_the_fault_of_a_share() -> None:
    over = OverShare(used_mib=9, device="d0", share_mib=8, stop_at=1)
    assert warning(over) == "It uses 9 MiB of device d0, and its share is 8 MiB."
    weak = EnforcementTooWeak(
        device="d0", memory="none", compute="none", least_memory="policed", least_compute="none", stop_at=1
    )
    assert warning(weak) == (
        "Its share of device d0 is enforced at memory none, compute none; the quota file requires at least memory "
        "policed, compute none."
    )
    assert code_of(weak) == "enforcement_too_weak"
