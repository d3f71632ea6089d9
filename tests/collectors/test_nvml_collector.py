"""GPUs are read through the real pynvml over a fake libnvidia-ml.so.1, in the child process that production uses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from collector_worlds import HERE, GpuWorld

from grpo_sentinel.catalog import SIGNALS, split_name
from grpo_sentinel.clock import ManualClock
from grpo_sentinel.collectors import nvml
from grpo_sentinel.collectors.nvml import NvmlCollector
from grpo_sentinel.config import NvmlConfig
from grpo_sentinel.records import Sample

WAIT = 30.0
GPU0, GPU1 = "GPU-00000000", "GPU-00000001"


class Reader:
    """A collector whose clock stands still between readings."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.collector = NvmlCollector(NvmlConfig(interval_seconds=5, timeout_seconds=10), self.clock)

    def read(self) -> dict[str, Sample]:
        """Take the next reading that is due; a reader that was killed before has gone by then."""
        if self.collector._given_up is not None:
            self.collector._given_up.join(WAIT)
        self.clock.advance(61)
        return {sample.entity: sample for sample in self.collector.poll(WAIT)}


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.collector.close()


def test_every_figure_of_a_gpu_comes_in_base_units(gpus: GpuWorld, reader: Reader) -> None:
    sample = reader.read()[GPU0]

    assert sample.values == {
        "device.gpu_memory_used_bytes": 40_000_000_000,
        "device.gpu_memory_total_bytes": 85_520_809_984,
        "device.gpu_utilization_ratio": 0.97,
        "device.gpu_memory_utilization_ratio": 0.40,
        "device.gpu_temperature_celsius": 64,
        "device.gpu_memory_temperature_celsius": 71,
        "device.gpu_power_watts": 650,
        "device.gpu_power_limit_watts": 700,
        "device.gpu_energy_joules": pytest.approx(123.456),
        "device.gpu_sm_clock_hertz": 1.98e9,
        "device.gpu_memory_clock_hertz": 2.619e9,
        "device.gpu_clock_event_reasons": 4,
        "device.gpu_hw_slowdown": 0,
        "device.gpu_ecc_corrected": 3,
        "device.gpu_ecc_uncorrected": 0,
        "device.gpu_remapped_rows_pending": 0,
        "device.gpu_remapped_rows_failed": 0,
        "device.gpu_pcie_replays": 2,
        "device.gpu_mig_enabled": 0,
        "device.gpu_process_memory_bytes[1234]": 39_000_000_000,
        "device.gpu_lost": 0,
        "device.xid_errors": 0,
    }
    assert sample.labels == {"gpu": "0", "name": "NVIDIA H100 80GB HBM3", "pci_bus": "00000000:10:00.0"}
    assert not sample.failed
    assert not sample.unsupported


def test_every_signal_stands_in_the_catalogue(gpus: GpuWorld, reader: Reader) -> None:
    gpus.xid(0, 79)
    names = {name for sample in reader.read().values() for name in sample.values}

    assert {split_name(name)[0] for name in names} <= set(SIGNALS)


def test_the_node_tells_number_of_gpus_driver_and_time_of_a_reading(gpus: GpuWorld, reader: Reader) -> None:
    node = reader.read()["nvml"]

    assert node.values["device.gpu_count"] == 2
    assert 0 < node.values["device.nvml_read_seconds"] < 10
    assert node.labels == {"driver": "580.65.06"}


@pytest.mark.parametrize(("mask", "slowdown"), [(0x4, 0), (0x8, 1), (0x20, 0), (0x40, 1), (0x80, 1), (0x84, 1)])
def test_only_hardware_slowdowns_count_as_such(gpus: GpuWorld, reader: Reader, mask: int, slowdown: int) -> None:
    gpus.set({"0.clock_events": mask})
    values = reader.read()[GPU0].values

    assert (values["device.gpu_clock_event_reasons"], values["device.gpu_hw_slowdown"]) == (mask, slowdown)


def test_a_figure_that_a_gpu_does_not_offer_is_unsupported_and_not_zero(gpus: GpuWorld, reader: Reader) -> None:
    gpus.set({"0.field82": None, "0.ecc_corrected": None})
    sample = reader.read()[GPU0]

    assert set(sample.unsupported) == {"device.gpu_memory_temperature_celsius", "device.gpu_ecc_corrected"}
    assert not set(sample.unsupported) & (set(sample.values) | set(sample.failed))


def test_a_call_that_fails_is_failed_with_its_reason_and_spoils_nothing_else(gpus: GpuWorld, reader: Reader) -> None:
    gpus.set({"0.error.nvmlDeviceGetPowerUsage": 4})
    samples = reader.read()

    assert samples[GPU0].failed == {"device.gpu_power_watts": "Insufficient Permissions"}
    assert samples[GPU0].values["device.gpu_temperature_celsius"] == 64
    assert not samples[GPU1].failed


def test_an_old_driver_is_told_apart_and_older_calls_are_used(
    gpus: GpuWorld, old_nvml_directory: Path, monkeypatch: pytest.MonkeyPatch, reader: Reader
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old_nvml_directory))
    gpus.set({"0.clock_events": 8})
    sample = reader.read()[GPU0]

    assert sample.failed == {"device.gpu_pcie_replays": "this driver's NVML is too old to offer it"}
    assert sample.values["device.gpu_hw_slowdown"] == 1
    # the first version of the call counts the driver's own memory as used
    assert sample.values["device.gpu_memory_used_bytes"] == 40_500_000_000


def test_a_lost_gpu_is_reported_with_everything_unknown_and_the_other_one_goes_on(
    gpus: GpuWorld, reader: Reader
) -> None:
    reader.read()
    gpus.set({"0.error": 15})
    samples = reader.read()

    assert samples[GPU0].values == {"device.gpu_lost": 1, "device.xid_errors": 0}
    assert samples[GPU0].failed["device.gpu_temperature_celsius"] == "GPU is lost"
    assert samples[GPU0].labels["pci_bus"] == "00000000:10:00.0"
    assert samples[GPU1].values["device.gpu_lost"] == 0
    assert samples[GPU1].values["device.gpu_temperature_celsius"] == 64


def test_a_gpu_lost_in_the_middle_of_a_reading_is_lost(gpus: GpuWorld, reader: Reader) -> None:
    gpus.set({"1.error.nvmlDeviceGetPowerUsage": 15})

    assert reader.read()[GPU1].values == {"device.gpu_lost": 1, "device.xid_errors": 0}


def test_a_gpu_that_is_no_longer_listed_stays_in_sight_as_lost(gpus: GpuWorld, reader: Reader) -> None:
    reader.read()
    gpus.set({"count": 1})
    samples = reader.read()

    assert samples["nvml"].values["device.gpu_count"] == 1
    assert samples[GPU1].values["device.gpu_lost"] == 1
    assert samples[GPU1].failed["device.gpu_power_watts"] == "NVML no longer lists this GPU"


def test_a_gpu_that_comes_later_is_read_and_watched_for_xids(gpus: GpuWorld, reader: Reader) -> None:
    gpus.set({"count": 1})
    assert GPU1 not in reader.read()
    gpus.set({"count": 2})
    assert reader.read()[GPU1].values["device.gpu_temperature_celsius"] == 64
    gpus.xid(1, 31)
    assert reader.read()[GPU1].values["device.xid_last"] == 31


def test_xids_are_counted_by_gpu_and_number_and_never_twice(gpus: GpuWorld, reader: Reader) -> None:
    reader.read()
    for number in (31, 31, 79):
        gpus.xid(1, number)
    first, second = reader.read(), reader.read()

    for samples in (first, second):
        assert samples[GPU0].values["device.xid_errors"] == 0
        assert samples[GPU1].values["device.xid_errors"] == 3
        assert samples[GPU1].values["device.xid_last"] == 79
        assert samples[GPU1].values["device.xid_events[31]"] == 2
        assert samples[GPU1].values["device.xid_events[79]"] == 1


def test_the_xid_that_took_a_gpu_off_the_bus_is_still_told(gpus: GpuWorld, reader: Reader) -> None:
    reader.read()
    gpus.xid(0, 79)
    gpus.set({"0.error": 15})
    values = reader.read()[GPU0].values

    assert values["device.gpu_lost"] == 1
    assert values["device.xid_last"] == 79


def test_a_gpu_without_xid_events_says_unsupported(gpus: GpuWorld, reader: Reader) -> None:
    gpus.set({"0.error.nvmlDeviceRegisterEvents": 3})
    samples = reader.read()

    assert "device.xid_errors" in samples[GPU0].unsupported
    assert "device.xid_errors" not in samples[GPU0].values
    assert samples[GPU1].values["device.xid_errors"] == 0


def test_xid_counts_outlive_a_reader_that_had_to_be_replaced(gpus: GpuWorld, reader: Reader) -> None:
    reader.read()
    gpus.xid(0, 63)
    reader.read()
    os.kill(reader.collector._child.pid, 9)
    assert "by signal 9" in reader.read()["nvml"].failed["device.gpu_count"]

    assert reader.read()[GPU0].values["device.xid_events[63]"] >= 1


def test_mig_slices_are_devices_of_their_own(gpus: GpuWorld, reader: Reader) -> None:
    gpus.set({"0.slices": 2})
    for place in (0, 1):
        gpus.set({f"0.slice{place}.memory_total": 10e9, f"0.slice{place}.memory_used": place * 4e9})
    samples = reader.read()

    assert samples[GPU0].values["device.gpu_mig_enabled"] == 1
    second = samples["MIG-00000000-1"]
    assert second.labels["parent"] == GPU0
    assert second.labels["gpu_instance"] == "2"
    assert "device.gpu_utilization_ratio" in second.unsupported


def test_slices_that_cannot_be_listed_are_said_and_spoil_nothing_else(gpus: GpuWorld, reader: Reader) -> None:
    gpus.set({"0.slices": 2, "0.error.nvmlDeviceGetMaxMigDeviceCount": 999})
    sample = reader.read()[GPU0]

    assert sample.failed == {"device.gpu_mig_enabled": "the MIG devices cannot be read (Unknown Error)"}
    assert sample.values["device.gpu_temperature_celsius"] == 64


def test_a_gpu_that_does_not_tell_its_name_is_read_all_the_same(gpus: GpuWorld, reader: Reader) -> None:
    gpus.set({"0.error.nvmlDeviceGetName": 3, "0.error.nvmlDeviceGetPciInfo_v3": 4})
    sample = reader.read()[GPU0]

    assert sample.labels == {"gpu": "0", "name": "unknown", "pci_bus": "unknown"}
    assert sample.values["device.gpu_temperature_celsius"] == 64


def test_a_gpu_that_tells_nothing_is_failed_under_a_name_of_its_place(gpus: GpuWorld, reader: Reader) -> None:
    gpus.set({"1.error.nvmlDeviceGetUUID": 999})
    sample = reader.read()["gpu-1"]

    assert not sample.values
    assert sample.failed["device.gpu_power_watts"] == "Unknown Error"


def test_processes_whose_memory_the_driver_hides_are_unsupported(gpus: GpuWorld, reader: Reader) -> None:
    gpus.set({"0.processes": "77:hidden", "1.processes": "77:hidden,78:5"})
    samples = reader.read()

    assert "device.gpu_process_memory_bytes" in samples[GPU0].unsupported
    assert samples[GPU1].values["device.gpu_process_memory_bytes[78]"] == 5
    assert "device.gpu_process_memory_bytes[77]" not in samples[GPU1].values


@pytest.mark.parametrize(
    ("code", "word"),
    [(9, "modprobe nvidia"), (18, "different versions"), (4, "no permission"), (999, "restart the container")],
)
def test_a_driver_that_refuses_is_explained_in_one_sentence(
    gpus: GpuWorld, reader: Reader, code: int, word: str
) -> None:
    gpus.set({"init": code})
    samples = reader.read()

    assert list(samples) == ["nvml"]
    assert not samples["nvml"].values  # unknown, not zero GPUs
    assert word in samples["nvml"].failed["device.gpu_count"]
    assert reader.collector.problem == samples["nvml"].failed["device.gpu_count"]


def test_a_host_without_the_library_is_explained_and_asked_again_only_after_a_minute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reader: Reader
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    assert "libnvidia-ml.so.1 is not here" in reader.read()["nvml"].failed["device.gpu_count"]

    reader.clock.advance(30)
    assert reader.collector.poll(WAIT) == ()
    reader.clock.advance(31)
    assert reader.collector.poll(WAIT)


@pytest.mark.parametrize("devices", [[], ["nvidiactl", "nvidia0"]])
def test_a_machine_without_a_gpu_is_no_problem_and_one_whose_driver_fails_is(
    gpus: GpuWorld,
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    devices: list[str],
) -> None:
    monkeypatch.setattr(nvml, "nvidia_devices", lambda: devices)
    gpus.set({"init": 12})
    with caplog.at_level("INFO"):
        for _ in range(2):
            reader.read()
            reader.clock.advance(61)
    assert reader.collector.problem
    assert reader.collector.absent == (not devices)
    assert [one.levelname for one in caplog.records] == ([] if devices else ["INFO"]), "said once, and calmly"


def test_device_files_of_a_driver_are_seen(tmp_path: Path) -> None:
    assert nvml.nvidia_devices(tmp_path) == []
    for name in ("nvidiactl", "null", "dxg"):
        (tmp_path / name).touch()
    assert nvml.nvidia_devices(tmp_path) == ["dxg", "nvidiactl"]


def test_a_driver_that_fails_later_fails_all_that_was_there_and_comes_back(gpus: GpuWorld, reader: Reader) -> None:
    reader.read()
    gpus.set({"count.error": 999})
    broken = reader.read()
    assert not broken[GPU0].values
    assert "restart the container" in broken[GPU0].failed["device.gpu_temperature_celsius"]

    gpus.set({"count.error": 0})
    assert reader.read()[GPU0].values["device.gpu_temperature_celsius"] == 64
    assert reader.collector.problem == ""


def test_a_call_that_hangs_never_blocks_and_is_given_up_after_the_time_limit(gpus: GpuWorld, reader: Reader) -> None:
    reader.read()
    gpus.set({"1.hang.nvmlDeviceGetTemperature": 1})
    reader.clock.advance(6)
    begun = time.monotonic()
    assert reader.collector.poll() == ()
    hanging = reader.collector._child.pid
    reader.clock.advance(9.9)
    assert reader.collector.poll() == ()
    reader.clock.advance(0.2)
    samples = {sample.entity: sample for sample in reader.collector.poll()}
    assert time.monotonic() - begun < 2

    for entity in (GPU0, GPU1):
        assert not samples[entity].values
        assert "no answer in 10 s" in samples[entity].failed["device.gpu_power_watts"]
    gpus.set({"1.hang.nvmlDeviceGetTemperature": 0})
    assert _until(lambda: reader.read()[GPU1].values.get("device.gpu_temperature_celsius") == 64)
    assert _until(lambda: not Path(f"/proc/{hanging}").exists())


def test_a_reader_that_cannot_even_be_killed_is_not_joined_by_a_second(
    gpus: GpuWorld, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.set({"0.hang.nvmlDeviceGetUUID": 1})
    reader.clock.advance(1)
    reader.collector.poll()
    stuck = reader.collector._child
    with monkeypatch.context() as patch:
        patch.setattr(stuck, "kill", lambda: None)  # as in a D state
        reader.clock.advance(11)
        assert "no answer" in reader.collector.poll()[0].failed["device.gpu_count"]
        reader.clock.advance(6)
        assert (
            f"process {stuck.pid} was killed and does not go" in reader.collector.poll()[0].failed["device.gpu_count"]
        )
        assert reader.collector._child is None
    stuck.kill()


def test_a_library_that_crashes_takes_only_its_reader_down(gpus: GpuWorld, reader: Reader) -> None:
    reader.read()
    gpus.set({"0.crash.nvmlDeviceGetPowerUsage": 1})
    assert "ended by signal 6" in reader.read()[GPU1].failed["device.gpu_power_watts"]

    gpus.set({"0.crash.nvmlDeviceGetPowerUsage": 0})
    assert reader.read()[GPU1].values["device.gpu_power_watts"] == 650


def test_nothing_is_read_before_its_time(gpus: GpuWorld, reader: Reader) -> None:
    assert reader.read()
    reader.clock.advance(4.9)
    assert reader.collector.poll(0.1) == ()


def test_the_reader_ends_with_its_collector(gpus: GpuWorld) -> None:
    reader = Reader()
    reader.read()
    pid = reader.collector._child.pid
    reader.collector.close()

    assert _until(lambda: not Path(f"/proc/{pid}").exists())


def test_the_reader_ends_when_its_daemon_is_killed(gpus: GpuWorld) -> None:
    code = (
        "from grpo_sentinel.clock import SystemClock\n"
        "from grpo_sentinel.collectors.nvml import NvmlCollector\n"
        "from grpo_sentinel.config import NvmlConfig\n"
        "collector = NvmlCollector(NvmlConfig(), SystemClock())\n"
        "collector.poll(30)\n"
        "print(collector._child.pid, flush=True)\n"
        "input()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    daemon = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
    finally:
        daemon.kill()
        daemon.communicate(timeout=10)

    assert _until(lambda: _ended(pid))


def _ended(pid: int) -> bool:
    """Whether a process that is no child of ours is gone or only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
