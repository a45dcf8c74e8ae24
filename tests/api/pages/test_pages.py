"""The pages: who sees them, that hostile text stays text, that nothing from outside is loaded, that they read well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from tornado.web import create_signed_value

from jupyter_gpu_quota.api.access.permissions import Person
from jupyter_gpu_quota.api.handlers.submission import may_train
from jupyter_gpu_quota.api.main import cookie_secret
from jupyter_gpu_quota.api.pages import text as page_text
from jupyter_gpu_quota.backends.local.jobs.paths import rank_paths
from jupyter_gpu_quota.backends.local.jobs.rank_log import RotatingLog
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.messages.reasons import sentence
from tests.api.world import PREFIX, ServiceWorld, service_world

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with service_world(tmp_path_factory.mktemp("pages")) as made:
        made.job = made.submit(name="train it", command=["echo", HOSTILE], variables={"A": HOSTILE})["id"]  # type: ignore[attr-defined]
        made.private = made.submit(name="hush", private=True)["id"]  # type: ignore[attr-defined]
        made.step()
        made.see_running(made.job, done=3, total=10, metrics={"loss": 0.5})  # type: ignore[attr-defined]
        RotatingLog(rank_paths(str(made.state_dir), made.job, 1, 0).log, 1 << 16).write(HOSTILE.encode())  # type: ignore[attr-defined]
        outputs = Path(rank_paths(str(made.state_dir), made.job, 1, 0).outputs)  # type: ignore[attr-defined]
        outputs.mkdir(parents=True)
        (outputs / "<img src=x onerror=alert(1)>").write_text("x")
        yield made


def page(world: ServiceWorld, path: str, who: str | None = "ann") -> str:
    answer = world.get(PREFIX + path, who)
    assert answer.status == 200, answer.body
    return answer.body.decode()


def every_page(world: ServiceWorld) -> list[str]:
    return ["", "jobs", f"jobs/{world.job}", "quota", "audit"]  # type: ignore[attr-defined]


class Outline(HTMLParser):
    """What of a page a screen reader goes by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_hostile_text_stays_text_everywhere(world: ServiceWorld) -> None:
    for path in every_page(world):
        text = page(world, path)
        assert "<script>alert" not in text and "<img" not in text, path
    assert "&lt;script&gt;alert" in page(world, f"jobs/{world.job}")  # type: ignore[attr-defined]


def test_no_page_loads_or_runs_anything_from_outside(world: ServiceWorld) -> None:
    for path in every_page(world):
        answer = world.get(PREFIX + path, "ann")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy
        outline = Outline(answer.body.decode())
        for tag, attributes in outline.tags:
            assert not any(name.startswith("on") or name == "style" for name in attributes), (path, tag, attributes)
            for name in ("src", "href", "action"):
                assert not (attributes.get(name) or "").startswith(("http:", "https:", "//", "javascript:")), (
                    path,
                    tag,
                )
        assert all(script.get("src") for script in outline.all("script"))


def test_every_page_can_be_read_by_its_landmarks_labels_and_captions(world: ServiceWorld) -> None:
    for path in every_page(world):
        outline = Outline(page(world, path))
        assert outline.all("html")[0]["lang"] == "en"
        assert [len(outline.all(tag)) for tag in ("header", "main", "footer", "h1", "title")] == [1, 1, 1, 1, 1], path
        assert len(outline.all("caption")) == len(outline.all("table")), path
        ids = [attributes["id"] for _, attributes in outline.tags if attributes.get("id")]
        assert len(ids) == len(set(ids)), path
        labelled = [
            attributes["aria-labelledby"] for _, attributes in outline.tags if attributes.get("aria-labelledby")
        ]
        assert all(set((names or "").split()) <= set(ids) for names in labelled), path
        for field in [*outline.all("textarea"), *outline.all("input")]:
            assert (
                field["id"] in {label.get("for") for label in outline.all("label")} or field.get("type") == "checkbox"
            )


def test_every_part_that_lives_has_an_id(world: ServiceWorld) -> None:
    for path in every_page(world):
        assert all(
            attributes.get("id") for _, attributes in Outline(page(world, path)).tags if "data-live" in attributes
        )


def test_simulated_devices_are_labelled_and_their_shares_have_no_enforcement(world: ServiceWorld) -> None:
    for path in ("", f"jobs/{world.job}", "jobs"):  # type: ignore[attr-defined]
        assert "simulated" in page(world, path), path
    assert "memory none, compute none" in page(world, f"jobs/{world.job}")  # type: ignore[attr-defined]
    assert "shares of simulated devices are only counted" in page(world, "")


def test_the_job_page_marks_a_truncated_log_and_output_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.api.handlers.logs.MAX_OUTPUTS", 120)
    with service_world(tmp_path) as world:
        job = world.submit()["id"]
        world.step()
        log = RotatingLog(rank_paths(str(world.state_dir), job, 1, 0).log, 1 << 20)
        outputs = Path(rank_paths(str(world.state_dir), job, 1, 0).outputs)
        outputs.mkdir(parents=True)
        log.write(b"short\n")
        for number in range(100):
            (outputs / str(number)).touch()
        whole = page(world, f"jobs/{job}")
        assert 'id="outputs-cut"' not in whole and 'id="log-cut" hidden' in whole
        log.write(b"x" * 70_000)
        (outputs / "100").touch()
        assert 'id="log-cut">' in page(world, f"jobs/{job}")
        assert "outputs folder: the first 100 of 101<" in page(world, f"jobs/{job}")
        for number in range(101, 130):
            (outputs / str(number)).touch()
        assert "outputs folder: the first 100 of more than 120<" in page(world, f"jobs/{job}")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(1, "exit 1", id="by itself"),
        pytest.param(-9, "signal 9 (SIGKILL)", id="by a signal"),
        pytest.param(None, "lost", id="unseen"),
    ],
)
def test_the_job_page_shows_the_end_of_each_rank(tmp_path: Path, status: int | None, expected: str) -> None:
    with service_world(tmp_path) as world:
        job = world.submit(retries=1)["id"]
        world.step()
        world.see_running(job, ended_at=world.clock(), exit_status=status, tree_gone=True)
        assert f"<td>{expected}</td>" in page(world, f"jobs/{job}")


def test_a_page_without_a_login_redirects_to_the_hub(world: ServiceWorld) -> None:
    answer = world.get(PREFIX + "jobs", None)
    assert answer.status == 302 and answer.headers["location"].startswith("/hub/api/oauth2/authorize")


def test_logging_out_clears_the_cookie_and_redirects_to_the_hub(world: ServiceWorld) -> None:
    answer = world.get(PREFIX + "logout")
    assert answer.status == 302 and answer.headers["location"] == "/hub/logout"
    assert "service-gpu-quota=" in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    ("path", "who", "status"),
    [
        pytest.param("quota", "bob", 403, id="the quota file is not for members"),
        pytest.param("quota", "lea", 200, id="but for leads"),
        pytest.param("audit", "bob", 403, id="nor the audit"),
        pytest.param("jobs/unknown", "bob", 404, id="a job that is not there"),
        pytest.param("nowhere", "bob", 404, id="a page that is not there"),
    ],
)
def test_pages_by_role(world: ServiceWorld, path: str, who: str, status: int) -> None:
    answer = world.get(PREFIX + path, who)
    assert answer.status == status and b"<h1>" in answer.body


def test_others_see_neither_the_job_nor_its_name(world: ServiceWorld) -> None:
    assert world.get(f"{PREFIX}jobs/{world.job}", "patty").status == 404  # type: ignore[attr-defined]
    for path in ("", "jobs"):
        text = page(world, path, "patty")
        assert "train it" not in text and "bob" not in text and "vision" not in text, path
    assert "another project" in page(world, "", "patty")
    assert "hush" not in page(world, "jobs", "olga") and "hush" in page(world, "jobs", "lea")


def test_only_users_who_may_change_a_job_get_the_buttons(world: ServiceWorld) -> None:
    def actions(who: str) -> set[str | None]:
        buttons = Outline(page(world, f"jobs/{world.job}", who)).all("button")  # type: ignore[attr-defined]
        return {button.get("data-action") for button in buttons} - {None}

    assert actions("bob") == actions("lea") == {"hold", "cancel", "rerun"}
    assert actions("olga") == {"rerun"}


def test_the_editor_is_for_those_who_may_apply(world: ServiceWorld) -> None:
    assert "<textarea" in page(world, "quota", "ann")
    assert "<textarea" not in page(world, "quota", "lea")


def test_doctor_reports_a_service_that_is_not_ready(world: ServiceWorld) -> None:
    world.services.controller_alive = lambda: False
    try:
        assert "The service is not ready." in page(world, "")
    finally:
        world.services.controller_alive = lambda: True


# --- a browser's login ------------------------------------------------------------------------------------------------
def cookie(world: ServiceWorld, token: str) -> str:
    secret = cookie_secret(world.state_dir)
    return "service-gpu-quota=" + create_signed_value(secret, "service-gpu-quota", token).decode()


def test_a_browser_acts_only_with_the_pages_own_token(world: ServiceWorld) -> None:
    browser = {"Cookie": cookie(world, "token-bob"), "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}
    shown = world.get(PREFIX, None, headers=browser)
    assert shown.status == 200 and b"Logged in as" in shown.body
    xsrf = re.search(r'data-xsrf="([^"]+)"', shown.body.decode())
    assert xsrf
    jar = f"{browser['Cookie']}; _xsrf={xsrf[1]}"
    fetch = {"Cookie": jar, "Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}
    body = {"command": ["x"]}
    assert world.post("jobs", None, body, headers=fetch).status == 401
    assert world.post("jobs", None, body, headers={**fetch, "X-XSRFToken": "wrong"}).status == 401
    assert world.post("jobs", None, body, headers={**fetch, "X-XSRFToken": xsrf[1]}).status == 201
    assert world.get("jobs", None, headers=fetch).status == 401
    assert world.get(f"jobs?_xsrf={xsrf[1]}", None, headers=fetch).status == 200


def test_a_cross_site_post_is_refused(world: ServiceWorld) -> None:
    headers = {"Cookie": cookie(world, "token-bob"), "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "cross-site"}
    assert world.post("jobs", None, {"command": ["x"]}, headers=headers).status == 401


# --- words ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_are_shown_in_readable_units(size: int, text: str) -> None:
    assert page_text.size_text(size) == text


def test_the_first_eight_projects_have_colours_of_their_own() -> None:
    colours = page_text.colours_of([f"p{n}" for n in range(8)])
    assert len(set(colours.values())) == 8
    assert page_text.colour_of(None, colours) == page_text.colour_of("gone", colours) == "other"


def test_the_list_of_jobs_shows_the_end_of_a_failed_job(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        job = world.submit()["id"]
        world.step()
        world.see_running(job, ended_at=world.clock(), exit_status=3, tree_gone=True)
        assert world.get(f"jobs/{job}").json["state"] == "failed"
        sentence = "ended with exit status 3. Its log may have the cause."
        assert all(sentence in page(world, name) for name in ("jobs", f"jobs/{job}"))


def test_the_job_page_and_command_show_requested_cpu_and_memory(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        job = world.submit(cpu_milli=300, memory_mib=64, time_limit="90m", preemptible=False, priority=40)["id"]
        assert '<dd id="host">0.3 CPU and 64 MiB</dd>' in page(world, f"jobs/{job}")
        address = ["--url", f"http://127.0.0.1:{world.port}{PREFIX}", "--token", "token-bob"]
        found = CliRunner().invoke(main, ["job", job, *address]).stdout
        for words in ("0.3 CPU and 64 MiB", "40, not preemptible", "90m"):
            assert words in found


def test_a_list_without_jobs_offers_no_command_that_would_be_refused(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        assert "submit --gpu 1" in page(world, "jobs", "bob") and "<p>None</p>" not in page(world, "jobs", "bob")
        no_pool = Person(name="eve", id="eve", roles={"elsewhere": "member"})
        assert not may_train(no_pool, world.services.store_view.quota_file)


def test_the_time_limit_of_an_ended_job_is_in_the_past_tense() -> None:
    reason = reason_from(ReasonCode.TIME_LIMIT, (("ran_s", 11), ("time_limit_s", 10), ("grace_s", 10)))
    assert "It has 10 s to save" in sentence(reason)
    assert sentence(reason, ended=True) == (
        "The job ran for 11 s and its time limit was 10 s, so it was ended; submit it again with a longer limit."
    )


def test_counts_of_parts_and_devices_have_singular_and_plural() -> None:
    books = (("project", "a"), ("pool", "t"), ("asked_milli", 1000), ("capacity_milli", 500))
    reason = reason_from(ReasonCode.NEVER_FITS, (*books, ("ranks", 1), ("possible_ranks", 0)))
    assert "1 GPU in 1 part; pool t has 0.5 GPU and room for 0 such parts when" in sentence(reason)
