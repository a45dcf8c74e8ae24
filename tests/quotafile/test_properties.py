"""Any text: parsing never raises, and an accepted file is written so that it reads back as the same."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.quotafile import QuotaError, QuotaFile

AMBIGUOUS = [
    "NO",
    "yes",
    "y",
    "1",
    "007",
    "1_000",
    "0x1F",
    "0o17",
    "1e9",
    "null",
    "true",
    "2027-01-31",
    "a b",
    "1.5",
    "0b1",
]
LETTERS = "abcXYZ0189._ @+-"

names = st.sampled_from(AMBIGUOUS) | st.builds(
    lambda first, rest: (first + rest).rstrip(), st.sampled_from("abcXYZ0189"), st.text(LETTERS, max_size=8)
)
people = st.sampled_from(
    [*AMBIGUOUS, "a: b", "- x", "# c", "'", '"', "ä", "*a", "&a", "!a", "[", "{x}", " a ", "20:00", "~", "é\u3042"]
)
amounts = st.integers(0, 3_000).map(lambda milli: milli // 1000 if milli % 1000 == 0 else f"{milli / 1000:.3f}")
durations = st.builds(lambda n, unit: f"{n}{unit}", st.integers(1, 3000), st.sampled_from(["s", "m", "h", "d"]))


def some(**fields: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """A section with any of these keys."""
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, object]:
    """A document that the reader accepts."""
    pools = draw(st.lists(names, unique_by=str.casefold, max_size=4))
    quota = st.dictionaries(st.sampled_from(pools), quotas(), max_size=4) if pools else st.just({})
    defaults = some(time_limit=durations, pool=some(training=st.sampled_from(pools)) if pools else st.just({}))
    people_of = st.lists(people, max_size=3)
    member = some(users=people_of, groups=people_of, leads=people_of)
    project = st.builds(
        lambda rest, amounts: {"quota": amounts, **rest},
        some(priority=st.integers(0, 100), members=member, defaults=defaults),
        quota,
    )
    projects = [{"name": name, **draw(project)} for name in draw(st.lists(names, unique_by=str.casefold, max_size=4))]
    optional = draw(some(policy=policies()))
    if projects and pools and draw(st.booleans()):
        optional["calendar"] = [
            {"name": name, **draw(entries(pools, [str(project["name"]) for project in projects]))}
            for name in draw(st.lists(names, unique_by=str.casefold, max_size=3))
        ]
    if projects and draw(st.booleans()):
        departments = draw(st.lists(names, unique_by=str.casefold, min_size=1, max_size=3))
        roomy: dict[str, object] = {pool: {"notebook": 12, "training": "12.5"} for pool in pools}
        optional["departments"] = [{"name": name, "quota": roomy} for name in departments]
        projects = [{**project, "department": draw(st.sampled_from(departments))} for project in projects]
    selectors = st.lists(people, min_size=1, max_size=3)
    return {
        "version": 1,
        "pools": [{"name": name, "selector": draw(some(node=selectors)) or {"gpu_model": ["x"]}} for name in pools],
        "projects": projects,
        **optional,
    }


@st.composite
def entries(draw: st.DrawFn, pools: list[str], projects: list[str]) -> dict[str, object]:
    """An entry of the calendar, without its name."""
    when: dict[str, object] = draw(
        some(
            days=st.lists(st.sampled_from(["mon", "fri", "sun"]), min_size=1, max_size=3),
            dates=st.lists(st.sampled_from(["2027-01-11", "2027-01-11/2027-01-29"]), min_size=1, max_size=2),
            holidays=st.sampled_from(["DE", "GB-ENG", "NO"]),
            except_holidays=st.sampled_from(["DE", "GB-ENG", "NO"]),
        )
    )
    when["timezone"] = draw(st.sampled_from(["Europe/London", "UTC", "America/New_York"]))
    if draw(st.booleans()):
        when |= {"from": draw(times_of_day), "to": draw(times_of_day)}
    change = draw(some(notebook=amounts, limit=amounts, weight=st.integers(0, 9), per_user=some(jobs=amounts)))
    owner, pool = draw(st.sampled_from(projects)), draw(st.sampled_from(pools))
    return {"when": when, "projects": {owner: {pool: {"training": draw(amounts), **change}}}}


times_of_day = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59))


@st.composite
def quotas(draw: st.DrawFn) -> dict[str, object]:
    each = some(notebook=amounts, jobs=amounts | st.none())
    section = draw(some(notebook=amounts, training=amounts, weight=st.integers(0, 100), per_user=each))
    return section | draw(some(limit=st.integers(6, 100)))


def policies() -> st.SearchStrategy[dict[str, object]]:
    return some(
        preemption=some(min_runtime=durations, grace=durations, max_pauses=st.integers(0, 9)),
        idle=some(mode=st.just("report"), warn_for=durations, keep_at_most=st.integers(0, 9)),
        history=some(
            k=st.integers(0, 10_000).map(lambda milli: f"{milli / 1000:.3f}" if milli % 1000 else milli // 1000),
            half_life=durations,
            window=durations,
        ),
        within_project=st.sampled_from(["users_in_turn", "first_come"]),
        patience=durations,
        tick_max=st.sampled_from(["10ms", "1s", "999ms"]),
    )


@settings(deadline=None, max_examples=150)
@given(documents(), st.integers(0, 10**9))
def test_a_document_that_is_written_and_exported_reads_back(document: dict[str, object], revision: int) -> None:
    file = QuotaFile.from_document(document)
    text = quotafile.export(json.dumps(file.to_document()), revision)
    again = quotafile.parse(text)
    assert isinstance(again, QuotaFile), (text, again)
    assert again.revision == revision
    assert again.to_document() == file.to_document()
    assert again.policy(1) == file.policy(1)
    assert again.policy(1, NOW) == file.policy(1, NOW)
    assert QuotaFile.from_document(json.loads(json.dumps(file.to_document()))).policy(1) == file.policy(1)


NOW = 1_800_000_000_000

FRAGMENTS = [
    "version: 1\n",
    "pools:",
    "projects:",
    " - {name: a}\n",
    "- name: p\n",
    "  quota: {a: {training: 0.5}}\n",
    "policy: ",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\n",
    "  ",
    "\t",
    "- ",
    "&a ",
    "*a",
    "!!int ",
    "'",
    '"',
    "|",
    ">",
    "? ",
    "# c\n",
    "---\n",
    "...",
    "%YAML 1.1\n",
    "20:00",
    "NO",
    "0.1",
    "\r",
    "\u0085",
    "\u2028",
    "\ufeff",
    "\x00",
    "\ud800",
    "é",
    "<<: ",
    "=",
    "1e9",
]


@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from(["", "version: 1\npools: []\nprojects: []\n"]),
    st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=30).map("".join),
)
def test_no_text_makes_the_reader_raise(begin: str, rest: str) -> None:
    text = begin + rest
    found = quotafile.parse(text)
    if isinstance(found, list):
        assert found
        assert all(isinstance(error, QuotaError) and error.message for error in found)
        assert all(1 <= error.line <= len(text.splitlines()) + 1 for error in found)
    else:
        assert isinstance(quotafile.parse(quotafile.export(text, 5)), QuotaFile)


SEED = """\
version: 1
pools: [{name: a, selector: {gpu_model: [H100]}}]
projects:
  - name: p
    members: {users: [ann]}
    department: d
    quota: {a: {training: 2, notebook: 0.5, limit: 6, per_user: {jobs: 1}}}
    defaults: {time_limit: 24h}
policy: {history: {k: 0.5}, tick_max: 1s}
departments: [{name: d, quota: {a: {training: 2, notebook: 0.5}}}]
calendar:
  - name: nights
    when: {from: "20:00", to: "06:00", days: [mon], dates: ["2027-01-11/2027-01-29"], timezone: UTC, holidays: DE}
    projects: {p: {a: {training: 1}}}
"""


@settings(deadline=None, max_examples=400)
@given(st.integers(0, len(SEED)), st.integers(0, 30), st.sampled_from(FRAGMENTS) | st.text(max_size=3))
def test_no_typing_error_makes_the_reader_raise(at: int, cut: int, inserted: str) -> None:
    text = SEED[:at] + inserted + SEED[at + cut :]
    found = quotafile.parse(text)
    if isinstance(found, QuotaFile):
        exported = quotafile.parse(quotafile.export(text, 5))
        assert isinstance(exported, QuotaFile)
        assert exported.revision == 5
        assert exported.to_document() == found.to_document()
