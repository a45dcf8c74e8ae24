"""Traces that are malformed, contradictory or huge are refused, with the first place that is wrong."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_quota.simulate import tracefile
from jupyter_gpu_quota.simulate.tracefile import JobWork, NotebookWork, Trace
from tests.simulate.worlds import job, notebook

GOOD: dict[str, Any] = {"nodes": [{"name": "n", "gpus": 2}], "work": [job("a", 0, 10), notebook("b", 1, 5)]}


def with_work(**more: Any) -> dict[str, Any]:
    return {**GOOD, "work": [job("a", 0, 10), {**job("c", 1, 5), **more}]}


@pytest.mark.parametrize(
    ("document", "where"),
    [
        pytest.param(with_work(gpu=1.5), "work.1.gpu: ", id="a GPU and a half"),
        pytest.param(with_work(gpu=True), "work.1.gpu: true is not an amount", id="a truth value for GPUs"),
        pytest.param(with_work(submit_s=-1), "work.1.submit_s: -1 s is not between", id="before the beginning"),
        pytest.param(with_work(submit_s=0.0001), "work.1.submit_s: ", id="finer than a millisecond"),
        pytest.param(with_work(duration_s=0), "work.1.duration_s: 0 s is not a duration", id="no duration"),
        pytest.param(with_work(duration_s="5"), "work.1.duration_s: '5' is not a number", id="seconds as text"),
        pytest.param(with_work(priority=101), "work.1.priority: ", id="a priority above 100"),
        pytest.param(
            with_work(kind="inference"),
            "work.1: kind: 'inference' is none of 'training' and 'notebook'",
            id="an unknown kind",
        ),
        pytest.param({"work": [{"gpu": 1}]}, "work.0: it has no kind, and needs it", id="no kind"),
        pytest.param(with_work(gpus=3), "work.1.gpus: there is no such key", id="an unknown key"),
        pytest.param(with_work(id="a"), "work.1.id: the id a occurs twice", id="an id twice"),
        pytest.param(with_work(cancel_s=0.5), "work.1.cancel_s: it is cancelled before", id="cancelled before"),
        pytest.param({"nodes": []}, "work: it is required", id="no work"),
        pytest.param({**GOOD, "format": 2}, "format: 2 is none of 1", id="another format"),
        pytest.param({**GOOD, "begins_at": "2027-01-04"}, "begins_at: '2027-01-04' has no time zone", id="no zone"),
        pytest.param(
            {**GOOD, "begins_at": "0001-01-01T00:00:00+14:00"},
            "begins_at: '0001-01-01T00:00:00+14:00' is not from 2000",
            id="a beginning before every calendar",
        ),
        pytest.param({**GOOD, "begins_at": "9999-12-31T23:59:59Z"}, "begins_at: '9999-", id="a beginning at the end"),
        pytest.param(with_work(project="a/b"), "work.1.project: 'a/b' is not a name", id="a project with a slash"),
        pytest.param(with_work(project="a\0b"), "work.1.project: ", id="a project with a NUL"),
        pytest.param(with_work(pool="A:B"), "work.1.pool: 'A:B' is not a name", id="a pool with a colon"),
        pytest.param(with_work(user="\x1b[2J"), "work.1.user: ", id="a user name with control characters"),
        pytest.param({**GOOD, "nodes": GOOD["nodes"] * 2}, "nodes.1.name: the node n occurs twice", id="a node twice"),
        pytest.param(
            {**GOOD, "nodes": [{"name": name, "gpus": 50_000} for name in ("n", "m", "o", "p")]},
            "nodes.2.gpus: with this node there are more than 100000 GPUs",
            id="too many GPUs",
        ),
        pytest.param(
            {**GOOD, "events": [{"at_s": 1, "node": "m", "event": "lost"}]},
            "events.0.node: there is no node m",
            id="an event of no node",
        ),
        pytest.param(
            {**GOOD, "work": [notebook("b", 1, 5, gpu=2)]}, "work.0.gpu: a notebook's slice", id="a wide notebook"
        ),
        pytest.param(
            with_work(gpu="1g.18gb"),
            "work.1.gpu: '1g.18gb' is a MIG profile, and an instance of one is a device of its own: ask for 1",
            id="a MIG profile as an amount",
        ),
        pytest.param(
            with_work(gpu="8GiB"),
            "work.1.gpu: '8GiB' is not an amount of GPU in a trace; write one such as 0.5, 2 or '1/3'",
            id="memory, though no device is known by then",
        ),
        pytest.param(with_work(gpu="much"), "work.1.gpu: 'much' is not an amount of GPU in a trace; ", id="a word"),
        pytest.param(with_work(gpu="MIG 1g.10gb+me"), "work.1.gpu: 'MIG 1g.10gb+me' is a MIG profile", id="one more"),
        pytest.param(with_work(gpu_model="\x1b[2J"), "work.1.gpu_model: ", id="a model with control characters"),
        pytest.param([], "the document: ", id="a list"),
        pytest.param(
            {**GOOD, "work": [notebook("b", 1, 5, bursts_s=[[0, 1], [2], [3]])]},
            "work.0.bursts_s.1: it has fewer than 2 parts",
            id="a burst without an end",
        ),
    ],
)
def test_an_invalid_trace_is_refused_with_the_first_position(document: object, where: str) -> None:
    found = tracefile.read(json.dumps(document))
    assert isinstance(found, list) and found[0].startswith(where), found


@pytest.mark.parametrize("text", ["", "{", '{"work": NaN}', "[" * 100_000, "\x00", '{"work": [1e999]}'])
def test_invalid_json_is_refused(text: str) -> None:
    assert isinstance(tracefile.read(text), list)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param("", "line 1: a trace has no header", id="nothing"),
        pytest.param("kind,gpus\n", "line 1: a trace has no column 'gpus'", id="an unknown column"),
        pytest.param("kind,kind\n", "line 1: the column kind occurs twice", id="a column twice"),
        pytest.param("kind,gpu\ntraining,1,2\n", "line 2: 3 cells stand under 2 columns", id="a cell too many"),
        pytest.param(
            "kind,submit_s,project,gpu,duration_s\ntraining,0,a,1,5\n\ntraining,0,a,x,5\n",
            "line 4, gpu: ",
            id="an invalid line after an empty one",
        ),
        pytest.param(
            'kind,submit_s,project,gpu,duration_s\ntraining,0,"a\n",1,5\ntraining,-1,a,1,5\n',
            "line 4, submit_s: ",
            id="a cell over two lines before the error",
        ),
    ],
)
def test_an_invalid_csv_is_refused_with_the_line(text: str, where: str) -> None:
    found = tracefile.read_csv(text)
    assert isinstance(found, list) and found[0].startswith(where), found


def test_csv_and_json_give_the_same_trace() -> None:
    table = (
        "kind,id,submit_s,project,user,gpu,ranks,duration_s,priority,checkpoint_every_s,saves_in_s,preemptible\n"
        "training,a,0.5,7,ann,0.25,1,100,60,10,,true\n"
        "training,b,0,7,ann,1/3,2,100.125,,,,false\n"
        "notebook,c,3,7,ann,0.1,,60,,,,\n"
    )
    common = {"project": "7", "user": "ann"}
    work = [
        {"kind": "training", "id": "a", "submit_s": 0.5, "gpu": 0.25, "ranks": 1, "duration_s": 100, "priority": 60,
         "checkpoint_every_s": 10, "preemptible": True, **common},
        {"kind": "training", "id": "b", "submit_s": 0, "gpu": "1/3", "ranks": 2, "duration_s": 100.125,
         "preemptible": False, **common},
        {"kind": "notebook", "id": "c", "submit_s": 3, "gpu": 0.1, "duration_s": 60, **common},
    ]  # fmt: skip
    found = tracefile.read_csv(table)
    same = tracefile.read(json.dumps({"work": work}))
    assert isinstance(found, Trace) and isinstance(same, Trace) and found.model_dump() == same.model_dump()
    assert (found.position("b", "gpu"), same.position("b", "gpu")) == ("line 3, gpu", "work.1, gpu")
    first, second, third = found.work
    assert isinstance(first, JobWork) and (first.id, first.gpu_milli, first.duration_ms) == ("b", 333, 100_125)
    assert isinstance(second, JobWork) and second.checkpoint_every_ms == 10_000
    assert isinstance(third, NotebookWork) and third.gpu_milli == 100


def test_work_without_an_id_gets_an_unused_one() -> None:
    rows = [{**job("w1", 0, 5)}, *({k: v for k, v in job("", 1, 5).items() if k != "id"} for _ in range(3))]
    found = tracefile.read(json.dumps({"work": rows}))
    assert isinstance(found, Trace) and [work.id for work in found.work] == ["w1", "w0", "w2", "w3"]


def test_the_schema_is_of_the_documents_that_are_read() -> None:
    schema = tracefile.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(GOOD, schema)
    for wrong in (with_work(priority=101), with_work(gpus=3), with_work(submit_s="0"), {"nodes": []}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_schema_default_of_a_missing_key_may_be_written() -> None:
    schema = tracefile.schema()
    found = {"begins_at": schema["properties"]["begins_at"]["default"]}
    use = schema["$defs"]["JobWork"]["properties"]["use_percent"]["default"]
    written, left_out = tracefile.checked({**with_work(use_percent=use), **found}), tracefile.checked(with_work())
    assert isinstance(written, tracefile.Trace) and written == left_out


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "gpu", "kind", "x"]), inner),
    max_leaves=5,
)


@given(key=st.sampled_from([*sorted(job("a", 0, 1)), "ranks", "cancel_s", "time_limit_s"]), value=values)
def test_the_reader_never_raises(key: str, value: Any) -> None:
    found = tracefile.read(json.dumps(with_work(**{key: value})))
    assert isinstance(found, Trace) or (found and all(isinstance(sentence, str) for sentence in found))


@given(text=st.text(alphabet="kindtraiog,\n\"'0123456789.-/e ", max_size=60))
def test_the_table_reader_never_raises(text: str) -> None:
    for table in (text, "kind,submit_s,project,gpu,duration_s\n" + text):
        found = tracefile.read_csv(table)
        assert isinstance(found, Trace) or (found and all(isinstance(sentence, str) for sentence in found))


# --- large ones that are wrong ------------------------------------------------------------------------------------
HEAD = "kind,submit_s,project,gpu,duration_s\n"


def counted(name: str, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a function of the reader is called with from now on."""
    calls: list[object] = []
    real = getattr(tracefile, name)

    def noted(*given: object) -> object:
        calls.append(given)
        return real(*given)

    monkeypatch.setattr(tracefile, name, noted)
    return calls


def test_the_csv_reader_makes_one_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = json.JSONDecoder
    monkeypatch.setattr(json, "JSONDecoder", lambda **options: made.append(options) or real(**options))
    assert isinstance(tracefile.read_csv(HEAD + "training,0,a,1,60\n" * 100), Trace)
    assert made == []


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_large_trace_is_checked_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    amounts = counted("gpu_amount", monkeypatch)
    work = [{"kind": "training", "submit_s": at, "project": "a", "gpu": 1, "duration_s": 60} for at in range(3500)]
    table = "".join(f"training,{at},a,1,60\n" for at in range(3500))
    found = tracefile.read(json.dumps({"work": work})) if kind == "json" else tracefile.read_csv(HEAD + table)
    assert isinstance(found, Trace) and len(found.work) == 3500
    assert len(amounts) == 3500
