"""A spawner mixin that books a GPU slice before a server starts, and returns it when the server ends.

It works with every spawner that runs servers as local processes. The service decides on the slice, and checks the
user's request again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from jupyterhub.spawner import Spawner
from jupyterhub.utils import maybe_future

from ..backends.local.host.servers import Servers
from ..backends.rendering.variables import notebook_environment, without_ours
from ..settings import SERVICE_NAME, GPUQuota
from ..wire import ChoiceView, NotebookRequest, NotebookView, RequestedSliceView
from .form import FIELD, KEYS, BadOptions, Options, options_of_form, read_options, render, why_stopped
from .refusal import exclude_from_failures, spawn_error
from .server_enforcement import NoEnforcement, ServerEnforcement, enter_cgroup_first, limiter_of
from .slices import Refusal, SliceClient, Unavailable

STATE_KEY, DEVICES_KEY = "gpu_quota_notebook", "gpu_quota_devices"
"""Keys of the slice's id and its devices in the spawner's state."""

OUR_OPTIONS = frozenset({FIELD, *KEYS})
RETURN_TASKS: set[asyncio.Task[None]] = set()
"""Tasks that return slices later; the event loop itself has only weak references to them."""

ALL_INTERFACES = ("0.0.0.0", "::")  # noqa: S104
PAUSE_S = 1.0
"""Time between two polls of a service that does not answer."""

POST_WAIT_S = 10
"""Time that the hub's own time limit gets beyond the waits for a slice and for the server, to return the slice."""


class GPUQuotaMixin(Spawner):  # type: ignore[misc]
    """Books a slice in ``start``, sets its variables, and returns it when the server ends in any way."""

    start_timeout: int

    _notebook: str | None = None
    """The id of the requested or booked slice, until it is returned."""

    _slice: NotebookView | None = None
    """The slice of the server that is being started."""

    _secret: str | None = None
    """The secret of that slice, for its server alone."""

    _options: Options = Options()
    _wait_is_over = False
    """Whether the start has its slice, or needs none."""

    _server_starts = False
    """Whether the spawner's own ``start`` runs; KubeSpawner's calls ``stop`` to delete an earlier pod of its name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gpu_quota = GPUQuota(config=self.config)
        self.slice_times_s: dict[str, float] = {}
        """Times of this start: ``ask`` until the slice is booked, ``render`` its variables, ``give_back``."""
        self._enforcement = self.make_enforcement()
        self._changed = asyncio.Event()
        self._extended_timeout_s: int | None = None
        self._slices: SliceClient | None = None

    def make_enforcement(self) -> ServerEnforcement | NoEnforcement:
        """The enforcement of the slice on the machine where the server runs."""
        state_dir = self.gpu_quota.state_dir
        return ServerEnforcement(limiter_of(state_dir, self.gpu_quota.cgroup), Servers(state_dir))

    # Start and stop

    async def start(self) -> Any:
        """Book the chosen slice, then start the server; after any failure the slice is returned."""
        self._slice = self._secret = None
        try:
            self._options = self._chosen_options()
            await self._return_slice()
            if self._options.size is not None:
                self._slice = await self._book_slice(self._options)
                await self._enforcement.prepare(self._slice)
            self._end_wait()
            self._server_starts = True
            return await maybe_future(super().start())
        except BaseException as error:
            self._end_wait()
            exclude_from_failures(error, self.handler)
            await self._return_slice()
            raise
        finally:
            self._server_starts = False

    def process_started(self) -> None:
        """Record the server's process before it can use a GPU."""
        self._end_wait()
        super().process_started()
        if self._notebook is not None and (why := self._enforcement.record_start(self._notebook, self.pid)):
            self.log.warning("%s: the server's process is not recorded: %s", self._log_name, why)

    async def stop(self, now: bool = False) -> None:
        """Stop the server, then return its slice, unless its start goes on; a repeated call has no effect."""
        await maybe_future(super().stop(now=now))
        if not self._server_starts:
            await self._return_slice()

    async def poll(self) -> int | None:
        """The spawner's own result; JupyterHub requires that a subclass of Spawner defines it."""
        return cast("int | None", await maybe_future(super().poll()))

    async def run_post_stop_hook(self) -> Any:
        """Return the slice of a server that died without ``stop``; then the hub's own hook."""
        await self._return_slice()
        return await maybe_future(super().run_post_stop_hook())

    async def run_pre_spawn_hook(self) -> Any:
        """The hub's own hook; then the hub's time limit is extended by the waits of a start."""
        result = await maybe_future(super().run_pre_spawn_hook())
        if self.start_timeout != self._extended_timeout_s:
            self._extended_timeout_s = (
                self.start_timeout + self.gpu_quota.spawn_timeout_s + POST_WAIT_S + self.http_timeout
            )
            self.start_timeout = self._extended_timeout_s
        return result

    # State

    def get_state(self) -> dict[str, Any]:
        """The spawner's state and the id of the slice."""
        state = cast("dict[str, Any]", super().get_state())
        return {**state, STATE_KEY: self._notebook, DEVICES_KEY: self._enforcement.devices} if self._notebook else state

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue with a server and its slice after a restart of the hub."""
        super().load_state(state)
        notebook = state.get(STATE_KEY)
        self._notebook = notebook if isinstance(notebook, str) else None
        self._enforcement.devices = [str(device) for device in state.get(DEVICES_KEY) or ()]
        pid = getattr(self, "pid", 0)
        if self._notebook is not None and pid:
            self._enforcement.record_running(self._notebook, pid)

    def clear_state(self) -> None:
        """Forget the server, but not the slice's id before the slice is returned."""
        super().clear_state()
        self._wait_is_over = False

    # The slice

    def _chosen_options(self) -> Options:
        """The options of this start. Raises the refusal of wrong ones."""
        refuse_unknown = not (self.options_form or self.apply_user_options)
        options = read_options(self.user_options, refuse_unknown=refuse_unknown)
        if isinstance(options, BadOptions):
            raise spawn_error(
                f"{self.user.name}'s server was not started: {options.message}", reason="bad_options", status=400
            )
        return options

    async def _book_slice(self, options: Options) -> NotebookView:
        began = time.perf_counter()
        project = options.project or await self._only_project()
        request = NotebookRequest.model_construct(
            user=self.user.name,
            server=self.name,
            project=project,
            pool=options.pool,
            gpu=options.size or "",
            token_digest=hashlib.sha256(self.api_token.encode()).hexdigest() if self.api_token else "",
        )
        view = await self._until_booked(await self._request_slice(request))
        self.slice_times_s["ask"] = time.perf_counter() - began
        self.log.debug("%s: slice %s booked in %.4f s", self._log_name, view.id, self.slice_times_s["ask"])
        return view

    async def _request_slice(self, request: NotebookRequest) -> NotebookView:
        """Request a slice; a cancelled start still waits for the answer, so that the slice can be returned."""
        asking = asyncio.ensure_future(self.slices.request_slice(request))
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._remember(await asking)
            raise
        self._remember(answer)
        if isinstance(answer, Unavailable) and answer.may_be_processed:
            self._return_later(self._slices_after_lost_answer)
        if isinstance(answer, NotebookView):
            return answer
        raise self._spawn_error_of(answer)

    def _remember(self, answer: RequestedSliceView | Refusal | Unavailable) -> None:
        if isinstance(answer, RequestedSliceView):
            self._notebook, self._secret = answer.id, answer.secret

    async def _until_booked(self, view: NotebookView) -> NotebookView:
        """Wait by long polls; the request survives a restart of the service, in its database."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.gpu_quota.spawn_timeout_s
        while view.state in ("requested", "lent"):
            self._slice = view
            self._notify_progress()
            left_s = deadline - loop.time()
            if left_s <= 0:
                why = view.reason.message if view.reason else "No reason was given."
                raise spawn_error(
                    f"{self.user.name}'s GPU slice was not free within {self.gpu_quota.spawn_timeout_s} s. {why} "
                    "Try again later, or start the server without a GPU.",
                    reason="waited_too_long",
                )
            view = await self._poll_slice(view, left_s)
        if view.state == "booked":
            return view
        code, message = view.state, f"The GPU slice was {view.state} before the server started."
        if view.reason is not None:
            code, message = view.reason.code, view.reason.message
        raise spawn_error(message, reason=code)

    async def _poll_slice(self, view: NotebookView, left_s: float) -> NotebookView:
        """The notebook after one long poll; without an answer the same one, after a pause."""
        answer = await self.slices.wait(view, left_s)
        if isinstance(answer, Refusal):
            raise self._spawn_error_of(answer)
        if isinstance(answer, Unavailable):
            await asyncio.sleep(min(PAUSE_S, left_s))
            return view
        return answer

    async def _return_slice(self) -> None:
        """Return the slice if there is one; if the service does not answer, a task repeats it later."""
        notebook, self._notebook = self._notebook, None
        if notebook is None:
            return
        began = time.perf_counter()
        await self._enforcement.release(notebook)
        try:
            answer = await self.slices.return_slice(notebook)
        except asyncio.CancelledError:
            self._notebook = self._notebook or notebook
            raise
        if answer is not None:
            self.log.warning("%s: slice %s is not returned yet: %s", self._log_name, notebook, answer.message)
            self._notebook = self._notebook or notebook

            async def find_slices() -> list[str]:
                present = self.user.spawners.get(self.name)
                is_of_new_start = present is not self and getattr(present, "_notebook", None) == notebook
                return [] if is_of_new_start and present.active else [notebook]

            self._return_later(find_slices)
        self.slice_times_s["give_back"] = time.perf_counter() - began
        self.log.debug("%s: slice %s returned in %.4f s", self._log_name, notebook, self.slice_times_s["give_back"])

    async def _slices_after_lost_answer(self) -> list[str] | Unavailable:
        """Slices that the service booked although its answer was lost.

        They are none if this server starts again with a GPU: the service ends its other slices at that request.
        """
        found = await self.slices.slices_of(self.user.name, self.name)
        present = self.user.spawners.get(self.name)
        if isinstance(found, Unavailable) or present is None or present is self or not present.active:
            return found
        return [] if present._options.size is not None else [each for each in found if each != present._notebook]

    def _return_later(self, find_slices: Callable[[], Awaitable[list[str] | Unavailable]]) -> None:
        task = asyncio.ensure_future(self.slices.return_slices_later(find_slices))
        RETURN_TASKS.add(task)
        task.add_done_callback(RETURN_TASKS.discard)

    async def _only_project(self) -> str:
        """The user's only project, if none was chosen."""
        me = await self.slices.me(self.user.name)
        if not isinstance(me, Refusal | Unavailable):
            projects = sorted({choice.project for choice in me.notebook_choices})
            if len(projects) == 1:
                return projects[0]
            advice = f"choose one of {', '.join(projects)}" if projects else "no project has a GPU quota for notebooks"
            me = Refusal(status=400, reason="no_project", message=f"{self.user.name} chose no project: {advice}.")
        raise self._spawn_error_of(me)

    @property
    def slices(self) -> SliceClient:
        """The client for slices."""
        if self._slices is None:
            settings = self.gpu_quota
            self._slices = SliceClient(
                service_url=settings.service_url, base_url=self._hub_base_url, api_token=settings.api_token
            )
        return self._slices

    # Refusals

    def _spawn_error_of(self, answer: Refusal | Unavailable) -> Exception:
        match answer:
            case Refusal(status=status, reason=reason, message=message):
                return spawn_error(message, reason=reason, status=status)
            case Unavailable(message=message):
                advice = "Start the server without a GPU, or try again in a minute."
                sentence = f"{self.user.name} gets no GPU slice now. {message} {advice}"
                return spawn_error(sentence, reason="service_unavailable", status=424)

    # Progress

    def _end_wait(self) -> None:
        self._wait_is_over = True
        self._notify_progress()

    def _notify_progress(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """The reason of the wait for a slice, whenever it changes; then the spawner's own events."""
        while self._start_pending and not self._wait_is_over:
            changed = self._changed  # of this state: it may change while the event is sent
            reason = self._slice.reason if self._slice else None
            waits = f"Waiting for the GPU slice: {reason.message}" if reason else "Requesting the GPU slice"
            yield {"progress": 10, "message": waits}
            await changed.wait()
        async for event in super().progress():
            yield event

    # The form

    async def get_options_form(self) -> str:
        """The hub's own form, followed by the GPU form.

        Users without a GPU quota get no GPU form, unless the hub has GPU options of an earlier start.
        """
        own = cast("str", await super().get_options_form()) or ""
        me = await self.slices.me(self.user.name)
        if isinstance(me, Refusal | Unavailable):
            self.log.warning("%s: no GPU sizes in the form: %s", self._log_name, me.message)
            return own + render((), notice=f"GPU sizes cannot be shown now. {me.message}")
        choices, stopped = list[ChoiceView](me.notebook_choices), why_stopped(me, self.name)
        if choices:
            return own + render(choices, default=self.gpu_quota.default_gpu, notice=stopped)
        notice = f"{stopped} No project has a GPU quota for your notebooks now.".strip()
        options = read_options(
            (self.orm_spawner.user_options if self.orm_spawner else None) or {}, refuse_unknown=False
        )
        had_gpu = isinstance(options, BadOptions) or options.size is not None
        return own + (render((), notice=notice) if stopped or had_gpu else "")

    async def run_options_from_form(self, form_data: Mapping[str, Any]) -> dict[str, Any]:
        """The hub's own options and the GPU options."""
        others = {key: value for key, value in form_data.items() if key not in OUR_OPTIONS}
        own = await maybe_future(super().run_options_from_form(others))
        return {**own, **options_of_form(form_data)}

    async def options_from_query(self, query_data: Mapping[str, Any]) -> dict[str, Any]:
        """The same from a query, ``/hub/spawn?gpu_size=...``."""
        others = {key: value for key, value in query_data.items() if key not in OUR_OPTIONS}
        own = await maybe_future(super().options_from_query(others)) if others else {}
        return {**own, **options_of_form(query_data)}

    async def _run_apply_user_options(self, user_options: Mapping[str, Any]) -> None:
        """Apply the hub's own options, without ours: JupyterHub 5.3 and later warns of options that no hook applies."""
        others = {key: value for key, value in user_options.items() if key not in OUR_OPTIONS}
        await super()._run_apply_user_options(others)

    # The environment

    def get_env(self) -> dict[str, str]:
        """The spawner's variables and those of this start's slice; no others of ours stay."""
        env = cast("dict[str, str]", super().get_env())
        began = time.perf_counter()
        project = self._options.project or (self._slice.project if self._slice else None)
        found = {
            **without_ours(env),
            **notebook_environment(
                self._slice,
                limited=self._enforcement.limited,
                startup_before=env.get("PYTHONSTARTUP"),
                secret=self._secret,
            ),
            "JUPYTER_GPU_QUOTA_URL": self.notebook_service_url,
            "JUPYTER_GPU_QUOTA_TRACKER_VARIABLES": ",".join(self.gpu_quota.tracker_variables),
            **({"JUPYTER_GPU_QUOTA_PROJECT": project} if project else {}),
        }
        self.slice_times_s["render"] = time.perf_counter() - began
        return found

    def make_preexec_fn(self, name: str) -> Any:
        """The function between fork and exec of the server; only local spawners call this."""
        before = cast("Callable[[], object] | None", super().make_preexec_fn(name))
        return before if self._enforcement.path is None else enter_cgroup_first(self._enforcement.path, before)

    @property
    def notebook_service_url(self) -> str:
        """The address of the service for notebooks of this machine.

        It is the hub's proxy on the loopback, whose port stays over restarts of hub and service. With a TLS proxy it
        is the hub's public address, and without one the service's own.
        """
        path = f"{self._hub_base_url}services/{SERVICE_NAME}/"
        proxy = urlsplit(self.user.settings["proxy"].public_url)
        if self.gpu_quota.notebook_service_url:
            return self.gpu_quota.notebook_service_url
        if proxy.scheme != "https":
            host = proxy.hostname if proxy.hostname and proxy.hostname not in ALL_INTERFACES else "127.0.0.1"
            return f"http://{f'[{host}]' if ':' in host else host}:{proxy.port or 80}{path}"
        public = self.user.settings.get("public_url")
        return f"{public.scheme}://{public.netloc}{path}" if public else self.gpu_quota.service_url.rstrip("/") + path

    @property
    def _hub_base_url(self) -> str:
        base_url: str = self.hub.base_url
        return base_url.removesuffix("hub/")
