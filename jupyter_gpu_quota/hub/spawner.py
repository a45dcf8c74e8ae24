"""What makes a hub's spawner ask for a GPU slice before a server starts, and give it back when it ends.

The mixin carries the behaviour; it works in front of any spawner that runs servers as local processes. It decides
nothing: the slice is given by the service, and what a person asked for is checked there again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from jupyterhub.spawner import Spawner
from jupyterhub.utils import maybe_future

from ..backends.local.host.servers import Servers
from ..backends.rendering.variables import notebook_environment, without_ours
from ..settings import SERVICE_NAME, GPUQuota
from ..wire import ChoiceView, NotebookRequest, NotebookView
from .form import FIELD, BadOptions, Options, chosen_in_form, read_options, render, why_stopped
from .refusal import refused, uncounted
from .server_enforcement import ServerHold, entering, limiter_of
from .slices import Away, Refusal, SliceDoor

STATE_KEY, DEVICES_KEY = "gpu_quota_notebook", "gpu_quota_devices"
"""Where the hub keeps the id of a server's slice, and its devices, beside the spawner's own state."""

OUR_OPTIONS = frozenset({FIELD, "gpu_project", "gpu_pool", "gpu_size"})
RETURNS: set[asyncio.Task[None]] = set()
"""Slices that are being given back behind a service that was away; an event loop keeps no task alive by itself."""

EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104
POST_WAIT_S = 10
"""What the hub's own time-out is given beyond the wait for a slice, to give the slice back."""


class GPUQuotaMixin(Spawner):  # type: ignore[misc]
    """Asks for a slice in ``start``, renders it into the environment, and gives it back however the server ends."""

    start_timeout: int

    _notebook: str | None = None
    """The id of the slice that is asked for or booked; kept until it is known to be given back."""

    _slice: NotebookView | None = None
    """The booked slice of the server that is being started."""

    _options: Options = Options()
    _settled = False
    """Whether the start no longer waits for a slice."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gpu_quota = GPUQuota(config=self.config)
        self.slice_times_s: dict[str, float] = {}
        """What the slice cost this start: ``ask`` until booked, ``render`` its variables, ``give_back``."""
        state_dir = self.gpu_quota.state_dir
        self._hold = ServerHold(limiter_of(state_dir, self.gpu_quota.cgroup), Servers(state_dir))
        self._changed = asyncio.Event()
        self._extended_timeout_s: int | None = None
        self._door: SliceDoor | None = None

    # Start and stop

    async def start(self) -> Any:
        """Book what was chosen, then start the server; whatever goes wrong from here on gives the slice back."""
        self._slice = None
        try:
            self._options = self._chosen()
            await self._give_back()
            if self._options.size is not None:
                self._slice = await self._book(self._options)
                await self._hold.take(self._slice)
            self._settle()
            where = await maybe_future(super().start())
            self._note_server()
            return where
        except BaseException as error:
            self._settle()
            uncounted(error, self.handler)
            await self._give_back()
            raise

    def _note_server(self) -> None:
        """Record the server's process while it can have used nothing yet, and nobody can have claimed to be of it."""
        pid = getattr(self, "pid", 0)
        if self._notebook is not None and pid and (why := self._hold.note(self._notebook, pid)):
            self.log.warning("%s: the server's process is not recorded: %s", self._log_name, why)

    async def stop(self, now: bool = False) -> None:
        """End the server, then give its slice back; doing it again does nothing more."""
        await maybe_future(super().stop(now=now))
        await self._give_back()

    async def poll(self) -> int | None:
        """As the spawner says; a slice is given back by ``stop`` and after it, never on a guess."""
        return cast("int | None", await maybe_future(super().poll()))

    async def run_post_stop_hook(self) -> Any:
        """Give the slice back where ``stop`` was never called, as for a server that died; then the hub's own hook."""
        await self._give_back()
        return await maybe_future(super().run_post_stop_hook())

    async def run_pre_spawn_hook(self) -> Any:
        """The hub's own hook; then the hub's time-out is extended by the wait for a slice."""
        result = await maybe_future(super().run_pre_spawn_hook())
        if self.start_timeout != self._extended_timeout_s:
            self._extended_timeout_s = self.start_timeout + self.gpu_quota.spawn_timeout_s + POST_WAIT_S
            self.start_timeout = self._extended_timeout_s
        return result

    # State

    def get_state(self) -> dict[str, Any]:
        """The spawner's state and the id of the slice."""
        state = cast("dict[str, Any]", super().get_state())
        return {**state, STATE_KEY: self._notebook, DEVICES_KEY: self._hold.devices} if self._notebook else state

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up a server, and its slice, after a restart of the hub."""
        super().load_state(state)
        notebook = state.get(STATE_KEY)
        self._notebook = notebook if isinstance(notebook, str) else None
        self._hold.devices = [str(device) for device in state.get(DEVICES_KEY) or ()]
        pid = getattr(self, "pid", 0)
        if self._notebook is not None and pid:
            self._hold.note_again(self._notebook, pid)

    def clear_state(self) -> None:
        """Forget the server. The slice's id stays until it is given back: a service that is away gets it later."""
        super().clear_state()
        self._settled = False

    # The slice

    def _chosen(self) -> Options:
        alone = not self.options_form and not self.apply_user_options
        options = read_options(self.user_options, alone=alone)
        if isinstance(options, BadOptions):
            raise refused(
                f"{self.user.name}'s server was not started: {options.message}", reason="bad_options", status=400
            )
        return options

    async def _book(self, options: Options) -> NotebookView:
        began = time.perf_counter()
        project = options.project or await self._only_project()
        request = NotebookRequest.model_construct(
            user=self.user.name, server=self.name, project=project, pool=options.pool, gpu=options.size or ""
        )
        view = await self._until_booked(await self._ask(request))
        self.slice_times_s["ask"] = time.perf_counter() - began
        self.log.debug("%s: slice %s booked in %.4f s", self._log_name, view.id, self.slice_times_s["ask"])
        return view

    async def _ask(self, request: NotebookRequest) -> NotebookView:
        """Ask; a start that is cancelled meanwhile hears the answer out, so that it can be given back."""
        asking = asyncio.ensure_future(self.door.ask(request))
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._remember(await asking)
            raise
        self._remember(answer)
        if isinstance(answer, Away) and answer.unheard:
            self._later(self._unheard)
        if isinstance(answer, NotebookView):
            return answer
        raise self._not_started(answer)

    def _remember(self, answer: NotebookView | Refusal | Away) -> None:
        if isinstance(answer, NotebookView):
            self._notebook = answer.id

    async def _until_booked(self, view: NotebookView) -> NotebookView:
        """Wait by long polls; the service may restart meanwhile, the request stands in its database."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.gpu_quota.spawn_timeout_s
        while view.state in ("requested", "lent"):
            self._tell(view)
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise self._waited_too_long(view)
            answer = await self.door.wait(view, left_s)
            if isinstance(answer, Refusal):
                raise self._not_started(answer)
            view = answer if isinstance(answer, NotebookView) else view
        if view.state != "booked":
            raise self._not_started(_refusal_of(view))
        return view

    async def _give_back(self) -> None:
        """Return the slice if there is one; with the service away it is tried again, and its id is kept until then."""
        notebook, self._notebook = self._notebook, None
        if notebook is None:
            return
        began = time.perf_counter()
        await self._hold.let_go(notebook)
        try:
            answer = await self.door.give_back(notebook)
        except asyncio.CancelledError:
            self._notebook = self._notebook or notebook
            raise
        if answer is not None:
            self._keep_trying(notebook, answer)
        self.slice_times_s["give_back"] = time.perf_counter() - began
        self.log.debug("%s: slice %s given back in %.4f s", self._log_name, notebook, self.slice_times_s["give_back"])

    def _keep_trying(self, notebook: str, answer: Refusal | Away) -> None:
        async def owed() -> list[str]:
            return [notebook]

        self.log.warning("%s: slice %s is not given back yet: %s", self._log_name, notebook, answer.message)
        self._notebook = self._notebook or notebook
        self._later(owed)

    async def _unheard(self) -> list[str] | Away:
        """What the service may have booked while its answer got lost; nothing once this server is starting anew."""
        present = self.user.spawners.get(self.name)
        if present is not None and present is not self and present.active:
            return []
        return await self.door.held_by(self.user.name, self.name)

    def _later(self, owed: Callable[[], Awaitable[list[str] | Away]]) -> None:
        task = asyncio.ensure_future(self.door.give_back_later(owed))
        RETURNS.add(task)
        task.add_done_callback(RETURNS.discard)

    async def _only_project(self) -> str:
        """The project of somebody who named none: the only one there is."""
        me = await self.door.me(self.user.name)
        if not isinstance(me, Refusal | Away):
            projects = sorted({choice.project for choice in me.notebook_choices})
            if len(projects) == 1:
                return projects[0]
            told = f"choose one of {', '.join(projects)}" if projects else "no project gives notebooks a GPU"
            me = Refusal(status=400, reason="no_project", message=f"{self.user.name} named no project: {told}.")
        raise self._not_started(me)

    @property
    def door(self) -> SliceDoor:
        """The service's notebooks door."""
        if self._door is None:
            settings = self.gpu_quota
            self._door = SliceDoor(
                service_url=settings.service_url, base_url=self._hub_base_url, api_token=settings.api_token
            )
        return self._door

    # Refusals

    def _not_started(self, answer: Refusal | Away) -> Exception:
        match answer:
            case Refusal(status=status, reason=reason, message=message):
                return refused(message, reason=reason, status=status)
            case Away(message=message):
                advice = "Start the server without a GPU, or try again in a minute."
                return refused(f"No GPU slice for {self.user.name} now. {message} {advice}", reason="away", status=424)

    def _waited_too_long(self, view: NotebookView) -> Exception:
        why = view.reason.message if view.reason else "No reason was given."
        return refused(
            f"{self.user.name}'s GPU slice was not free within {self.gpu_quota.spawn_timeout_s} s. {why} "
            "Try again later, or start the server without a GPU.",
            reason="waited_too_long",
        )

    # Progress

    def _tell(self, view: NotebookView) -> None:
        self._slice = view
        self._stir()

    def _settle(self) -> None:
        self._settled = True
        self._stir()

    def _stir(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """The reason why a slice is waited for, again whenever it changes; then the spawner's own events."""
        while self._start_pending and not self._settled:
            yield {"progress": 10, "message": self._waiting_for()}
            await self._changed.wait()
        async for event in super().progress():
            yield event

    def _waiting_for(self) -> str:
        if self._slice is None or self._slice.reason is None:
            return "Asking for the GPU slice"
        return f"Waiting for the GPU slice: {self._slice.reason.message}"

    # The form

    async def get_options_form(self) -> str:
        """The hub's own form with ours behind it.

        People who may have no GPU get none of ours, unless the hub would start their server as they chose it once.
        """
        own = cast("str", await super().get_options_form()) or ""
        me = await self.door.me(self.user.name)
        if isinstance(me, Refusal | Away):
            self.log.warning("%s: no GPU sizes in the form: %s", self._log_name, me.message)
            return own + render((), notice=f"GPU sizes cannot be shown now. {me.message}")
        choices, stopped = list[ChoiceView](me.notebook_choices), why_stopped(me, self.name)
        if choices:
            return own + render(choices, default=self.gpu_quota.default_gpu, notice=stopped)
        notice = f"{stopped} No project gives you a GPU for notebooks now.".strip()
        return own + (render((), notice=notice) if stopped or self._chose_once() else "")

    def _chose_once(self) -> bool:
        """Whether the options that the hub keeps of the last start ask for a GPU."""
        kept = (self.orm_spawner.user_options if self.orm_spawner else None) or {}
        options = read_options(kept, alone=False)
        return isinstance(options, BadOptions) or options.size is not None

    async def run_options_from_form(self, form_data: Mapping[str, Any]) -> dict[str, Any]:
        """The hub's own reading of its fields, and ours."""
        others = {key: value for key, value in form_data.items() if key not in OUR_OPTIONS}
        own = await maybe_future(super().run_options_from_form(others))
        return {**own, **chosen_in_form(form_data)}

    async def options_from_query(self, query_data: Mapping[str, Any]) -> dict[str, Any]:
        """As for the form, from ``/hub/spawn?gpu_size=...``."""
        others = {key: value for key, value in query_data.items() if key not in OUR_OPTIONS}
        own = await maybe_future(super().options_from_query(others)) if others else {}
        return {**own, **chosen_in_form(query_data)}

    # The environment

    def get_env(self) -> dict[str, str]:
        """The spawner's variables, and ours anew at every start: none leaks from the last one or from a person."""
        env = cast("dict[str, str]", super().get_env())
        began = time.perf_counter()
        kept = {**without_ours(env), **self._gpu_environment(env.get("PYTHONSTARTUP"))}
        self.slice_times_s["render"] = time.perf_counter() - began
        return kept

    def make_preexec_fn(self, name: str) -> Any:
        """What the server's process does before it is the server; local spawners alone ask for it."""
        before = cast("Callable[[], object] | None", super().make_preexec_fn(name))
        return before if self._hold.path is None else entering(self._hold.path, before)

    def _gpu_environment(self, startup: str | None) -> dict[str, str]:
        project = self._options.project or (self._slice.project if self._slice else None)
        return {
            **notebook_environment(self._slice, limited=self._hold.limited, startup_before=startup),
            "JUPYTER_GPU_QUOTA_URL": self.notebook_service_url,
            **({"JUPYTER_GPU_QUOTA_PROJECT": project} if project else {}),
        }

    @property
    def notebook_service_url(self) -> str:
        """Where a notebook on this machine reaches the service.

        It is the hub's proxy on the loopback, whose port outlives restarts of hub and service. A proxy that speaks
        TLS is reached by the hub's public address, and without one the service is reached directly.
        """
        path = f"{self._hub_base_url}services/{SERVICE_NAME}/"
        proxy = urlsplit(self.user.settings["proxy"].public_url)
        if self.gpu_quota.notebook_service_url:
            return self.gpu_quota.notebook_service_url
        if proxy.scheme != "https":
            host = proxy.hostname if proxy.hostname and proxy.hostname not in EVERYWHERE else "127.0.0.1"
            return f"http://{f'[{host}]' if ':' in host else host}:{proxy.port or 80}{path}"
        public = self.user.settings.get("public_url")
        return f"{public.scheme}://{public.netloc}{path}" if public else self.gpu_quota.service_url.rstrip("/") + path

    @property
    def _hub_base_url(self) -> str:
        base_url: str = self.hub.base_url
        return base_url.removesuffix("hub/")


def _refusal_of(view: NotebookView) -> Refusal:
    if view.reason is None:
        return Refusal(
            status=409, reason=view.state, message=f"The GPU slice was {view.state} before the server started."
        )
    return Refusal(status=409, reason=view.reason.code, message=view.reason.message)
