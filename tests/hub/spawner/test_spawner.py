"""The spawner mixin against the fake notebook routes: request, wait, render, return, on every path of a start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.spawner import Spawner
from jupyterhub.utils import format_exception
from tornado.web import HTTPError
from traitlets.config import Config

from jupyter_gpu_quota.backends.rendering.variables import SECRET_VARIABLE, SHARE_VARIABLE
from jupyter_gpu_quota.hub import refusal as refusal_room
from jupyter_gpu_quota.hub import spawner as mixin_room
from jupyter_gpu_quota.hub.local_spawner import GPUQuotaMixin
from jupyter_gpu_quota.hub.slices import Unavailable
from jupyter_gpu_quota.wire import ReasonView
from tests.hub.fake_service import Books, served
from tests.patience import PATIENCE_S, until_in_loop

TOKEN = "t" * 64
NOWHERE = "http://127.0.0.1:9"
CHOSEN = {"gpu_project": "build", "gpu_size": "1/8"}


class Desk(Spawner):
    """A spawner without processes: it reports whether its server runs, and the variables of its start."""

    running = False
    variables: dict[str, str]
    fails = False
    hangs = False
    sticks = False
    replaces = False
    """Whether its start first stops an earlier server, as KubeSpawner's does where a pod of its name exists."""

    async def start(self) -> str:
        self.variables = self.get_env()
        if self.replaces:
            await self.stop(True)
        if self.fails:
            raise OSError("no such program")
        if self.hangs:
            await asyncio.Event().wait()
        self.running = True
        return "http://127.0.0.1:1"

    async def stop(self, now: bool = False) -> None:
        if self.sticks:
            raise OSError("it does not die")
        self.running = False

    async def poll(self) -> int | None:
        if self.running:
            return None
        self.clear_state()
        return 0


class GPUDesk(GPUQuotaMixin, Desk):
    pass


Make = Callable[..., GPUDesk]


@pytest.fixture
async def slices() -> AsyncIterator[tuple[str, Books]]:
    async with served(TOKEN) as (url, books):
        yield url, books


@pytest.fixture
def books(slices: tuple[str, Books]) -> Books:
    return slices[1]


@pytest.fixture
def make(slices: tuple[str, Books]) -> Make:
    """Makes spawners as the hub does: ``make("ann", "server", gpu_size="1/8")``."""

    def spawner(user: str = "ann", url: str = slices[0], proxy: str = "http://:8000/", **settings: Any) -> GPUDesk:
        options = settings.pop("options", CHOSEN)
        config = Config({"GPUQuota": {"service_url": url, "api_token": TOKEN, **settings}})
        hub = SimpleNamespace(base_url="/hub/", api_url="http://127.0.0.1:8081/hub/api", public_host="")
        person = SimpleNamespace(
            name=user,
            escaped_name=user,
            url=f"/user/{user}/",
            settings={"proxy": SimpleNamespace(public_url=proxy)},
            spawners={},
        )
        made = GPUDesk(user=person, hub=hub, config=config, oauth_client_id="client", environment={})
        made.user_options = options
        made.public_url = made.public_hub_url = ""
        return made

    return spawner


async def refusal(spawner: GPUDesk) -> HTTPError:
    with pytest.raises(HTTPError) as caught:
        await spawner.start()
    return caught.value


def said(error: HTTPError) -> str:
    return str(getattr(error, "message", None) or getattr(error, "jupyterhub_message", ""))


# A start that works


async def test_a_server_gets_the_slice_that_was_booked(make: Make, books: Books) -> None:
    ann = make()
    await ann.start()
    (view,) = books.live
    assert (view.user, view.server, view.state, view.gpu_milli) == ("ann", "", "booked", 125)
    assert ann.variables["CUDA_VISIBLE_DEVICES"] == "GPU-fake-0"
    assert json.loads(ann.variables[SHARE_VARIABLE])["gpu_milli"] == 125
    assert ann.variables[SECRET_VARIABLE] == f"secret-of-{view.id}"
    assert "secret" not in json.dumps(ann.get_state())
    assert ann.variables["JUPYTER_GPU_QUOTA_PROJECT"] == "build"
    assert "WANDB_*" in ann.variables["JUPYTER_GPU_QUOTA_TRACKER_VARIABLES"].split(",")
    assert set(ann.slice_times_s) == {"ask", "render"}


async def test_only_kernels_get_the_amounts(make: Make) -> None:
    ann = make()
    await ann.start()
    assert not {name for name in ann.variables if name.startswith("GPU_QUOTA_")}


@pytest.mark.parametrize("options", [{}, {"gpu_size": "cpu"}, {"gpu_size": "cpu", "gpu_project": "build"}], ids=str)
async def test_a_server_without_a_gpu_sees_no_device_and_sends_no_request(
    make: Make, books: Books, options: Any
) -> None:
    ann = make(options=options)
    await ann.start()
    assert books.notebooks == {}
    assert ann.variables["CUDA_VISIBLE_DEVICES"] == ""
    assert ann.variables["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert SHARE_VARIABLE not in ann.variables


async def test_our_variables_set_by_users_or_files_are_replaced(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = make(options={})
    ann.environment = {"CUDA_VISIBLE_DEVICES": "0,1", "GPU_QUOTA_MILLI": "1000", SHARE_VARIABLE: "{}", "MINE": "kept"}
    await ann.start()
    assert ann.variables["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"GPU_QUOTA_MILLI", SHARE_VARIABLE} & ann.variables.keys()
    assert ann.variables["MINE"] == "kept"


async def test_no_variable_of_one_start_reaches_the_next(make: Make, books: Books) -> None:
    ann = make()
    await ann.start()
    await ann.stop()
    ann.user_options = {"gpu_size": "cpu"}
    await ann.start()
    assert ann.variables["CUDA_VISIBLE_DEVICES"] == ""
    assert not {SHARE_VARIABLE, SECRET_VARIABLE, "JUPYTER_GPU_QUOTA_PROJECT"} & ann.variables.keys()
    assert books.live == []


async def test_a_user_with_one_project_need_not_name_it(make: Make, books: Books) -> None:
    await make(options={"gpu_size": "1/8"}).start()
    assert [view.project for view in books.live] == ["build"]


@pytest.mark.parametrize(
    ("proxy", "settings", "expected"),
    [
        pytest.param("http://:8000/", {}, "http://127.0.0.1:8000/services/gpu-quota/", id="a proxy on every address"),
        pytest.param("http://0.0.0.0:80/", {}, "http://127.0.0.1:80/services/gpu-quota/", id="so said in figures"),
        pytest.param("http://[::1]:9/", {}, "http://[::1]:9/services/gpu-quota/", id="a proxy on one IPv6 address"),
        pytest.param("http://10.0.0.1/", {}, "http://10.0.0.1:80/services/gpu-quota/", id="a proxy on one address"),
        pytest.param("https://:443/", {}, "{direct}/services/gpu-quota/", id="a proxy with TLS is passed by"),
        pytest.param("https://:443/", {"notebook_service_url": "https://x/"}, "https://x/", id="the file says where"),
    ],
)
async def test_a_notebook_gets_the_address_of_the_service(
    make: Make, slices: tuple[str, Books], proxy: str, settings: dict[str, str], expected: str
) -> None:
    ann = make(proxy=proxy, options={}, **settings)
    await ann.start()
    assert ann.variables["JUPYTER_GPU_QUOTA_URL"] == expected.format(direct=slices[0])


# Waiting


async def test_a_start_waits_until_its_slice_is_free(make: Make, books: Books) -> None:
    books.hold = True
    ann = make()
    starting = asyncio.ensure_future(ann.start())
    await until_in_loop(lambda: bool(books.live))
    assert not starting.done()
    books.decide()
    await starting
    assert ann.running and ann.variables[SECRET_VARIABLE] == f"secret-of-{books.live[0].id}"


async def test_progress_reports_each_change_of_the_reason(make: Make, books: Books) -> None:
    books.hold = True
    ann = make()
    ann._start_pending = True
    messages: list[str] = []

    async def watch() -> None:
        messages.extend([event["message"] async for event in ann.progress()])

    async def shown(text: str) -> None:
        await until_in_loop(lambda: ann._slice is not None and text in str(ann._slice.reason))

    watching, starting = asyncio.ensure_future(watch()), asyncio.ensure_future(ann.start())
    await shown("1st in line")
    (view,) = books.live
    next_reason = ReasonView(code="next", figures={}, message="The next device that is freed is yours.")
    books.put(view.model_copy(update={"reason": next_reason}))
    await shown("is yours")
    books.decide()
    await asyncio.gather(watching, starting)
    assert [message for message in messages if message.startswith("Waiting")] == [
        "Waiting for the GPU slice: bob's job is pausing to make room; 1st in line.",
        "Waiting for the GPU slice: The next device that is freed is yours.",
    ]
    assert messages[-1] == "Spawning server..."


async def test_progress_misses_no_end_of_the_wait_while_its_event_is_sent(make: Make) -> None:
    ann = make()
    ann._start_pending = True
    progress = ann.progress()
    assert (await anext(progress))["message"] == "Requesting the GPU slice"
    ann._end_wait()
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(progress))["message"] == "Spawning server..."


async def test_a_slice_that_is_never_free_is_refused_with_its_reason_and_returned(make: Make, books: Books) -> None:
    books.hold = True
    error = await refusal(make(spawn_timeout_s=1))
    assert "was not free within 1 s" in said(error)
    assert "1st in line" in said(error)
    assert books.live == []


async def test_a_service_that_answers_no_poll_is_asked_about_once_a_second(
    make: Make, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    books.hold = True
    polls: list[float] = []

    async def unanswered(self: object, seen: object, wait_s: float) -> Unavailable:
        polls.append(wait_s)
        return Unavailable(message="The name of the service has no address.", may_be_processed=True)

    monkeypatch.setattr(mixin_room.SliceClient, "wait", unanswered)
    assert "was not free within 1 s" in said(await refusal(make(spawn_timeout_s=1)))
    assert 1 <= len(polls) <= 3
    assert books.live == []


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_waiting_start_keeps_its_place_while_the_service_answers_with_an_error(
    make: Make, books: Books, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.hub.slices.READ_TIMEOUT_S", 0.5)
    monkeypatch.setattr("jupyter_gpu_quota.hub.slices.POLL_S", 0)
    monkeypatch.setattr(mixin_room, "PAUSE_S", 0.02)
    books.hold = True
    starting = asyncio.ensure_future(make().start())
    await until_in_loop(lambda: bool(books.live))
    books.error = status
    await until_in_loop(lambda: books.errors >= 4 or starting.done())
    books.error = 0
    books.decide()
    await starting
    assert [view.id for view in books.live] == ["nb-1"]


async def test_the_hubs_own_time_out_is_extended_by_the_wait_once(make: Make) -> None:
    ann = make(spawn_timeout_s=300)
    ann.start_timeout = 60
    await ann.run_pre_spawn_hook()
    await ann.run_pre_spawn_hook()
    assert ann.start_timeout == 60 + 300 + mixin_room.POST_WAIT_S + ann.http_timeout


# Refusals


async def test_a_refusal_has_use_limit_and_advice(make: Make, books: Books) -> None:
    await make("bob", options={**CHOSEN, "gpu_size": "1/4"}).start()
    error = await refusal(make())
    assert error.status_code == 409
    assert said(error) == (
        "build has used its notebook quota: 0.250 of 0.250 GPU is in use. Stop a notebook or choose less."
    )
    assert [view.user for view in books.live] == ["bob"]


async def test_a_project_without_membership_is_refused(make: Make) -> None:
    error = await refusal(make(options={"gpu_project": "secret", "gpu_size": "1/8"}))
    assert error.status_code == 403


async def test_a_user_without_a_project_gets_that_reason(make: Make) -> None:
    error = await refusal(make("outsider", options={"gpu_size": "1/8"}))
    assert "no project has a GPU quota for notebooks" in said(error)


@pytest.mark.parametrize(
    "options",
    [{"gpu_size": 1}, {"gpu_size": "x" * 1000}, {"gpu_size": "1/8", "gpu_project": "a\x00"}, {"gpu_share": "1"}],
    ids=["a number", "a long text", "a control character", "an unknown option"],
)
async def test_hostile_options_never_reach_the_service(make: Make, books: Books, options: dict[str, Any]) -> None:
    error = await refusal(make(options=options))
    assert error.status_code == 400
    assert books.notebooks == {}


async def test_with_the_service_away_a_gpu_is_refused_soon_and_a_server_without_one_starts(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = make(url=NOWHERE)
    ann._slices = mixin_room.SliceClient(service_url=NOWHERE, base_url="/", api_token=TOKEN, request_timeout_s=0.5)
    error = await refusal(ann)
    assert error.status_code < 500
    assert "not running. Start the server without a GPU, or try again in a minute." in said(error)
    ann.user_options = {"gpu_size": "cpu"}
    await ann.start()
    assert ann.running


async def test_a_service_that_never_answers_times_out(make: Make, slices: tuple[str, Books]) -> None:
    slices[1].deaf = True
    ann = make()
    ann._slices = mixin_room.SliceClient(service_url=slices[0], base_url="/", api_token=TOKEN, request_timeout_s=0.5)
    assert "does not answer" in said(await refusal(ann))


async def test_a_slice_whose_booking_was_never_answered_is_returned(make: Make, slices: tuple[str, Books]) -> None:
    slices[1].mute = True
    ann = make()
    ann._slices = mixin_room.SliceClient(
        service_url=slices[0], base_url="/", api_token=TOKEN, request_timeout_s=1, retry_every_s=0.02
    )
    await refusal(ann)
    slices[1].mute = False
    await until_in_loop(lambda: len(slices[1].notebooks) == 1)
    await until_in_loop(lambda: not slices[1].live and not mixin_room.RETURN_TASKS)


@pytest.mark.parametrize("status", [500, 503])
async def test_a_slice_whose_booking_was_answered_with_an_error_is_returned(
    make: Make, slices: tuple[str, Books], status: int
) -> None:
    url, books = slices
    books.error = status
    ann = make()
    ann._slices = mixin_room.SliceClient(
        service_url=url, base_url="/", api_token=TOKEN, request_timeout_s=0.2, retry_every_s=0.02
    )
    assert said(await refusal(ann)).startswith("ann gets no GPU slice now. The database cannot be read.")
    assert len(books.notebooks) == 1
    await until_in_loop(lambda: not books.live and not mixin_room.RETURN_TASKS)


async def test_a_late_return_does_not_take_the_slice_of_a_new_start(make: Make, books: Books) -> None:
    first, second = make(), make()
    await second.start()
    second._spawn_pending = True
    first.user.spawners = {"": second}
    assert await first._slices_after_lost_answer() == []
    second._notebook = None
    assert await first._slices_after_lost_answer() == [], "the answer to its request is under way"
    first.user.spawners = {"": first}
    assert await first._slices_after_lost_answer() == [books.live[0].id]


async def test_a_lost_slice_is_returned_although_its_server_runs_again_without_a_gpu(make: Make, books: Books) -> None:
    first, again = make(), make(options={"gpu_size": "cpu"})
    await make().start()
    await again.start()
    again._spawn_pending = True
    first.user.spawners = {"": again}
    assert await first._slices_after_lost_answer() == [books.live[0].id]
    again._notebook = books.live[0].id
    assert await first._slices_after_lost_answer() == [], "its own slice, of an earlier start"


async def test_the_start_form_shows_the_sentence_of_a_refusal_alone() -> None:
    sentence = "The notebook quota of vision in pool build is 0.5 and 0.5 is in use."
    error = refusal_room.spawn_error(sentence, reason="above_notebook_quota")
    assert format_exception(error)[0] == sentence


async def test_on_hub_5_the_sentence_is_shown_and_a_refusal_is_not_counted(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal_room, "SpawnException", None)
    ann = make(options={"gpu_project": "secret", "gpu_size": "1/8"})
    ann.handler = SimpleNamespace(settings={"failure_count": 3})
    error = await refusal(ann)
    assert error.jupyterhub_message == "ann is no member of a project secret."
    assert ann.handler.settings["failure_count"] == 2


# Giving back


async def test_stop_returns_the_slice_and_a_repeated_stop_does_nothing(make: Make, books: Books) -> None:
    ann = make()
    await ann.start()
    await ann.stop()
    assert not ann.running
    await ann.stop()
    await ann.run_post_stop_hook()
    assert books.live == []
    assert ann.get_state() == {}
    assert "give_back" in ann.slice_times_s


async def test_a_slice_is_returned_only_after_its_server_ended(make: Make, books: Books) -> None:
    ann = make()
    await ann.start()
    ann.sticks = True
    with pytest.raises(OSError, match="does not die"):
        await ann.stop()
    assert len(books.live) == 1


async def test_a_server_that_died_gives_back_after_its_end(make: Make, books: Books) -> None:
    ann = make()
    await ann.start()
    ann.running = False
    assert await ann.poll() == 0
    await ann.run_post_stop_hook()
    assert books.live == []


async def test_a_server_that_does_not_start_gives_back(make: Make, books: Books) -> None:
    ann = make()
    ann.fails = True
    with pytest.raises(OSError, match="no such program"):
        await ann.start()
    assert len(books.notebooks) == 1
    assert books.live == []


@pytest.mark.parametrize("fails", [False, True], ids=["it starts", "it does not start"])
async def test_a_start_that_stops_an_earlier_server_keeps_its_slice_until_it_ends(
    make: Make, books: Books, fails: bool
) -> None:
    ann = make()
    ann.replaces, ann.fails = True, fails
    if fails:
        with pytest.raises(OSError, match="no such program"):
            await ann.start()
    else:
        await ann.start()
        assert len(books.live) == 1
        await ann.stop()
    assert len(books.notebooks) == 1
    assert books.live == []


@pytest.mark.parametrize("held", [True, False], ids=["while it waits", "while the server starts"])
async def test_a_start_that_is_cancelled_gives_back(make: Make, books: Books, held: bool) -> None:
    books.hold = held
    ann = make()
    ann.hangs = True
    starting = asyncio.ensure_future(ann.start())
    await until_in_loop(lambda: bool(books.live))
    await until_in_loop(lambda: ann._notebook is not None)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert books.live == []


async def test_a_start_cancelled_before_the_answer_returns_its_slice(make: Make, books: Books) -> None:
    ann = make()
    starting = asyncio.ensure_future(ann.start())
    while ann._slices is None:
        await asyncio.sleep(0)
    assert books.live == []
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert len(books.notebooks) == 1
    assert books.live == []


async def test_the_hubs_post_stop_hook_still_runs(make: Make) -> None:
    ann, seen = make(options={}), []
    ann.post_stop_hook = seen.append
    await ann.run_post_stop_hook()
    assert seen == [ann]


async def test_the_slice_survives_a_restart_of_the_hub(make: Make, books: Books) -> None:
    ann = make()
    await ann.start()
    again = make()
    again.load_state(json.loads(json.dumps(ann.get_state())))
    again.running = True
    await again.stop()
    assert books.live == []


async def test_a_slice_that_could_not_be_given_back_is_given_back_at_the_next_start(make: Make, books: Books) -> None:
    ann = make()
    await ann.start()
    slices, ann._slices = ann.slices, mixin_room.SliceClient(service_url=NOWHERE, base_url="/", api_token=TOKEN)
    await ann.stop()
    ann.clear_state()
    kept = ann.get_state()
    assert [view.state for view in books.notebooks.values()] == ["booked"]
    again = make(options={"gpu_size": "cpu"})
    again.load_state(kept)
    again.clear_state()
    again._slices = slices
    await again.start()
    assert books.live == []
    for task in mixin_room.RETURN_TASKS:
        task.cancel()


async def test_a_slice_is_returned_when_the_service_is_available_again(make: Make, books: Books) -> None:
    ann = make()
    await ann.start()
    there = ann.slices.service_url
    ann._slices = mixin_room.SliceClient(service_url=NOWHERE, base_url="/", api_token=TOKEN, retry_every_s=0.02)
    await ann.stop()
    assert len(books.live) == 1
    object.__setattr__(ann.slices, "service_url", there)
    await until_in_loop(lambda: not books.live and not mixin_room.RETURN_TASKS)


async def test_a_slice_that_the_next_start_has_is_not_returned_later(make: Make, books: Books) -> None:
    ann, again, other = make(), make(), make()
    await ann.start()
    there = ann.slices.service_url
    ann._slices = mixin_room.SliceClient(service_url=NOWHERE, base_url="/", api_token=TOKEN, retry_every_s=0.02)
    await ann.stop()
    again._notebook, other._notebook = books.live[0].id, "another"
    again._spawn_pending = other._spawn_pending = True
    ann.user.spawners[""] = again
    object.__setattr__(ann.slices, "service_url", there)
    await until_in_loop(lambda: not mixin_room.RETURN_TASKS)
    assert len(books.live) == 1
    object.__setattr__(ann.slices, "service_url", NOWHERE)
    ann._notebook, ann.user.spawners[""] = again._notebook, other
    await ann.stop()
    object.__setattr__(ann.slices, "service_url", there)
    await until_in_loop(lambda: not books.live and not mixin_room.RETURN_TASKS)


@pytest.mark.parametrize("state", [{}, {"gpu_quota_notebook": 7}, {"gpu_quota_notebook": None}], ids=str)
async def test_a_state_without_a_slice_is_fine(make: Make, state: dict[str, Any]) -> None:
    ann = make()
    ann.load_state(state)
    assert ann.get_state() == {}


# The form


async def test_the_gpu_form_follows_the_hubs_own_form(make: Make) -> None:
    ann = make()
    ann.options_form = "<p>image</p>"
    html = await ann.get_options_form()
    assert html.startswith("<p>image</p><fieldset")
    assert 'value="build:build:1/8"' in html


async def test_a_user_without_gpu_quota_gets_no_gpu_form(make: Make) -> None:
    assert await make("outsider").get_options_form() == ""


@pytest.mark.parametrize("kept", [{"gpu_size": "1/8"}, {"gpu_size": 7}], ids=["a size", "nonsense"])
async def test_a_user_who_lost_all_projects_gets_the_form_so_that_the_last_choice_is_not_reused(
    make: Make, kept: dict[str, object]
) -> None:
    ann = make("outsider")
    ann.orm_spawner = SimpleNamespace(user_options=kept, server=None, name="")
    html = await ann.get_options_form()
    assert 'value="cpu"' in html
    assert "No project has a GPU quota for your notebooks" in html


async def test_without_the_service_the_form_offers_a_server_without_gpu(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.hub.slices.READ_TIMEOUT_S", 0.5)
    html = await make(url=NOWHERE).get_options_form()
    assert 'value="cpu"' in html
    assert "GPU sizes cannot be shown now" in html


async def test_both_forms_are_read(make: Make) -> None:
    ann = make()
    ann.options_from_form = lambda form: {"image": form["image"][0], "seen": sorted(form)}
    options = await ann.run_options_from_form({"image": ["torch"], "gpu_choice": ["build:build:1/8"]})
    assert options == {
        "image": "torch", "seen": ["image"], "gpu_project": "build", "gpu_pool": "build", "gpu_size": "1/8",
    }  # fmt: skip


async def test_a_query_is_read(make: Make) -> None:
    assert await make().options_from_query({"gpu_size": ["1/8"]}) == {"gpu_size": "1/8"}


async def test_the_hub_warns_of_options_of_others_only(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    ann = make()
    ann.log.propagate = True
    await ann._run_apply_user_options(CHOSEN)
    assert caplog.messages == []
    await ann._run_apply_user_options(CHOSEN | {"image": "x"})
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["image"]
