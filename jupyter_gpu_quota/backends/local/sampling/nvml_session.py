"""NVML through nvidia-ml-py, which is imported here only. It runs in the reader process: any call may hang or crash.

Every call returns a value, or ``Unknown`` with the reason. A call that a device never supports is made once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from ..host.processes import boot_id
from .instance_metrics import InstanceMetrics, Unknown
from .process_lineage import Lineages
from .process_use import UNUSED, ProcessUses, Rows, Use
from .reading import MIB, DeviceReading, GpuProcess, Reading, impossible
from .xids import RECOVERY

PERMANENT_ERRORS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
}
ABSENT = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
"""A device or driver without MIG, MPS or graphics."""
LOST_DEVICE_ERRORS = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}
NO_DRIVER_ERRORS = {pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
XID = pynvml.nvmlEventTypeXidCriticalError

RECOVERY_ACTION = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which an older nvidia-ml-py supports and does not name."""

EVENT_WAIT_MS, MAX_EVENTS = 1, 64
CLOCK_JUMP_S = 1.0
"""If the wall clock moved by so much against the monotonic one it was set, and the times of samples are not valid."""

NO_INSTANCE = {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}
"""A place of a MIG device at which there is no instance."""

WHOLE = -1
"""The place of a device without MIG; those of instances are counted from 0."""

NO_PROCESS_USE = "NVML has no figures of the processes of a MIG instance"


class _Processes(NamedTuple):
    """The processes on a device, as fields of its reading. ``is_unread``: they may be known in a later reading."""

    found: tuple[GpuProcess, ...] | None
    is_unread: bool = False
    mps: bool = False
    unlisted_mib: int | None = None
    unlisted: tuple[int, ...] = ()


class NoGpu(Exception):
    """This machine has no GPU; the message is the reason."""


class Unreadable(Exception):
    """No device can be read now; the message is the reason."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """``parent`` is the UUID of the device of an instance, ``gpu_instance`` the number of its GPU instance there.

    ``gpu_instance`` is None for a device, and where the driver does not say it.
    """

    uuid: str
    model: str
    memory_mib: int
    parent: str | None = None
    gpu_instance: int | None = None


class Session:
    """NVML between its start and its end. Raises NoGpu or Unreadable where it cannot be started."""

    def __init__(self) -> None:
        self._unsupported: dict[tuple[str, str], Unknown] = {}
        self._known: dict[int, dict[int, _Identity]] = {}
        """The device at each index, or its instances, by place."""
        self._notes: list[str] = []
        self._uses = ProcessUses()
        self._lineages = Lineages()
        self._metrics = InstanceMetrics(self._call)
        self._offset_s: float | None = None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            refused = NoGpu if error.value in NO_DRIVER_ERRORS else Unreadable
            raise refused(f"NVML cannot be started: {error}") from None
        self.loaded = driver_loaded()
        self._events, self._unwatched = self._watch()

    def close(self) -> None:
        """Shut NVML down; its handles are invalid from now on."""
        pynvml.nvmlShutdown()

    def read(self, *, probing: bool = False) -> Reading:
        """Every device once. ``probing``: with its capabilities. Raises Unreadable if NVML does not answer."""
        try:
            driver, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise Unreadable(f"NVML: {error}") from None
        self._lineages.begin()
        self._metrics.begin()
        before, self._offset_s = self._offset_s, time.time() - time.monotonic()
        clock_was_set = before is not None and abs(self._offset_s - before) > CLOCK_JUMP_S
        devices, self._notes = list[DeviceReading](), []
        found = {index: self._device_at(index) for index in range(count)}
        self._forget_moved({index: identity for index, (_, identity) in found.items()})
        for index, (handle, identity) in found.items():
            devices += self._devices_of(index, handle, identity, clock_was_set=clock_was_set, probing=probing)
        return Reading(
            devices=tuple(devices), driver=_text(driver), loaded=self.loaded, xids=tuple(self._xids()),
            notes=tuple(dict.fromkeys(self._notes)),
        )  # fmt: skip

    # --- calls ----------------------------------------------------------------------------------------------------
    def _call(self, of: str, call: str, *arguments: Any, convert: Callable[[Any], Any] = lambda result: result) -> Any:
        """The converted result of a call for a device, or Unknown."""
        if (of, call) in self._unsupported:
            return self._unsupported[of, call]
        try:
            return convert(getattr(pynvml, call)(*arguments))
        except pynvml.NVMLError as error:
            unknown = Unknown(f"NVML: {error}", error.value)
        except (
            AttributeError,
            TypeError,
            pynvml.NVMLLibraryMismatchError,
        ):  # a driver or an nvidia-ml-py without this call, or with an earlier form of it
            unknown = Unknown(
                "this driver, or this nvidia-ml-py, does not support it", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
            )
        if unknown.code in PERMANENT_ERRORS:
            self._unsupported[of, call] = unknown
        return unknown

    # --- devices --------------------------------------------------------------------------------------------------
    def _device_at(self, index: int) -> tuple[Any, _Identity | Unknown]:
        """The handle and the identity of the device at an index."""
        handle = self._call(f"#{index}", "nvmlDeviceGetHandleByIndex", index)
        return handle, handle if isinstance(handle, Unknown) else self._identity(f"#{index}", handle)

    def _forget_moved(self, found: Mapping[int, _Identity | Unknown]) -> None:
        """Forget what was found at an index where the device answers at another one now."""
        now_at = {each.uuid: index for index, each in found.items() if isinstance(each, _Identity)}
        self._known = {
            index: known
            for index, known in self._known.items()
            if all(now_at.get(each.parent or each.uuid, index) == index for each in known.values())
        }

    def _devices_of(
        self, index: int, handle: Any, identity: _Identity | Unknown, *, clock_was_set: bool, probing: bool
    ) -> list[DeviceReading]:
        """The device at an index, or its instances; those that were found before and do not answer are unknown."""
        if isinstance(identity, Unknown):
            return self._silent_devices(index, identity)
        modes = self._call(identity.uuid, "nvmlDeviceGetMigMode", handle)
        if isinstance(modes, Unknown) and modes.code not in ABSENT:  # it may have instances
            return self._silent_devices(index, modes)
        if isinstance(modes, Unknown) or modes[0] != 1:
            self._known[index] = {WHOLE: identity}
            return [
                self._whole_device(identity, handle, index, clock_was_set=clock_was_set, mig=modes, probing=probing)
            ]
        self._known.setdefault(index, {}).pop(WHOLE, None)  # its instances are the devices
        most = self._call(identity.uuid, "nvmlDeviceGetMaxMigDeviceCount", handle)
        if isinstance(most, Unknown):
            return self._silent_devices(index, most)
        return self._instances(identity, handle, index, most, probing=probing)

    def _identity(self, place: str, handle: Any, parent: str | None = None) -> _Identity | Unknown:
        uuid = self._call(place, "nvmlDeviceGetUUID", handle, convert=_text)
        model = self._call(place, "nvmlDeviceGetName", handle, convert=_text)
        memory_mib = self._memory(place, handle, lambda memory: int(memory.total) // MIB)
        number = None if parent is None else self._call(place, "nvmlDeviceGetGpuInstanceId", handle)
        if isinstance(number, Unknown) and number.code in PERMANENT_ERRORS:
            number = None
        for each in (uuid, model, memory_mib, number):
            if isinstance(each, Unknown):
                return each
        fault = impossible("memory_mib", memory_mib, 0) or ("NVML reports no memory" if memory_mib == 0 else None)
        return Unknown(fault) if fault else _Identity(uuid, model, memory_mib, parent, number)

    def _silent_devices(self, index: int, unknown: Unknown) -> list[DeviceReading]:
        """The device or the instances that were found at an index before, as unknown; without any a note."""
        if not self._known.get(index):
            what = "its UUID, model, memory, MIG mode or instances cannot be read"
            self._notes.append(f"GPU {index} is left out: {what}. {unknown.why}")
            return []
        return [_silent(index, known, unknown) for _, known in sorted(self._usable(index).items())]

    def _usable(self, index: int) -> dict[int, _Identity]:
        """The device or the instances of an index, without compute instances that share the memory of a GPU instance.

        Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, "Compute Instance".
        """
        known = self._known[index]
        numbers = Counter(each.gpu_instance for each in known.values() if each.gpu_instance is not None)
        shared = {number for number, count in numbers.items() if count > 1}
        for number in sorted(shared):
            what = f"the compute instances of GPU instance {number} of GPU {index}"
            self._notes.append(f"{what} are left out: they share its memory. Create only one in a GPU instance")
        return {place: each for place, each in known.items() if each.gpu_instance not in shared}

    def _memory(self, of: str, handle: Any, convert: Callable[[Any], int]) -> Any:
        """Memory by the call that excludes the driver's own, where it exists (from driver 510 on)."""
        found = self._call(of, "nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2, convert=convert)
        if isinstance(found, Unknown) and found.code in PERMANENT_ERRORS:
            return self._call(f"{of} v1", "nvmlDeviceGetMemoryInfo", handle, convert=convert)
        return found

    def _whole_device(
        self, identity: _Identity, handle: Any, index: int, *, clock_was_set: bool, mig: Any, probing: bool
    ) -> DeviceReading:
        uuid = identity.uuid
        percent = self._call(uuid, "nvmlDeviceGetUtilizationRates", handle, convert=lambda rates: int(rates.gpu))
        if clock_was_set:
            activity: dict[int, Use] | Unknown = Unknown("the machine's clock was set")
            self._uses.forget(uuid)
        else:
            activity = self._uses.read(uuid, partial(self._process_rows, uuid, handle), _clock_us)
        probed = self._probe(uuid, handle, mig) if probing else {}
        return self._reading(identity, handle, index, (uuid, handle), percent, activity, probed)

    def _instances(
        self, parent: _Identity, handle: Any, index: int, most: int, *, probing: bool
    ) -> list[DeviceReading]:
        """The MIG instances of a device. They have memory and processes of their own, but no use of each process.

        An instance that was found before and does not answer is unknown; one whose place is empty is gone.
        """
        probed = self._probe(parent.uuid, handle, (1, 1)) if probing else {}
        known, readings, silent = dict[int, _Identity](), dict[int, DeviceReading](), dict[int, Unknown]()
        before = self._known[index]
        for place in range(most):
            own = self._call(f"{parent.uuid}/{place}", "nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            if isinstance(own, Unknown) and (own.code in NO_INSTANCE or (before and place not in before)):
                continue
            found = own if isinstance(own, Unknown) else self._identity(f"{parent.uuid}/{place}", own, parent.uuid)
            if isinstance(found, Unknown):
                silent[place] = found
                continue
            percent = self._metrics.percent(found.uuid, handle, own)
            physical, activity = (parent.uuid, handle), Unknown(NO_PROCESS_USE, pynvml.NVML_ERROR_NOT_SUPPORTED)
            readings[place] = self._reading(found, own, index, physical, percent, activity, probed)
            known[place] = found
        kept = self._kept_instances(index, silent, known)
        self._known[index] = known | kept
        readings |= {place: _silent(index, found, silent[place]) for place, found in kept.items()}
        return [readings[place] for place in sorted(self._usable(index))]

    def _kept_instances(
        self, index: int, silent: Mapping[int, Unknown], known: Mapping[int, _Identity]
    ) -> dict[int, _Identity]:
        """The instances that were found before at the places that do not answer; a note about every other one."""
        before, answered = self._known[index], {each.uuid for each in known.values()}
        for place, unknown in silent.items():
            if place not in before:
                self._notes.append(f"a MIG instance of GPU {index} is left out: it cannot be read. {unknown.why}")
        return {  # one that answers at another place was moved
            place: before[place] for place in silent if place in before and before[place].uuid not in answered
        }

    def _reading(
        self, identity: _Identity, handle: Any, index: int, physical: tuple[str, Any], percent: Any,
        activity: dict[int, Use] | Unknown, probed: dict[str, Unknown | None],
    ) -> DeviceReading:  # fmt: skip
        """The reading of a device or of an instance; ``physical`` is the device, by UUID and handle."""
        uuid, device = physical
        figures = _Figures(identity.memory_mib)
        figures.put("percent", percent)
        figures.put("memory_used_mib", self._memory(identity.uuid, handle, lambda memory: int(memory.used) // MIB))
        figures.put("temperature_c", self._call(uuid, "nvmlDeviceGetTemperature", device, pynvml.NVML_TEMPERATURE_GPU))
        watts = self._call(uuid, "nvmlDeviceGetPowerUsage", device, convert=lambda milliwatts: round(milliwatts / 1000))
        figures.put("power_w", watts if identity.parent is None else Unknown("power is the whole device's"))
        processes = self._processes(figures, identity.uuid, handle, activity)
        unprobed = [name for name, found in probed.items() if found and found.code not in PERMANENT_ERRORS]
        return DeviceReading(
            uuid=identity.uuid, index=index, model=identity.model, memory_mib=identity.memory_mib,
            parent=identity.parent, processes=processes.found, mps=processes.mps, unlisted_mib=processes.unlisted_mib,
            unlisted=processes.unlisted, trouble=self._trouble(figures, uuid, device),
            activity_failed=isinstance(activity, Unknown) and activity.code not in PERMANENT_ERRORS,
            why=figures.why, unavailable={name: found.why if found else "" for name, found in probed.items()},
            unprobed=(*unprobed, *(["processes"] if processes.is_unread else [])),
            **figures.values,
        )  # fmt: skip

    # --- processes ------------------------------------------------------------------------------------------------
    def _process_rows(self, uuid: str, handle: Any, since_us: int) -> Rows | Unknown:
        """The driver's samples of processes; without one its answer is "not found", from some drivers success."""
        found = self._call(uuid, "nvmlDeviceGetProcessUtilization", handle, since_us)
        if isinstance(found, Unknown):
            return {} if found.code in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS) else found
        rows: dict[int, list[tuple[int, int]]] = {}
        for each in found:
            busiest = max(int(each.smUtil), int(each.memUtil), int(each.encUtil), int(each.decUtil))
            rows.setdefault(int(each.pid), []).append((int(each.timeStamp), busiest))
        return rows

    def _processes(self, figures: _Figures, of: str, handle: Any, activity: dict[int, Use] | Unknown) -> _Processes:
        """The processes on a device."""
        computing = self._call(of, "nvmlDeviceGetComputeRunningProcesses", handle)
        others = [
            self._call(of, call, handle)
            for call in ("nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
        ]
        clients, graphics = ([] if isinstance(each, Unknown) and each.code in ABSENT else each for each in others)
        for each in (computing, clients, graphics):
            if isinstance(each, Unknown):
                figures.why["processes"] = each.why
                return _Processes(None, is_unread=each.code not in PERMANENT_ERRORS)
        if isinstance(activity, Unknown):
            figures.why["activity"] = activity.why
        memory = {int(each.pid): self._own_memory(figures, each) for each in (*clients, *computing)}
        shown = {int(each.pid): self._own_memory(figures, each) for each in graphics} | memory
        found = tuple(
            self._lineages.of(pid, mib, *_use(activity, pid), graphics_only=pid not in memory)
            for pid, mib in sorted(shown.items())
        )
        if any(each.percent is None for each in found):
            figures.why.setdefault("activity", "NVML reports more than 100 percent, which is impossible")
        used = {} if isinstance(activity, Unknown) else activity
        return _Processes(
            found=found, mps=bool(clients) or any(map(self._lineages.serves_mps, found)),
            unlisted_mib=_unlisted_memory(figures, shown),
            unlisted=tuple(sorted(pid for pid, use in used.items() if use.percent != 0 and pid not in shown)),
        )  # fmt: skip

    def _own_memory(self, figures: _Figures, process: Any) -> int | None:
        mib = None if process.usedGpuMemory is None else -(-int(process.usedGpuMemory) // MIB)
        if not mib or impossible("memory_used_mib", mib, figures.memory_mib) is not None:
            figures.why["process_memory"] = "NVML does not report it" if mib is None else f"NVML reports {mib} MiB"
            return None
        return mib

    # --- health ---------------------------------------------------------------------------------------------------
    def _trouble(self, figures: _Figures, uuid: str, handle: Any) -> str | None:
        """The reason that the device reports for being unusable; None without one."""
        if figures.lost is not None:
            return figures.lost
        action = self._call(uuid, "nvmlDeviceGetFieldValues", handle, [RECOVERY_ACTION], convert=_field)
        action = figures.note("recovery", action)
        errors = figures.note("ecc", self._call(
            uuid, "nvmlDeviceGetTotalEccErrors", handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ))  # fmt: skip
        rows = figures.note("remapped_rows", self._call(uuid, "nvmlDeviceGetRemappedRows", handle))
        if self._unwatched.get(uuid, self._unwatched.get("")) is not None:
            figures.why["xids"] = self._unwatched.get(uuid) or self._unwatched[""]
        if action in RECOVERY:
            return f"the driver reports that {RECOVERY[action]}"
        if errors:
            return f"{errors} uncorrectable memory errors since the driver was loaded or the GPU was reset"
        return "it has no spare rows for faulty memory any more" if rows and rows[3] else None

    def _watch(self) -> tuple[Any, dict[str, str]]:
        """Register for the events of all devices. Returns the events, and why devices have none, by UUID ("": all)."""
        events = self._call("", "nvmlEventSetCreate")
        count = self._call("", "nvmlDeviceGetCount")
        if isinstance(events, Unknown) or isinstance(count, Unknown):
            return None, {"": events.why if isinstance(events, Unknown) else count.why}
        unwatched = {}
        for index in range(count):
            handle = self._call(f"#{index}", "nvmlDeviceGetHandleByIndex", index)
            uuid = handle if isinstance(handle, Unknown) else self._call(f"#{index}", "nvmlDeviceGetUUID", handle)
            if isinstance(uuid, Unknown):
                continue
            registered = self._call(f"#{index}", "nvmlDeviceRegisterEvents", handle, XID, events)
            if isinstance(registered, Unknown):
                unwatched[_text(uuid)] = registered.why
        return events, unwatched

    def _xids(self) -> Iterator[tuple[str, int]]:
        """The events since the previous reading."""
        for _ in range(0 if self._events is None else MAX_EVENTS):
            event = self._call("events", "nvmlEventSetWait", self._events, EVENT_WAIT_MS)
            if isinstance(event, Unknown):
                return
            uuid = self._call("events", "nvmlDeviceGetUUID", event.device)
            if event.eventType == XID and not isinstance(uuid, Unknown):
                yield _text(uuid), int(event.eventData)

    # --- capabilities -----------------------------------------------------------------------------------------------
    def _probe(self, uuid: str, handle: Any, mig: Any) -> dict[str, Unknown | None]:
        """Why each mechanism that could enforce shares of this device is unavailable; None where it is not."""
        off = Unknown("it is turned off; an admin turns it on with nvidia-smi -mig 1", pynvml.NVML_ERROR_NOT_SUPPORTED)
        has_mig = mig if isinstance(mig, Unknown) else None if mig[0] == 1 else off
        make = getattr(pynvml, "c_nvmlGetMemoryLimits_v1_t", None)
        limits: Any = Unknown("this nvidia-ml-py does not support it", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if make is not None:
            limits = self._call(uuid, "nvmlDeviceGetMemoryLimits_v1", handle, make(nameSpace=b"/sys/fs/cgroup"))
        return {"mig": has_mig, "limits": limits if isinstance(limits, Unknown) else None}


class _Figures:
    """The figures of one device; an unknown or impossible figure is None and has its reason."""

    def __init__(self, memory_mib: int) -> None:
        self.memory_mib = memory_mib
        self.values: dict[str, Any] = {}
        self.why: dict[str, str] = {}
        self.lost: str | None = None

    def put(self, figure: str, result: Any) -> None:
        known = self.note(figure, result)
        fault = None if known is None else impossible(figure, known, self.memory_mib)
        if fault:
            self.why[figure] = fault
        self.values[figure] = None if fault else known

    def note(self, figure: str, result: Any) -> Any:
        """The result of a call; None if it is unknown. ``lost`` is set where the call reports a lost device."""
        if not isinstance(result, Unknown):
            return result
        self.why[figure] = result.why
        if result.code in LOST_DEVICE_ERRORS:
            self.lost = result.why
        return None


def _silent(index: int, known: _Identity, unknown: Unknown) -> DeviceReading:
    """A device or an instance that does not answer any more."""
    why = dict.fromkeys(("memory_used_mib", "percent", "processes", "activity"), unknown.why)
    trouble = unknown.why if unknown.code in LOST_DEVICE_ERRORS else None
    return DeviceReading(
        uuid=known.uuid, index=index, model=known.model, memory_mib=known.memory_mib, parent=known.parent, why=why,
        trouble=trouble,
    )  # fmt: skip


def _use(activity: dict[int, Use] | Unknown, pid: int) -> tuple[int | None, int | None]:
    found = Use(None, None) if isinstance(activity, Unknown) else activity.get(pid, UNUSED)
    return found.percent, found.used_us


def _clock_us() -> int:
    return int(time.time() * 1_000_000)


def _unlisted_memory(figures: _Figures, by_process: dict[int, int | None]) -> int | None:
    """The used memory of the device that no listed process accounts for."""
    used, known = figures.values.get("memory_used_mib"), [mib for mib in by_process.values() if mib is not None]
    return None if used is None or len(known) < len(by_process) else max(0, used - sum(known))


def _field(values: Any) -> int:
    """The value of one field. Raises NVMLError where the device does not have it."""
    if code := int(values[0].nvmlReturn):
        raise pynvml.NVMLError(code)
    return int(values[0].value.uiVal)


def driver_loaded() -> str:
    """A text that changes when the driver is loaded again: its version may stay the same."""
    try:
        loaded = Path("/sys/module/nvidia").stat().st_ctime_ns
    except OSError:
        loaded = 0
    return f"{boot_id()}.{loaded}"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
