"""Messages to a suspended kernel wait until it is restored with its GPU memory, or until the kernel is interrupted.

The server's connection class between a browser's socket and a kernel is extended. Messages of other clients do not
wait; instead the kernel's GPU calls wait, and the kernel is restored as soon as its use is observed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, ClassVar

from jupyter_server.services.kernels.connection import base
from tornado.websocket import WebSocketClosedError

from .suspension import RestoreFailed, Suspension

V1 = "v1.kernel.websocket.jupyter.org"
ANSWERED_WITHOUT_GPU = {"kernel_info_request", "comm_info_request"}
"""Requests of every new browser connection; a kernel answers them without its GPU."""

INTERRUPT = ("control", "interrupt_request")
INTERRUPTED = "The cell was not run: its kernel was interrupted while it waited for its GPU. Run it again if needed."

LINGER_MS = 10_000
"""How long an undelivered message stays in the socket after its connection was closed."""

TO_V1: Any = base.serialize_msg_to_ws_v1
FROM_V1: Any = base.deserialize_msg_from_ws_v1
FROM_BINARY: Any = base.deserialize_binary_message
SETTING = "kernel_websocket_connection_class"


def install(server: Any, suspension: Suspension) -> None:
    """Make new connections wait for suspended kernels."""
    settings = server.web_app.settings
    kind = settings.get(SETTING)
    if isinstance(kind, type) and not issubclass(kind, DelayedMessages):
        metaclass: Any = type(kind)
        delayed = metaclass("DelayedConnection", (DelayedMessages, kind), {"suspension": suspension})
        settings[SETTING] = delayed
        _follow_interrupts(server.kernel_manager, delayed.refuse_waiting)


def _follow_interrupts(kernels: Any, refuse_waiting: Callable[[str], object]) -> None:
    """Refuse what waits for a kernel before the server interrupts it, as a REST request does."""
    interrupt_kernel = kernels.interrupt_kernel

    def interrupt(kernel_id: str, *arguments: Any, **named: Any) -> Any:
        refuse_waiting(kernel_id)
        return interrupt_kernel(kernel_id, *arguments, **named)

    kernels.interrupt_kernel = interrupt


class DelayedMessages:
    """A mixin for a connection class, which has the attributes below. ``waiting``: those with delayed messages."""

    waiting: ClassVar[set[DelayedMessages]] = set()
    suspension: Suspension
    kernel_id: str
    subprotocol: str | None
    session: Any
    write_message: Any
    log: Any
    channels: dict[str, Any]
    kernel_manager: Any

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.delayed: list[Any] = []
        self.waking: asyncio.Task[None] | None = None

    def handle_incoming_message(self, incoming_msg: Any) -> None:
        if self.delayed or self.suspension.is_suspended(self.kernel_id):
            channel, kind = self._channel_and_kind(incoming_msg)
            if (channel, kind) == INTERRUPT:
                self.refuse_waiting(self.kernel_id)
            elif channel in (None, "shell") and kind not in ANSWERED_WITHOUT_GPU:
                self._delay(incoming_msg)
                return
        super().handle_incoming_message(incoming_msg)  # type: ignore[misc]

    def _channel_and_kind(self, raw: Any) -> tuple[str | None, str]:
        try:
            channel, header = header_of(raw, v1=self.subprotocol == V1)
            return channel, header["msg_type"]
        except (ValueError, LookupError, TypeError):
            return "", ""  # the server itself reports the fault

    def _delay(self, raw: Any) -> None:
        self.delayed.append(raw)
        self.waiting.add(self)
        self.waking = self.waking or asyncio.create_task(self._deliver())

    @classmethod
    def refuse_waiting(cls, kernel: str) -> None:
        """Refuse the messages of all connections that wait for a kernel, and give up its request for the slice.

        A cell of another client that waits inside a GPU call ends only when its kernel has its GPU, and keeps it.
        """
        connections = [each for each in cls.waiting if each.kernel_id == kernel]
        for each in connections:
            if each.waking is not None:
                each.waking.cancel()
            each._end_wait(INTERRUPTED)
        if connections:
            cls.suspension.requests.give_up(kernel)

    async def _deliver(self) -> None:
        """Send the delayed messages as soon as the kernel is restored."""
        why = ""
        try:
            await self.suspension.wake(self.kernel_id)
        except RestoreFailed as error:
            why = str(error)
        except Exception as error:  # no message waits for ever
            self.log.exception("jupyter_gpu_quota: kernel %s could not be woken", self.kernel_id)
            why = f"The kernel could not be woken ({error!r}). Run the cell again, or restart the kernel."
        finally:
            if self.waking is asyncio.current_task():  # else the wait has ended by an interrupt
                self._end_wait(why)

    def _end_wait(self, why: str) -> None:
        """Send the delayed messages in their order, or answer each with the reason why not."""
        delayed, self.delayed, self.waking = self.delayed, [], None
        self.waiting.discard(self)
        for raw in delayed:
            if not why:
                self._send(raw)
                continue
            with contextlib.suppress(WebSocketClosedError):
                self._refuse(header_of(raw, v1=self.subprotocol == V1)[1], why)

    def _send(self, raw: Any) -> None:
        """Send a message to the kernel, also if its browser connection was closed in the meantime."""
        shell = self.channels.get("shell")
        if shell is not None and not shell.closed():
            super().handle_incoming_message(raw)  # type: ignore[misc]
            return
        before, stream = self.channels, self.kernel_manager.connect_shell()
        self.channels = {"shell": stream}
        try:
            super().handle_incoming_message(raw)  # type: ignore[misc]
            stream.flush()
        finally:
            self.channels = before
            stream.close(linger=LINGER_MS)

    def _refuse(self, header: dict[str, Any], why: str) -> None:
        """Answer as a kernel whose request fails."""
        kind = str(header.get("msg_type"))
        failed = {"ename": "NoGpuNow", "evalue": why, "traceback": [why]}
        self._reply("iopub", "status", {"execution_state": "busy"}, header)
        if kind == "execute_request":
            self._reply("iopub", "error", failed, header)
        reply = kind.removesuffix("_request") + "_reply"
        self._reply("shell", reply, {"status": "error", **failed, "execution_count": None}, header)
        self._reply("iopub", "status", {"execution_state": "idle"}, header)

    def _reply(self, channel: str, kind: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        message = self.session.msg(kind, content=content, parent={"header": parent})
        if self.subprotocol == V1:
            self.write_message(TO_V1(message, channel, self.session.pack), binary=True)
        else:
            self.write_message(json.dumps({**message, "channel": channel}, default=str))


def header_of(raw: Any, *, v1: bool) -> tuple[str | None, dict[str, Any]]:
    """The channel and the header of a browser's message. Raises ValueError, LookupError or TypeError."""
    if v1:
        channel, parts = FROM_V1(raw)
        return channel, json.loads(parts[0])
    message = FROM_BINARY(raw) if isinstance(raw, bytes) else json.loads(raw)
    return message.get("channel"), message["header"]
