"""The GPU part of the spawn form, and what people send through it or past it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from jupyter_gpu_quota.hub.form import BadOptions, Options, options_of_form, read_options, render, sizes
from jupyter_gpu_quota.wire import ChoiceView


def choice(quota: int, used: int = 0, *, project: str = "fraud", memory: int | None = 81_920) -> ChoiceView:
    return ChoiceView(
        project=project,
        pool="build",
        quota_milli=quota,
        used_milli=used,
        device_model="Simulated 80G",
        device_memory_mib=memory,
    )


def test_a_size_above_the_user_ceiling_is_disabled_with_the_reason() -> None:
    html = render([choice(500).model_copy(update={"user_left_milli": 250})], default="1/2")
    form = Form(html)
    assert form.disabled == ["fraud:build:1/2"] and form.checked == ["cpu"]
    assert "0 of 0.5 GPU in use; the ceiling for each user leaves you 0.25 GPU" in html


class Form(HTMLParser):
    """The radio buttons of a form: value, whether it is checked, whether it can be chosen; and what is labelled."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.values: list[str] = []
        self.checked: list[str] = []
        self.disabled: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.described: list[str] = []
        self.tags: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "label":
            self.labels.append(given["for"])
        if tag == "input":
            self.values.append(given["value"])
            self.described.append(given["aria-describedby"])
            self.checked += [given["value"]] if "checked" in given else []
            self.disabled += [given["value"]] if "disabled" in given else []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, Options(), id="nothing chosen is a server without a GPU"),
        pytest.param({"gpu_size": "cpu", "gpu_project": "fraud"}, Options(project="fraud"), id="cpu keeps the project"),
        pytest.param({"gpu_size": "0"}, Options(), id="zero is no GPU"),
        pytest.param({"gpu_size": None}, Options(), id="null is no GPU"),
        pytest.param({"gpu_size": " 1/8 "}, Options(size="1/8"), id="spaces around a size do not matter"),
        pytest.param(
            {"gpu_size": "1/8", "gpu_project": "fraud", "gpu_pool": "build", "image": ["x"]},
            Options(size="1/8", project="fraud", pool="build"),
            id="another form's fields are not ours",
        ),
    ],
)
def test_options_are_read(given: dict[str, object], expected: Options) -> None:
    assert read_options(given, refuse_unknown=True) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"gpu_size": 0.5}, "gpu_size must be text, not float", id="a number is not text"),
        pytest.param({"gpu_size": ["1/8"]}, "gpu_size must be text, not list", id="a list is not text"),
        pytest.param({"gpu_project": {"a": 1}}, "gpu_project must be text, not dict", id="an object is not text"),
        pytest.param({"gpu_size": "1" * 1_000_000}, "1000000 characters; 128 are allowed", id="a size of 1 MB"),
        pytest.param({"gpu_pool": "a\x00b"}, "gpu_pool has control characters", id="a NUL in a name"),
        pytest.param({"gpu_project": "a\nb"}, "gpu_project has control characters", id="a line break in a name"),
        pytest.param({"gpu_milli": "1000"}, "'gpu_milli' is not an option", id="an unknown option of ours"),
        pytest.param({"gpu": "1"}, "'gpu' is not an option of this hub; the options are gpu_size", id="a wrong option"),
        pytest.param({"nGPUs": 1}, "'nGPUs' is not an option of this hub", id="a wrong option in capitals"),
        pytest.param({"gpu_" + "x" * 10_000: 1}, "is not an option", id="an unknown option with a long name"),
    ],
)
def test_hostile_options_are_refused_with_a_short_sentence(given: dict[str, object], said: str) -> None:
    answer = read_options(given, refuse_unknown=True)
    assert isinstance(answer, BadOptions)
    assert said in answer.message
    assert len(answer.message) < 300


def test_another_form_of_the_hub_may_have_gpu_fields_of_its_own() -> None:
    assert read_options({"gpu_model": ["A100"]}, refuse_unknown=False) == Options()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        pytest.param({"gpu_choice": ["cpu"]}, {"gpu_size": "cpu"}, id="no GPU"),
        pytest.param(
            {"gpu_choice": ["fraud:build:1/8"], "image": ["x"]},
            {"gpu_project": "fraud", "gpu_pool": "build", "gpu_size": "1/8"},
            id="a size of a project in a pool",
        ),
        pytest.param({"gpu_size": ["1/8"]}, {"gpu_size": "1/8"}, id="a query that gives the size alone"),
        pytest.param({"gpu_choice": []}, {}, id="an empty field"),
        pytest.param({"gpu_choice": ["a:b"]}, {"gpu_size": "a:b"}, id="nonsense becomes a size that is refused later"),
    ],
)
def test_a_submitted_form_becomes_options(form: dict[str, list[object]], expected: dict[str, object]) -> None:
    assert options_of_form(form) == expected


def test_each_choice_of_the_form_round_trips() -> None:
    for value in Form(render([choice(1000), choice(300, project="b@r.g")])).values:
        options = read_options(options_of_form({"gpu_choice": [value]}), refuse_unknown=True)
        assert isinstance(options, Options)
        project, pool, size = value.split(":") if value != "cpu" else (None, None, None)
        assert (options.project, options.pool, options.size) == (project, pool, size)


@pytest.mark.parametrize(
    ("quota", "names"),
    [
        pytest.param(0, [], id="no notebook quota, no sizes"),
        pytest.param(100, ["0.1"], id="a quota below the smallest size is offered whole"),
        pytest.param(300, ["1/8", "1/4", "0.3"], id="sizes up to the quota, and the whole of it"),
        pytest.param(500, ["1/8", "1/4", "1/2"], id="a quota that is a size is offered once"),
        pytest.param(4000, ["1/8", "1/4", "1/2", "1"], id="a notebook has one device at most"),
    ],
)
def test_sizes_follow_the_quota(quota: int, names: list[str]) -> None:
    assert [name for name, _ in sizes(choice(quota))] == names


def test_a_size_above_the_remaining_quota_is_shown_disabled() -> None:
    form = Form(render([choice(500, used=300)], default="1/2"))
    assert form.disabled == ["fraud:build:1/4", "fraud:build:1/2"]
    assert form.checked == ["cpu"]


def test_sizes_of_a_pool_without_a_device_are_disabled_with_the_reason() -> None:
    bare = choice(500).model_copy(update={"devices": 0, "device_model": None, "device_memory_mib": None})
    html = render([bare, choice(250, project="other")], default="1/8")
    form = Form(html)
    assert form.disabled == ["fraud:build:1/8", "fraud:build:1/4", "fraud:build:1/2"]
    assert form.checked == ["other:build:1/8"]
    assert html.count("pool build has no available device") == 3


def test_the_configured_size_is_proposed_where_it_fits() -> None:
    assert Form(render([choice(500)], default="1/8")).checked == ["fraud:build:1/8"]


def test_no_gpu_is_always_offered_with_the_reason_for_missing_sizes() -> None:
    html = render((), notice="GPU sizes cannot be shown now.")
    assert Form(html).values == ["cpu"]
    assert Form(html).checked == ["cpu"]
    assert "GPU sizes cannot be shown now." in html


def test_every_choice_is_labelled_and_described() -> None:
    form = Form(render([choice(1000), choice(250, project="other")]))
    assert len(set(form.ids)) == len(form.ids)
    assert set(form.labels) | set(form.described) == set(form.ids)
    assert form.tags[:2] == ["fieldset", "legend"]
    assert "<legend>GPU of this server</legend>" in render(()), "a server may be no notebook"


def test_the_memory_of_a_share_and_the_rest_for_data_are_shown() -> None:
    assert "9.9 GiB of Simulated 80G, about 9.2 GiB of it for data" in render([choice(125)])


def test_names_are_escaped_in_pages() -> None:
    evil = ChoiceView.model_construct(
        project='"><script>alert(1)</script>', pool="<b>", quota_milli=125, used_milli=0, device_model="<i>",
        device_memory_mib=1,
    )  # fmt: skip
    html = render([evil], notice="<u>")
    assert not {"script", "b", "i", "u"} & set(Form(html).tags)
