"""Reads GPUs through NVML; runs in a process of its own, because an NVML call may hang in the kernel for ever.

    stdin   one line asks for one reading; end of file ends the process
    stdout  one line of JSON answers: {"samples": [...], "xids": [[uuid, number], ...]} or {"error": sentence}

NVML is never shut down: the process ends instead, so no call can be in flight on a closed library. The only module
that imports pynvml.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import pynvml as nvml

_MEGAHERTZ = 1e6
_SLOWDOWN = (
    nvml.nvmlClocksEventReasonHwSlowdown
    | nvml.nvmlClocksEventReasonHwThermalSlowdown
    | nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
)
_MOST_EVENTS = 256  # of one reading: a GPU that floods must not hold up the reading of the others

_SENTENCES = {
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 is not here: no NVIDIA driver on this host, or a container without "
        "NVIDIA_DRIVER_CAPABILITIES=utility; GPUs are not watched."
    ),
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA kernel driver is not loaded: load it (modprobe nvidia) or give the container its devices; "
        "GPUs are not watched."
    ),
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "NVIDIA's library and kernel driver have different versions, as after an upgrade without a reboot: "
        "reboot or reload the driver; GPUs are not watched."
    ),
    nvml.NVML_ERROR_NO_PERMISSION: (
        "no permission to use the NVIDIA devices: give this user access to /dev/nvidia*; GPUs are not watched."
    ),
    nvml.NVML_ERROR_UNKNOWN: (
        "NVML answers 'Unknown Error', as in a container after systemctl daemon-reload took its devices away: "
        "restart the container; GPUs are not watched."
    ),
}


def sentence_of(error: nvml.NVMLError) -> str:
    """Say in one sentence why NVML as a whole does not answer."""
    return _SENTENCES.get(error.value, f"NVML does not answer ({error}): see nvidia-smi; GPUs are not watched.")


# ---- what is read of one device


@dataclass(frozen=True, slots=True)
class Query:
    """Signals that one call of NVML gives together; `read` takes a handle and may raise `NVMLError`."""

    signals: tuple[str, ...]
    read: Callable[[Any], tuple[float, ...]]

    def values(self, handle: Any) -> dict[str, float]:
        """Read the device and name what came."""
        return dict(zip(self.signals, map(float, self.read(handle)), strict=True))


def _memory(handle: Any) -> tuple[float, ...]:
    """Used and total bytes; `used` of the first version of the call would include what the driver reserves."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch):
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
    return info.used, info.total


def _utilization(handle: Any) -> tuple[float, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


def _clock_events(handle: Any) -> tuple[float, ...]:
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except nvml.NVMLError_FunctionNotFound:  # the name before driver 535
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return reasons, bool(reasons & _SLOWDOWN)


def _remapped_rows(handle: Any) -> tuple[float, ...]:
    _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return pending, failed


def _field(number: int) -> Callable[[Any], tuple[float, ...]]:
    def read(handle: Any) -> tuple[float, ...]:
        value = nvml.nvmlDeviceGetFieldValues(handle, [number])[0]
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        kind = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}.get(value.valueType, "ullVal")
        return (getattr(value.value, kind),)

    return read


def _one(function: str, *arguments: Any, scale: float = 1.0) -> Callable[[Any], tuple[float, ...]]:
    """Call the function of pynvml by name and scale its one result to base units."""
    return lambda handle: (getattr(nvml, function)(handle, *arguments) * scale,)


_MIG = "device.gpu_mig_enabled"
_ECC = "nvmlDeviceGetTotalEccErrors"

QUERIES = (
    Query(("device.gpu_memory_used_bytes", "device.gpu_memory_total_bytes"), _memory),
    Query(("device.gpu_utilization_ratio", "device.gpu_memory_utilization_ratio"), _utilization),
    Query(("device.gpu_temperature_celsius",), _one("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)),
    Query(("device.gpu_memory_temperature_celsius",), _field(nvml.NVML_FI_DEV_MEMORY_TEMP)),
    Query(("device.gpu_power_watts",), _one("nvmlDeviceGetPowerUsage", scale=1e-3)),
    Query(("device.gpu_power_limit_watts",), _one("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)),
    Query(("device.gpu_energy_joules",), _one("nvmlDeviceGetTotalEnergyConsumption", scale=1e-3)),
    Query(("device.gpu_sm_clock_hertz",), _one("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM, scale=_MEGAHERTZ)),
    Query(("device.gpu_memory_clock_hertz",), _one("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM, scale=_MEGAHERTZ)),
    Query(("device.gpu_clock_event_reasons", "device.gpu_hw_slowdown"), _clock_events),
    Query(("device.gpu_ecc_corrected",), _one(_ECC, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC)),
    Query(("device.gpu_ecc_uncorrected",), _one(_ECC, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)),
    Query(("device.gpu_remapped_rows_pending", "device.gpu_remapped_rows_failed"), _remapped_rows),
    Query(("device.gpu_pcie_replays",), _one("nvmlDeviceGetPcieReplayCounter")),
    Query((_MIG,), lambda handle: (nvml.nvmlDeviceGetMigMode(handle)[0],)),
)

MIG_QUERIES = QUERIES[:2]
"""Of a slice only memory has a meaning everywhere; the rest belongs to the whole GPU."""

PROCESS_MEMORY = "device.gpu_process_memory_bytes"
_PER_GPU = tuple(signal for query in QUERIES for signal in query.signals)


@dataclass(slots=True)
class DeviceReading:
    """One device, as it goes over the pipe; the fields are those of `records.Sample`."""

    entity: str
    labels: dict[str, str] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    unsupported: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def ask(self, signals: tuple[str, ...], read: Callable[[], Mapping[str, float]]) -> None:
        """Run one query and file its result: a value, not offered by this device, or failed with a reason."""
        try:
            self.values.update(read())
        except nvml.NVMLError_NotSupported:
            self.unsupported.extend(signals)
        except nvml.NVMLError_FunctionNotFound:
            self.failed.update(dict.fromkeys(signals, "this driver's NVML is too old to offer it"))
        except nvml.NVMLError_GpuIsLost:
            raise
        except nvml.NVMLError as error:
            self.failed.update(dict.fromkeys(signals, str(error)))

    def lost(self, reason: str) -> DeviceReading:
        """Say that the GPU has fallen off the bus: nothing else about it is known any more."""
        self.values = {"device.gpu_lost": 1.0}
        self.unsupported = []
        self.failed = dict.fromkeys(_PER_GPU, reason)
        return self


def _process_memory(handle: Any) -> dict[str, float]:
    """Bytes by pid; empty when nothing runs. Pids are the host's; those whose memory the driver hides are left out."""
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    known = {f"{PROCESS_MEMORY}[{process.pid}]": float(process.usedGpuMemory or 0) for process in processes}
    hidden = [process.pid for process in processes if process.usedGpuMemory is None]
    for pid in hidden:
        del known[f"{PROCESS_MEMORY}[{pid}]"]
    if hidden and not known:
        raise nvml.NVMLError_NotSupported
    return known


def _read_device(reading: DeviceReading, handle: Any, queries: tuple[Query, ...]) -> DeviceReading:
    """Fill in everything about one device. Raises nothing but `NVMLError_GpuIsLost`."""
    for query in queries:
        reading.ask(query.signals, partial(query.values, handle))
    reading.ask((PROCESS_MEMORY,), partial(_process_memory, handle))
    return reading


# ---- all devices


class NvmlReader:
    """Reads all GPUs; remembers those it has seen, so that one that vanishes is reported and not forgotten."""

    def __init__(self) -> None:
        """Load and initialise the library. Raises `NVMLError`."""
        nvml.nvmlInit()
        self._labels: dict[str, dict[str, str]] = {}  # uuid -> labels, also of GPUs that are gone
        self._uuids: dict[int, str] = {}  # index -> uuid as last seen
        self._addresses: dict[int | None, str] = {}  # handle -> uuid: a lost GPU no longer tells its uuid
        self._events = EventSet()

    def read(self) -> dict[str, Any]:
        """Give one answer as it goes over the pipe. Raises `NVMLError` when NVML as a whole does not answer."""
        begun = time.monotonic()
        count = nvml.nvmlDeviceGetCount()
        readings = [reading for index in range(count) for reading in self._read_index(index)]
        here = {reading.entity for reading in readings}
        readings += [
            DeviceReading(uuid, labels).lost("NVML no longer lists this GPU")
            for uuid, labels in self._labels.items()
            if uuid not in here
        ]
        xids = self._events.take(self._addresses)
        node = DeviceReading("nvml", {"driver": _text(nvml.nvmlSystemGetDriverVersion)})
        node.values = {"device.gpu_count": float(count), "device.nvml_read_seconds": time.monotonic() - begun}
        return {"samples": [asdict(reading) for reading in [*readings, node]], "xids": xids}

    def _read_index(self, index: int) -> list[DeviceReading]:
        """Read one GPU and its MIG slices."""
        known = self._uuids.get(index, f"gpu-{index}")
        reading = DeviceReading(known, self._labels.get(known, {"gpu": str(index)}))
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError_GpuIsLost as error:
            return [reading.lost(str(error))]
        except nvml.NVMLError as error:
            reading.failed.update(dict.fromkeys(_PER_GPU, str(error)))
            return [reading]
        if uuid != self._uuids.get(index):
            self._meet(index, uuid, handle)
        reading.entity, reading.labels = uuid, self._labels[uuid]
        return self._read_handle(reading, handle)

    def _read_handle(self, reading: DeviceReading, handle: Any) -> list[DeviceReading]:
        reading.values["device.gpu_lost"] = 0.0
        if not self._events.watches(reading.entity):
            reading.unsupported.append("device.xid_errors")
        try:
            _read_device(reading, handle, QUERIES)
            return [reading, *(self._slices(reading, handle) if reading.values.get(_MIG) else [])]
        except nvml.NVMLError_GpuIsLost as error:
            return [reading.lost(str(error))]

    def _meet(self, index: int, uuid: str, handle: Any) -> None:
        """Note a GPU that is new at this index."""
        name, bus = _text(nvml.nvmlDeviceGetName, handle), _text(lambda it: nvml.nvmlDeviceGetPciInfo(it).busId, handle)
        self._uuids[index], self._labels[uuid] = uuid, {"gpu": str(index), "name": name, "pci_bus": bus}
        self._addresses[_address(handle)] = uuid
        self._events.watch(uuid, handle)

    def _slices(self, gpu: DeviceReading, handle: Any) -> list[DeviceReading]:
        """Read the MIG devices of one GPU; when they cannot be listed, that is said of its MIG mode."""
        found = []
        try:
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                try:
                    device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
                except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
                    continue  # no slice in this place
                reading = DeviceReading(nvml.nvmlDeviceGetUUID(device), {**gpu.labels, "parent": gpu.entity})
                reading.labels["gpu_instance"] = str(nvml.nvmlDeviceGetGpuInstanceId(device))
                found.append(_read_device(reading, device, MIG_QUERIES))
        except nvml.NVMLError_GpuIsLost:
            raise
        except nvml.NVMLError as error:
            gpu.failed[_MIG] = f"the MIG devices cannot be read ({error})"
            del gpu.values[_MIG]
        return found


class EventSet:
    """Xid events of all GPUs: the driver queues them, `take` empties the queue without waiting."""

    def __init__(self) -> None:
        self._watched: set[str] = set()
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            self._set = None  # not offered here (WSL, some virtual GPUs): every GPU says unsupported

    def watches(self, uuid: str) -> bool:
        """Whether this GPU would tell of an Xid."""
        return uuid in self._watched

    def watch(self, uuid: str, handle: Any) -> None:
        """Ask for the Xid events of one GPU."""
        if self._set is None:
            return
        try:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
            self._watched.add(uuid)
        except nvml.NVMLError:
            self._watched.discard(uuid)

    def take(self, addresses: Mapping[int | None, str]) -> list[tuple[str, int]]:
        """Return (uuid, Xid number) of all events since the last call, oldest first."""
        events: list[tuple[str, int]] = []
        while self._watched and len(events) < _MOST_EVENTS:
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, 0)
            except nvml.NVMLError:  # a timeout: nothing more is queued; or a lost GPU, which says so itself
                break
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                events.append((addresses.get(_address(event.device), ""), int(event.eventData)))
        return events


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _text(read: Callable[..., Any], *arguments: Any) -> str:
    """A label that is nice to have and no reason to give up the rest."""
    try:
        return str(read(*arguments))
    except nvml.NVMLError:
        return "unknown"


def main() -> None:
    """Answer one line for each line, until the other side closes the pipe or NVML as a whole fails."""
    reader = None
    for _ in sys.stdin:
        try:
            reader = reader or NvmlReader()
            answer = reader.read()
        except nvml.NVMLError as error:
            answer = {"error": sentence_of(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        if "error" in answer:
            return


if __name__ == "__main__":
    main()
