"""The frames of the pages: who gets them, that nothing from outside is loaded, and that they hold no token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from tornado.web import create_signed_value

from jupyter_gpu_quota.api.main import cookie_secret
from jupyter_gpu_quota.api.pages import pages
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.messages.reasons import sentence
from tests.api.world import PREFIX, ServiceWorld, service_world

PAGES = ("", "jobs", "jobs/{job}", "my-quota", "usage", "quota", "audit")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with service_world(tmp_path_factory.mktemp("pages")) as made:
        made.job = made.submit(name="train it", private=True)["id"]  # type: ignore[attr-defined]
        yield made


def every_page(world: ServiceWorld) -> list[str]:
    return [path.format(job=world.job) for path in PAGES]  # type: ignore[attr-defined]


def page(world: ServiceWorld, path: str, who: str | None = "ann") -> str:
    answer = world.get(PREFIX + path, who)
    assert answer.status == 200, answer.body
    return answer.body.decode()


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
        scripts = [script["src"] or "" for script in outline.all("script")]
        assert [source.split("?")[0] for source in scripts] == [
            f"{PREFIX}static/built/theme.js",
            f"{PREFIX}static/built/pages.js",
        ]
        assert all(world.get(source, None).status == 200 for source in scripts)


def test_every_frame_can_be_read_by_its_landmarks_and_without_scripts(world: ServiceWorld) -> None:
    for path in every_page(world):
        text = page(world, path)
        outline = Outline(text)
        assert outline.all("html")[0]["lang"] == "en"
        assert [len(outline.all(tag)) for tag in ("header", "main", "footer", "h1", "title")] == [1, 1, 1, 1, 1], path
        ids = [attributes["id"] for _, attributes in outline.tags if attributes.get("id")]
        assert len(ids) == len(set(ids)), path
        assert "<noscript>" in text and "jupyter gpu-quota --help" in text
        assert [link for link in outline.all("a") if link.get("aria-current")], path


def test_no_frame_holds_a_token(world: ServiceWorld) -> None:
    assert all("token-ann" not in page(world, path) for path in every_page(world))


def test_a_page_without_its_script_says_how_it_is_built(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "make lab" not in page(world, "")
    monkeypatch.setattr(pages, "BUNDLE", pages.BUNDLE.with_name("missing.js"))
    assert "make lab" in page(world, "")


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
        pytest.param("my-quota", "bob", 200, id="their own quota is for everybody"),
        pytest.param("audit", "bob", 403, id="nor the audit"),
        pytest.param("jobs/unknown", "bob", 404, id="a job that is not there"),
        pytest.param("jobs/{job}", "patty", 404, id="a job of another project"),
        pytest.param("jobs/{job}", "olga", 404, id="a private job of another member"),
        pytest.param("nowhere", "bob", 404, id="a page that is not there"),
    ],
)
def test_pages_by_role(world: ServiceWorld, path: str, who: str, status: int) -> None:
    answer = world.get(PREFIX + path.format(job=world.job), who)  # type: ignore[attr-defined]
    assert answer.status == status and b"<h1>" in answer.body
    assert (b"train it" in answer.body) is False


def test_the_navigation_has_the_pages_of_its_reader(world: ServiceWorld) -> None:
    def names(who: str) -> list[str]:
        return re.findall(r"<li><a href=\"[^\"]*\"[^>]*>(\w[\w ]*)</a>", page(world, "", who))

    assert names("bob")[:4] == ["Overview", "Jobs", "My quota", "Usage"] and "Audit" not in names("bob")
    assert names("lea")[:6] == ["Overview", "Jobs", "My quota", "Usage", "Quotas", "Audit"]


# --- a browser's login ------------------------------------------------------------------------------------------------
def cookie(world: ServiceWorld, token: str) -> str:
    secret = cookie_secret(world.state_dir)
    return "service-gpu-quota=" + create_signed_value(secret, "service-gpu-quota", token).decode()


def test_a_browser_acts_only_with_the_pages_own_token(world: ServiceWorld) -> None:
    browser = {"Cookie": cookie(world, "token-bob"), "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}
    shown = world.get(PREFIX, None, headers=browser)
    assert shown.status == 200 and b"Logged in as" in shown.body and b"token-bob" not in shown.body
    xsrf = re.search(r'data-xsrf="([^"]+)"', shown.body.decode())
    assert xsrf
    jar = f"{browser['Cookie']}; _xsrf={xsrf[1]}"
    fetch = {"Cookie": jar, "Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}
    body = {"command": ["x"]}
    assert world.post("jobs", None, body, headers=fetch).status == 401
    assert world.post("jobs", None, body, headers={**fetch, "X-XSRFToken": "wrong"}).status == 401
    assert world.post("jobs", None, body, headers={**fetch, "X-XSRFToken": xsrf[1]}).status == 201
    assert world.get("jobs", None, headers=fetch).status == 401
    assert world.get("jobs", None, headers={**fetch, "X-XSRFToken": xsrf[1]}).status == 200


def test_a_cross_site_post_is_refused(world: ServiceWorld) -> None:
    headers = {"Cookie": cookie(world, "token-bob"), "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "cross-site"}
    assert world.post("jobs", None, {"command": ["x"]}, headers=headers).status == 401


# --- words ------------------------------------------------------------------------------------------------------------
def test_the_command_shows_requested_cpu_and_memory(world: ServiceWorld) -> None:
    job = world.submit(cpu_milli=300, memory_mib=64, time_limit="90m", preemptible=False, priority=40)["id"]
    address = ["--url", f"http://127.0.0.1:{world.port}{PREFIX}", "--token", "token-bob"]
    found = CliRunner().invoke(main, ["job", job, *address]).stdout
    assert all(words in found for words in ("0.3 CPU and 64 MiB", "40, not preemptible", "90m"))


def test_the_time_limit_of_an_ended_job_is_in_the_past_tense() -> None:
    reason = reason_from(ReasonCode.TIME_LIMIT, (("ran_s", 11), ("time_limit_s", 10), ("grace_s", 10)))
    assert "It has 10 s to save" in sentence(reason)
    assert sentence(reason, ended=True) == (
        "The job ran for 11 s and its time limit was 10 s, so it was ended; submit it again with a longer limit."
    )


def test_counts_of_parts_and_devices_have_singular_and_plural() -> None:
    books = (("project", "a"), ("pool", "t"), ("asked_milli", 1000), ("capacity_milli", 500))
    reason = reason_from(ReasonCode.NEVER_FITS, (*books, ("ranks", 1), ("possible_ranks", 0)))
    assert "1 GPU in 1 rank; pool t has 0.5 GPU and room for 0 such ranks without" in sentence(reason)
