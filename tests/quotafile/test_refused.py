"""Invalid quota files are refused with the line of each error and with advice."""

from __future__ import annotations

import pytest

from tests.quotafile.texts import LEAST, project, read, refused


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("", 1, "is empty", id="an empty file"),
        pytest.param("# nothing\n", 1, "is empty", id="a file of comments"),
        pytest.param("- 1", 1, "keys and values", id="a list"),
        pytest.param(
            "policy: {enforcement: driver}",
            1,
            "'driver' was given; keys and values are expected (memory, compute)",
            id="one word where a section has keys names the keys",
        ),
        pytest.param("version: 1\npools: []", 1, "has no projects", id="a required section is missing"),
        pytest.param(LEAST.replace("1", "2"), 1, "version: 1", id="a version of the future"),
        pytest.param(LEAST.replace("1", "true"), 1, "version: 1", id="a version that is not a number"),
        pytest.param(LEAST.replace("1", "'1'", 1), 1, "'1' is not a version", id="a version in quotes"),
        pytest.param(LEAST + "polcy: {}", 4, "did you mean 'policy'?", id="an unknown key names the nearest"),
        pytest.param(LEAST + "xyzzy: {}", 4, "it knows version, revision, pools", id="an unknown key near nothing"),
        pytest.param(LEAST + "version: 1", 4, "occurs twice", id="a key that occurs twice"),
        pytest.param(LEAST + "pools: []", 4, "occurs twice", id="a section that occurs twice"),
        pytest.param(project("quotas: {}"), 5, "did you mean 'quota'?", id="a misspelt key of a project"),
        pytest.param(
            project("quota:\n  a:\n    trainig: 1"), 7, "did you mean 'training'?", id="a misspelt key deep inside"
        ),
        pytest.param(project("priority: 5"), 4, "projects.p has no quota", id="a project without quota"),
        pytest.param(project("quota:\n  a:\n    training: 0.0005"), 7, "up to three", id="half a milli"),
        pytest.param(project("quota:\n  a:\n    training: -1"), 7, "below zero", id="a negative amount"),
        pytest.param(project("quota:\n  a:\n    training: .nan"), 7, "not an amount", id="not a number"),
        pytest.param(project("quota:\n  a:\n    training: .inf"), 7, "not an amount", id="infinity"),
        pytest.param(project("quota:\n  a:\n    training: 1e9"), 7, "not an amount", id="an exponent"),
        pytest.param(project("quota:\n  a:\n    training: 1000000000"), 7, "more than", id="a thousand million"),
        pytest.param(
            project("quota:\n  a:\n    training: [1]"),
            7,
            "a list was given instead of an amount",
            id="a list for an amount",
        ),
        pytest.param(
            project("quota:\n  a:\n    training: null"), 7, "instead of an amount", id="nothing for an amount"
        ),
        pytest.param(
            project("quota:\n  a:\n    training: true"), 7, "instead of an amount", id="a truth value for an amount"
        ),
        pytest.param(
            "version: 1\npools:\n- {name: w, selector: {cluster: west}}\nprojects: []",
            3,
            "notebooks run in the hub's own cluster; write uses: [training]",
            id="notebooks in a further cluster",
        ),
        pytest.param(
            "version: 1\npools:\n- {name: a, selector: {cluster: west}, uses: [training]}\n"
            "- {name: b, selector: {cluster: west, node: [n1]}, uses: [training]}\nprojects: []",
            4,
            "pool b could never have a device: a is before it",
            id="a pool behind all of its cluster",
        ),
        pytest.param(project("quota:\n  a:\n    training: 1/3"), 7, "a decimal, such as 0.333", id="a third of a GPU"),
        pytest.param(project("quota:\n  a:\n    training: 8GiB"), 7, "such as 2 or 0.5", id="memory for an amount"),
        pytest.param(
            project("quota: {}\nmaximum: {time_limit: 2h}\ndefaults: {time_limit: 3h}"),
            7,
            "project p: the default time limit of 3h is above its maximum of 2h",
            id="a default above the maximum",
        ),
        pytest.param(
            project("quota: {}\ndefaults: {time_limit: [1]}"),
            6,
            "instead of a duration; write one such as 90m",
            id="a list of time",
        ),
        pytest.param(project("quota:\n  a:\n    weight: 1.5"), 7, "3 and 2", id="a fractional weight"),
        pytest.param(
            project("quota:\n  a:\n    weight: -1"), 7, "-1 is less than 0, the minimum", id="a negative weight"
        ),
        pytest.param(
            project("priority: 101\nquota: {}"), 5, "101 is more than 100, the maximum", id="a priority above 100"
        ),
        pytest.param(project("priority: '50'\nquota: {}"), 5, "not a whole number", id="a priority in quotes"),
        pytest.param(project("quota:\n  b: {}"), 6, "no pool b", id="quota in a pool that is not there"),
        pytest.param(
            project("quota:\n  a:\n    notebook: 1\n    training: 2\n    limit: 2.999"),
            9,
            "1 + 2 = 3",
            id="a limit below the quotas",
        ),
        pytest.param(
            project("quota: {}\ndefaults: {time_limit: 20:00}"),
            6,
            "20:00 without quotes is 1200 for many YAML readers, in base 60",
            id="a time that YAML counts in sixties",
        ),
        pytest.param(
            project('quota: {}\ndefaults: {time_limit: "20:00"}'),
            6,
            "not a duration",
            id="a time of day is no duration",
        ),
        pytest.param(project("quota: {}\ndefaults: {time_limit: 0s}"), 6, "would end every job", id="no time at all"),
        pytest.param(
            project("quota: {}\ndefaults: {environment: x}"),
            6,
            "no environment x",
            id="an environment that is not there",
        ),
        pytest.param(
            project("quota: {}\ndefaults: {pool: {training: b}}"), 6, "no pool b", id="a default pool that is not there"
        ),
        pytest.param(project("quota: {}\nmembers: {users: [NO]}"), 6, 'write "NO"', id="a user called NO"),
        pytest.param(project("quota: {}\nmembers: {users: [y]}"), 6, 'write "y"', id="a user called y"),
        pytest.param(project("quota: {}\nmembers: {users: [true]}"), 6, "put quotes", id="a user called true"),
        pytest.param(project("quota: {}\nmembers: {users: [12]}"), 6, "put quotes", id="a user called 12"),
        pytest.param(project("quota: {}\nmembers: {users: [1_2]}"), 6, '"1_2"', id="a user called 1_2"),
        pytest.param(
            project("quota: {}\nmembers: {users: ann}"), 6, "a list is expected", id="one user without a list"
        ),
        pytest.param(LEAST.replace("[]\n", "[{name: NO}]\n", 1), 2, 'write "NO"', id="a pool called NO"),
        pytest.param(LEAST.replace("[]\n", "[{name: a/b}]\n", 1), 2, "is not a name", id="a pool with a slash"),
        pytest.param(
            LEAST.replace("[]\n", "[{name: a}, {name: a}]\n", 1), 2, "occurs twice", id="two pools of one name"
        ),
        pytest.param(
            LEAST.replace("[]\n", "[{name: a}, {name: A}]\n", 1), 2, "A and a differ only in case", id="a and A"
        ),
        pytest.param(
            LEAST.replace("[]\n", '[{name: "a "}]\n', 1), 2, "a space within", id="a name that ends with a space"
        ),
        pytest.param(
            LEAST.replace("[]\n", "[{name: a}, {name: b}]\n", 1),
            2,
            "never have a device",
            id="a pool behind one that takes all",
        ),
        pytest.param(LEAST.replace("[]\n", "[{name: a, uses: [train]}]\n", 1), 2, "none of", id="a use that is none"),
        pytest.param(LEAST + "policy: {tick_max: 2s}", 4, "1s at most", id="a tick above a second"),
        pytest.param(LEAST + "policy: {within_project: fair}", 4, "none of", id="an order that is none"),
        pytest.param(LEAST + "policy: {patience: 0}", 4, "no job could overtake another", id="no patience"),
        pytest.param(LEAST + "policy: {patience: never}", 4, "duration", id="a patience without an end"),
        pytest.param(
            LEAST + "policy: {patience: {a: 1}}",
            4,
            "policy.patience: a mapping was given instead of a duration; write one such as 90m, 1h30m or 24h",
            id="a mapping for a patience",
        ),
        pytest.param(
            LEAST + "policy: {patience: 1:30}",
            4,
            "1:30 without quotes is 90 for many YAML readers, in base 60; write a duration with its units",
            id="hours and minutes without units",
        ),
        pytest.param(LEAST + "policy: {patience: 1:30.5}", 4, "is a number for", id="minutes with a fraction"),
        pytest.param(LEAST + "revision: -1", 4, "-1 is less than 0, the minimum", id="a negative revision"),
        pytest.param("a: &x 1\nb: *x", 1, "anchors", id="an anchor"),
        pytest.param("a: !!python/object:os.system x", 1, "tags", id="a tag"),
        pytest.param("a: !!float 1", 1, "tags", id="even a harmless tag"),
        pytest.param("version: 1\n---\nversion: 1", 3, "second document", id="two documents"),
        pytest.param("a: b: c", 1, "not YAML", id="no YAML"),
        pytest.param("a:\n\tb: 1", 2, "a tab indents this line", id="a tab"),
        pytest.param("a:\n  - b: 1\n   c: 2", 3, "look whether its indentation, 3, is right", id="one space too few"),
        pytest.param("a:\n  - b: 1\n     c: 2", 3, "look whether its indentation, 5, is right", id="one too many"),
        pytest.param("pools: big: x", 1, "a line has one key with ': '", id="two keys on one line"),
        pytest.param("a: {b: [1, 2}\nc: 1", 1, "a bracket that opens in this line is not closed", id="an open bracket"),
        pytest.param("a: 1\nb: [1,\n  2\nc: 3", 2, "or a comma is missing by line 4", id="a bracket of two lines"),
        pytest.param("version: 1\npools: [\n", 2, "missing by line 2", id="a bracket alone"),
        pytest.param("version: 1\npools: [a,\n", 2, "a bracket that opens in this line is not closed", id="a list"),
        pytest.param("version: 1\npools: {name: a,\n", 2, "a bracket that opens in this line", id="a mapping"),
        pytest.param(
            "version: 1\npools: {name: a\n", 2, "missing by line 2", id="the last line is the one that exists"
        ),
        pytest.param("a: [1,\n  {b: '[',\n  # [\n", 2, "a bracket that opens in this line", id="the last open bracket"),
        pytest.param("a: [1,\n  {b: []},\n", 1, "a bracket that opens in this line", id="closed brackets between"),
        pytest.param("a: 1\nb\nc: 3", 2, "a key in this line has no ': '", id="a key without a colon"),
        pytest.param("a: 1\nb: 'x\nc: 3", 2, "a quote that opens in this line is not closed", id="an open quote"),
        pytest.param("a: b\n\x00", 2, "U+0000", id="a null character"),
        pytest.param("a: \ud800", 1, "U+D800", id="half a character"),
        pytest.param("? [a]\n: b", 1, "a key must be a scalar", id="a list as a key"),
        pytest.param(
            project(f"priority: {'9' * 30}\nquota: {{}}"),
            5,
            "9999999999... (of 30 digits) is more than 100, the maximum",
            id="a number of thirty digits",
        ),
        pytest.param(project("quota: {}\nmembers: {users: ['a\tb']}"), 6, "control character", id="a user with a tab"),
    ],
)
def test_a_file_is_refused_at_its_line(text: str, line: int, words: str) -> None:
    found = refused(text)
    assert any(at == line and words in message for at, message in found), found


def test_a_comma_too_many_is_no_missing_comma() -> None:
    ((line, message),) = refused("a: [1,\n  , 2]")
    assert line == 2 and "comma is missing" not in message


@pytest.mark.parametrize("text", ["a: [1, }", "a: [b,, c]", "a: [ - b\n]"])
def test_another_error_inside_brackets_is_no_open_bracket(text: str) -> None:
    ((line, message),) = refused(text)
    assert line == 1 and "not closed" not in message


def test_an_unsupported_enforcement_is_refused_by_name() -> None:
    ((line, message),) = refused(LEAST + "policy: {idle: {maximum_lease: 8h}}")
    assert line == 4 and "maximum_lease cannot be enforced" in message


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        pytest.param("", "runs nothing", id="neither an image nor an interpreter"),
        pytest.param("image: 'registry/torch: 2'", "image", id="an image with a space"),
        pytest.param("image: ''", "image", id="an empty image"),
        pytest.param("python: bin/python", "python", id="a relative path"),
    ],
)
def test_a_wrong_environment_is_refused(keys: str, words: str) -> None:
    found = refused(LEAST + f"environments: [{{name: a, {keys}}}]")
    assert any(words in message for _, message in found), found


@pytest.mark.parametrize("level", ["hardware", "driver", "mps", "policed", "cooperative", "none"])
def test_the_weakest_enforcement_that_is_accepted(level: str) -> None:
    least = read(LEAST + f"policy: {{enforcement: {{memory: {level}, compute: none}}}}").least
    assert (least.memory, least.compute) == (level, "none")
    assert least.stops_over_share == (level in ("hardware", "driver", "mps", "policed"))


def test_an_enforcement_of_no_such_name_is_refused() -> None:
    assert refused(LEAST + "policy: {enforcement: {memory: strong}}")


def test_the_example_of_the_contract_is_read() -> None:
    assert [each.image for each in read(CONTRACT).environments] == ["registry/torch:2"]


CONTRACT = """\
version: 1
pools:
  - {name: big, selector: {gpu_model: [H100, A100]}, uses: [training, inference]}
  - {name: small, uses: [notebook, inference], cost_per_gpu_hour: {amount: 0.4, currency: EUR}}
departments:
  - {name: risk, priority: 50, quota: {big: {training: 8, limit: 12, weight: 1}, small: {notebook: 2, training: 1}}}
projects:
  - name: fraud
    department: risk
    quota:
      big:   {training: 2, limit: 6, weight: 2, per_user: {jobs: 4}}
    storage: {outputs: 50GiB, keep: 30d}
environments:
  - {name: torch-2, image: "registry/torch:2", python: /opt/torch-2/bin/python, projects: [fraud]}
data:
  - {name: transactions, path: /data/transactions, mount: /data/transactions, read_only: true, groups: [fraud-ds],
     until: 2027-01-31}
calendar:
  - name: nights
    when: {from: "20:00", to: "06:00", days: [mon, tue], timezone: Europe/London, except_holidays: GB-ENG}
    projects: {fraud: {big: {training: 6}}}
"""


def test_all_errors_are_reported_together_in_the_order_of_lines() -> None:
    found = refused(project("priority: high\nquota: {a: {weight: 1.5, trainng: 2}}\nmembers: {users: [NO]}") + "\nx: 1")
    assert [line for line, _ in found] == [5, 6, 6, 7, 8]


CONTROLS = "\\e]0;x\\a\\nq\\u202e"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f'version: "{CONTROLS}"\npools: []\nprojects: []', id="a version"),
        pytest.param(f'version: 1\npools: [{{name: "{CONTROLS}"}}]\nprojects: []', id="a name"),
        pytest.param(f'version: 1\npools: [{{"{CONTROLS}": 1}}]\nprojects: []', id="a key"),
        pytest.param(f'version: 1\npools: []\nprojects: []\npolicy: {{drain_by: "{CONTROLS}"}}', id="an instant"),
    ],
)
def test_an_error_repeats_no_control_characters(text: str) -> None:
    errors = refused(text)
    assert errors and all(message.isprintable() for _, message in errors)
