"""NVML through nvidia-ml-py, which is imported here only. It runs in the reader process: any call may hang or crash.

Every call answers a value, or ``Unknown`` with the reason. What a device will never tell is asked once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from ..host.processes import boot_id
from .process_lineage import Lineages
from .reading import MIB, DeviceReading, GpuProcess, Reading, cannot_be
from .xids import RECOVERY

LASTING = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION}
LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}
ABSENT = {pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
XID = pynvml.nvmlEventTypeXidCriticalError

RECOVERY_ACTION = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which an older nvidia-ml-py can ask for and does not name."""

EVENT_WAIT_MS, MOST_EVENTS = 1, 64
JUMP_S = 1.0
"""When the clock moved so much against the steady one it was set: samples have its times, and are not to be trusted."""

AHEAD_US = 2_000_000

PERIOD_US = 1_000_000
"""A sample speaks for the time up to its stamp, or from it: a sixth of a second to a second, as the model has it."""

BEHIND_US = 60_000_000
"""A sample that is older than the reading before by more than this was never kept so long: its stamp is no time."""

NO_SHARE = "a MIG instance has no utilisation of its own"


@dataclass(frozen=True, slots=True)
class Unknown:
    """What a call did not tell, and why. ``code`` is NVML's, or -1."""

    why: str
    code: int = -1


@dataclass(frozen=True, slots=True)
class Use:
    """How busy a process kept its busiest engine since the reading before, and until when; None is unknown."""

    percent: int | None
    used_us: int | None


AT_REST = Use(0, None)


class NoGpu(Exception):
    """There is no GPU here; the message says why."""


class Unreadable(Exception):
    """Nothing can be read now; the message says why."""


@dataclass(frozen=True, slots=True)
class _Identity:
    uuid: str
    model: str
    memory_mib: int


class Session:
    """NVML between its start and its end. Raises NoGpu or Unreadable where it cannot be started."""

    def __init__(self) -> None:
        self._never: dict[tuple[str, str], Unknown] = {}
        self._known: dict[int, _Identity] = {}
        self._since: dict[str, int] = {}
        self._read_us: dict[str, int] = {}
        self._lineages = Lineages()
        self._offset_s: float | None = None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            refused = NoGpu if error.value in ABSENT else Unreadable
            raise refused(f"NVML cannot be started: {error}") from None
        self.loaded = driver_loaded()
        self._events, self._unwatched = self._watch()

    def close(self) -> None:
        """End it; nothing that was asked for is valid any more."""
        pynvml.nvmlShutdown()

    def read(self, *, probing: bool = False) -> Reading:
        """Every device once. ``probing``: with what it is able to. Raises Unreadable if NVML has gone away."""
        driver, count = self._whole("nvmlSystemGetDriverVersion"), self._whole("nvmlDeviceGetCount")
        self._lineages.begin()
        jumped = self._clock_was_set()
        devices, notes = list[DeviceReading](), list[str]()
        for index in range(count):
            found = self._device(index, jumped=jumped, probing=probing)
            notes += [found.why] if isinstance(found, Unknown) else []
            devices += [] if isinstance(found, Unknown) else found
        return Reading(
            devices=tuple(devices), driver=_text(driver), loaded=self.loaded, xids=tuple(self._xids()),
            notes=tuple(notes),
        )  # fmt: skip

    # --- calls ----------------------------------------------------------------------------------------------------
    def _whole(self, call: str) -> Any:
        try:
            return getattr(pynvml, call)()
        except pynvml.NVMLError as error:
            raise Unreadable(f"NVML: {error}") from None

    def _ask(self, of: str, call: str, *arguments: Any) -> Any:
        """What a call tells of a device, or Unknown."""
        if (of, call) in self._never:
            return self._never[of, call]
        try:
            return getattr(pynvml, call)(*arguments)
        except pynvml.NVMLError as error:
            unknown = Unknown(f"NVML: {error}", error.value)
        except (AttributeError, TypeError):  # an nvidia-ml-py that has no such call, or an earlier form of it
            unknown = Unknown("this nvidia-ml-py cannot ask for it", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if unknown.code in LASTING:
            self._never[of, call] = unknown
        return unknown

    def _clock_was_set(self) -> bool:
        before, self._offset_s = self._offset_s, time.time() - time.monotonic()
        return before is not None and abs(self._offset_s - before) > JUMP_S

    # --- devices --------------------------------------------------------------------------------------------------
    def _device(self, index: int, *, jumped: bool, probing: bool) -> list[DeviceReading] | Unknown:
        handle = self._ask(f"#{index}", "nvmlDeviceGetHandleByIndex", index)
        identity = handle if isinstance(handle, Unknown) else self._identity(f"#{index}", handle)
        if isinstance(identity, Unknown):
            return self._silent(index, identity)
        self._known[index] = identity
        modes = self._ask(identity.uuid, "nvmlDeviceGetMigMode", handle)
        if isinstance(modes, Unknown) or modes[0] != 1:
            return [self._whole_device(identity, handle, index, jumped=jumped, mig=modes, probing=probing)]
        return list(self._instances(identity, handle, index, probing=probing))

    def _identity(self, place: str, handle: Any) -> _Identity | Unknown:
        told = [
            self._ask(place, "nvmlDeviceGetUUID", handle), self._ask(place, "nvmlDeviceGetName", handle),
            self._memory(place, handle),
        ]  # fmt: skip
        for each in told:
            if isinstance(each, Unknown):
                return each
        uuid, model, memory = told
        memory_mib = int(memory.total) // MIB
        wrong = cannot_be("memory_mib", memory_mib, 0) or ("NVML tells no memory" if memory_mib == 0 else None)
        return Unknown(wrong) if wrong else _Identity(_text(uuid), _text(model), memory_mib)

    def _silent(self, index: int, unknown: Unknown) -> list[DeviceReading] | Unknown:
        """A device that was known and does not answer any more; one that never was cannot be given out."""
        known = self._known.get(index)
        if known is None:
            return Unknown(
                f"GPU {index} is left out, because it does not tell its UUID, model and memory. {unknown.why}"
            )
        why = dict.fromkeys(("memory_used_mib", "percent", "processes", "activity"), unknown.why)
        trouble = unknown.why if unknown.code in LOST else None
        return [
            DeviceReading(
                uuid=known.uuid, index=index, model=known.model, memory_mib=known.memory_mib, why=why, trouble=trouble
            )
        ]

    def _memory(self, of: str, handle: Any) -> Any:
        """Memory by the account that keeps the driver's own apart, where there is one (from driver 510 on)."""
        told = self._ask(of, "nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
        if isinstance(told, Unknown) and told.code in LASTING:
            return self._plain_memory(of, handle)
        return told

    def _plain_memory(self, of: str, handle: Any) -> Any:
        return self._ask(f"{of} v1", "nvmlDeviceGetMemoryInfo", handle)

    def _whole_device(
        self, identity: _Identity, handle: Any, index: int, *, jumped: bool, mig: Any, probing: bool
    ) -> DeviceReading:
        uuid, figures = identity.uuid, _Figures(identity.memory_mib)
        rates = self._ask(uuid, "nvmlDeviceGetUtilizationRates", handle)
        figures.put("percent", rates if isinstance(rates, Unknown) else int(rates.gpu))
        self._put_gauges(figures, uuid, handle)
        activity = Unknown("the machine's clock was set") if jumped else self._activity(uuid, handle)
        if jumped:
            self._since.pop(uuid, None)
            self._read_us.pop(uuid, None)
        processes, mps, held = self._processes(figures, uuid, handle, activity)
        return DeviceReading(
            uuid=uuid, index=index, model=identity.model, memory_mib=identity.memory_mib, processes=processes, mps=mps,
            held_mib=held, trouble=self._trouble(figures, uuid, handle), why=figures.why,
            able=self._able(uuid, handle, mig) if probing else {}, **figures.values,
        )  # fmt: skip

    def _put_gauges(self, figures: _Figures, uuid: str, handle: Any) -> None:
        figures.put("memory_used_mib", self._used(uuid, handle))
        figures.put("temperature_c", self._ask(uuid, "nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU))
        milliwatts = self._ask(uuid, "nvmlDeviceGetPowerUsage", handle)
        figures.put("power_w", milliwatts if isinstance(milliwatts, Unknown) else round(milliwatts / 1000))

    def _used(self, uuid: str, handle: Any) -> Any:
        memory = self._memory(uuid, handle)
        return memory if isinstance(memory, Unknown) else int(memory.used) // MIB

    def _instances(self, parent: _Identity, handle: Any, index: int, *, probing: bool) -> Iterator[DeviceReading]:
        """The MIG instances of a device. They have memory and processes of their own, but no utilisation."""
        most = self._ask(parent.uuid, "nvmlDeviceGetMaxMigDeviceCount", handle)
        for place in range(0 if isinstance(most, Unknown) else most):
            own = self._ask(f"{parent.uuid}/{place}", "nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            identity = own if isinstance(own, Unknown) else self._identity(f"{parent.uuid}/{place}", own)
            if isinstance(identity, _Identity):
                yield self._instance(parent, handle, identity, own, index, probing=probing)

    def _instance(
        self, parent: _Identity, handle: Any, identity: _Identity, own: Any, index: int, *, probing: bool
    ) -> DeviceReading:
        figures = _Figures(identity.memory_mib)
        self._put_gauges(figures, parent.uuid, handle)
        figures.put("memory_used_mib", self._used(identity.uuid, own))
        figures.values["power_w"], figures.why["power_w"] = None, "power is the whole device's"
        figures.put("percent", Unknown(NO_SHARE))
        processes, mps, held = self._processes(figures, identity.uuid, own, Unknown(NO_SHARE))
        return DeviceReading(
            uuid=identity.uuid, index=index, model=identity.model, memory_mib=identity.memory_mib, parent=parent.uuid,
            processes=processes, mps=mps, held_mib=held, trouble=self._trouble(figures, parent.uuid, handle),
            why=figures.why, able=self._able(parent.uuid, handle, (1, 1)) if probing else {}, **figures.values,
        )  # fmt: skip

    # --- processes ------------------------------------------------------------------------------------------------
    def _activity(self, uuid: str, handle: Any) -> dict[int, Use] | Unknown:
        """How busy each process kept its busiest engine since the reading before; who is missing did nothing."""
        told = self._ask(uuid, "nvmlDeviceGetProcessUtilization", handle, self._since.get(uuid, 0))
        now_us = int(time.time() * 1_000_000)
        before_us, self._read_us[uuid] = self._read_us.get(uuid), now_us
        if isinstance(told, Unknown):  # no sample at all is told as "not found", by some drivers as success
            return {} if told.code in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS) else told
        times = [int(each.timeStamp) for each in told if int(each.timeStamp) <= now_us + AHEAD_US]
        self._since[uuid] = max(times, default=0)
        by_pid: dict[int, list[tuple[int, int]]] = {}
        for each in told:
            busiest = max(int(each.smUtil), int(each.memUtil), int(each.encUtil), int(each.decUtil))
            by_pid.setdefault(int(each.pid), []).append((int(each.timeStamp), busiest))
        return {pid: _use_of(samples, before_us, now_us) for pid, samples in by_pid.items()}

    def _processes(
        self, figures: _Figures, of: str, handle: Any, activity: dict[int, Use] | Unknown
    ) -> tuple[tuple[GpuProcess, ...] | None, bool, int | None]:
        """The processes that compute on a device, whether they share it by MPS, and the memory nobody has told of."""
        computing = self._ask(of, "nvmlDeviceGetComputeRunningProcesses", handle)
        if isinstance(computing, Unknown):
            figures.why["processes"] = computing.why
            return None, False, None
        clients = self._ask(of, "nvmlDeviceGetMPSComputeRunningProcesses", handle)
        drawing = self._ask(of, "nvmlDeviceGetGraphicsRunningProcesses", handle)
        clients, drawing = ([] if isinstance(each, Unknown) else each for each in (clients, drawing))
        if isinstance(activity, Unknown):
            figures.why["activity"] = activity.why
        memory = {int(each.pid): self._own_memory(figures, each) for each in (*clients, *computing)}
        found = tuple(self._lineages.of(pid, mib, *_use(activity, pid)) for pid, mib in sorted(memory.items()))
        if any(each.percent is None for each in found):
            figures.why.setdefault("activity", "NVML tells more than 100 percent, which cannot be")
        shown = {int(each.pid): self._own_memory(figures, each) for each in drawing} | memory
        return found, bool(clients) or any(map(self._lineages.serves_mps, found)), _unnamed(figures, shown)

    def _own_memory(self, figures: _Figures, told: Any) -> int | None:
        mib = None if told.usedGpuMemory is None else int(told.usedGpuMemory) // MIB
        if mib is None or cannot_be("memory_used_mib", mib, figures.memory_mib) is not None:
            figures.why["process_memory"] = "NVML does not tell it" if mib is None else f"NVML tells {mib} MiB"
            return None
        return mib

    # --- health ---------------------------------------------------------------------------------------------------
    def _trouble(self, figures: _Figures, uuid: str, handle: Any) -> str | None:
        """What the device says is wrong with it, so that it cannot be used; None where it says nothing."""
        if figures.lost is not None:
            return figures.lost
        action = figures.note("recovery", self._recovery(uuid, handle))
        errors = figures.note("ecc", self._ask(
            uuid, "nvmlDeviceGetTotalEccErrors", handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ))  # fmt: skip
        rows = figures.note("remapped_rows", self._ask(uuid, "nvmlDeviceGetRemappedRows", handle))
        if self._unwatched.get(uuid, self._unwatched.get("")) is not None:
            figures.why["xids"] = self._unwatched.get(uuid) or self._unwatched[""]
        if action in RECOVERY:
            return f"the driver says that {RECOVERY[action]}"
        if errors:
            return f"{errors} uncorrectable memory errors since the driver was loaded or the GPU was reset"
        return "it has no spare rows for faulty memory any more" if rows and rows[3] else None

    def _recovery(self, uuid: str, handle: Any) -> Any:
        told = self._ask(uuid, "nvmlDeviceGetFieldValues", handle, [RECOVERY_ACTION])
        if isinstance(told, Unknown):
            return told
        code = int(told[0].nvmlReturn)
        return Unknown(f"NVML: {pynvml.NVMLError(code)}", code) if code else int(told[0].value.uiVal)

    def _watch(self) -> tuple[Any, dict[str, str]]:
        """Events of all devices; and those that cannot be watched, by UUID ("": none can), with the reason."""
        events = self._ask("", "nvmlEventSetCreate")
        count = self._ask("", "nvmlDeviceGetCount")
        if isinstance(events, Unknown) or isinstance(count, Unknown):
            return None, {"": events.why if isinstance(events, Unknown) else count.why}
        unwatched = {}
        for index in range(count):
            handle = self._ask(f"#{index}", "nvmlDeviceGetHandleByIndex", index)
            uuid = handle if isinstance(handle, Unknown) else self._ask(f"#{index}", "nvmlDeviceGetUUID", handle)
            told = uuid if isinstance(uuid, Unknown) else self._ask(
                f"#{index}", "nvmlDeviceRegisterEvents", handle, XID, events
            )  # fmt: skip
            if isinstance(told, Unknown) and not isinstance(uuid, Unknown):
                unwatched[_text(uuid)] = told.why
        return events, unwatched

    def _xids(self) -> Iterator[tuple[str, int]]:
        """The events that came since the reading before."""
        for _ in range(0 if self._events is None else MOST_EVENTS):
            told = self._ask("events", "nvmlEventSetWait", self._events, EVENT_WAIT_MS)
            if isinstance(told, Unknown):
                return
            uuid = self._ask("events", "nvmlDeviceGetUUID", told.device)
            if told.eventType == XID and not isinstance(uuid, Unknown):
                yield _text(uuid), int(told.eventData)

    # --- what it is able to -----------------------------------------------------------------------------------------
    def _able(self, uuid: str, handle: Any, mig: Any) -> dict[str, str]:
        """What could hold a share of this device to its part; each with why not, empty where it could be had."""
        if isinstance(mig, Unknown):
            has_mig = mig.why
        else:
            has_mig = "" if mig[0] == 1 else "it is turned off; an admin turns it on with nvidia-smi -mig 1"
        return {"mig": has_mig, "limits": self._limits(uuid, handle)}

    def _limits(self, uuid: str, handle: Any) -> str:
        make = getattr(pynvml, "c_nvmlGetMemoryLimits_v1_t", None)
        if make is None:
            return "this nvidia-ml-py cannot ask for it"
        limits = make(nameSpace=b"/sys/fs/cgroup")
        told = self._ask(uuid, "nvmlDeviceGetMemoryLimits_v1", handle, limits)
        return told.why if isinstance(told, Unknown) else ""


class _Figures:
    """The figures of one device as they come in; what is not told, or cannot be, is None and has its reason."""

    def __init__(self, memory_mib: int) -> None:
        self.memory_mib = memory_mib
        self.values: dict[str, Any] = {}
        self.why: dict[str, str] = {}
        self.lost: str | None = None

    def put(self, figure: str, told: Any) -> None:
        known = self.note(figure, told)
        wrong = None if known is None else cannot_be(figure, known, self.memory_mib)
        if wrong:
            self.why[figure] = wrong
        self.values[figure] = None if wrong else known

    def note(self, figure: str, told: Any) -> Any:
        """What was told, None if it was not; a device that says it is lost is."""
        if not isinstance(told, Unknown):
            return told
        self.why[figure] = told.why
        if told.code in LOST:
            self.lost = told.why
        return None


def _use(activity: dict[int, Use] | Unknown, pid: int) -> tuple[int | None, int | None]:
    found = Use(None, None) if isinstance(activity, Unknown) else activity.get(pid, AT_REST)
    return found.percent, found.used_us


def _use_of(samples: list[tuple[int, int]], before_us: int | None, now_us: int) -> Use:
    """Of one process, from rows of (time stamp, percent)."""
    last_us = max((at for at, percent in samples if percent), default=None)
    return Use(_mean([percent for _, percent in samples]), dated(last_us, before_us, now_us))


def dated(last_us: int | None, before_us: int | None, now_us: int) -> int | None:
    """Until when a process used the device at the latest: after the reading before, and not after this one.

    None where its last sample has a stamp that is no time of this clock, or nothing says when the reading before was.
    """
    if last_us is None or before_us is None or not before_us - BEHIND_US <= last_us <= now_us:
        return None
    return min(max(last_us + PERIOD_US, before_us), now_us)


def _mean(values: list[int]) -> int | None:
    """Rounded up, so that what little was done is never nothing; None for what cannot be."""
    return None if max(values) > 100 else -(-sum(values) // len(values))


def _unnamed(figures: _Figures, shown: dict[int, int | None]) -> int | None:
    """The memory of the device that no process accounts for."""
    used, parts = figures.values.get("memory_used_mib"), list(shown.values())
    known = [mib for mib in parts if mib is not None]
    return None if used is None or len(known) < len(parts) else max(0, used - sum(known))


def driver_loaded() -> str:
    """A text that is another one after the driver was loaded anew: versions alone may be the same again."""
    try:
        loaded = Path("/sys/module/nvidia").stat().st_ctime_ns
    except OSError:
        loaded = 0
    return f"{boot_id()}.{loaded}"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
