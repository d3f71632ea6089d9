"""Whole or half, finite or not, and kept out of rotation's reach."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import time
from pathlib import Path

import pytest

from grpo_sentinel.halting.checkpoints import check_finite, newest_before, scan_directory
from grpo_sentinel.halting.pin import pin
from grpo_sentinel.halting.safetensors import count_nonfinite, read_header, scan_file


def write_safetensors(path: Path, tensors: dict[str, tuple[str, bytes]]) -> None:
    table, data = {}, b""
    for name, (dtype, raw) in tensors.items():
        table[name] = {"dtype": dtype, "shape": [len(raw)], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def checkpoint(output: Path, step: int, value: float = 1.0) -> Path:
    path = output / f"checkpoint-{step}"
    path.mkdir(parents=True)
    write_safetensors(path / "model.safetensors", {"w": ("F32", struct.pack("<3f", 0.5, value, -2.0))})
    (path / "optimizer.pt").write_bytes(b"state")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def _bf16(value: float) -> bytes:
    return struct.pack("<f", value)[2:]


@pytest.mark.parametrize(
    ("dtype", "pack", "finite"),
    [
        ("F32", lambda x: struct.pack("<f", x), [0.0, 1.5, -3.4e38, 1.17e-38, 3e38]),
        ("F64", lambda x: struct.pack("<d", x), [0.0, 1.5, -1.79e308, 5e-324]),
        ("F16", lambda x: struct.pack("<e", x), [0.0, 1.5, -65504.0, 6e-8]),
        ("BF16", _bf16, [0.0, 1.5, -3.3e38, 1e-38]),
    ],
)
def test_nan_and_infinities_are_counted_in_every_float_type(dtype: str, pack: object, finite: list[float]) -> None:
    good = b"".join(pack(value) for value in finite)  # type: ignore[operator]
    bad = b"".join(pack(value) for value in (math.nan, math.inf, -math.inf))  # type: ignore[operator]
    assert count_nonfinite(good * 100, dtype) == 0
    assert count_nonfinite(good + bad + good, dtype) == 3
    assert count_nonfinite(b"", dtype) == 0


def test_the_scan_agrees_with_a_plain_loop_over_random_bits() -> None:
    data = os.urandom(40_000)
    assert count_nonfinite(data, "F32") == sum(not math.isfinite(x) for x in struct.unpack("<10000f", data))
    assert count_nonfinite(data, "F16") == sum(not math.isfinite(x) for x in struct.unpack("<20000e", data))


def test_a_bad_element_is_named_by_its_tensor_across_chunks(tmp_path: Path) -> None:
    big = bytearray(struct.pack("<f", 1.0) * 2_500_000)  # 10 MB: three chunks
    for index in (0, 1_048_575, 1_048_576, 2_499_999):
        big[4 * index : 4 * index + 4] = struct.pack("<f", math.nan)
    write_safetensors(
        tmp_path / "m.safetensors", {"a": ("F32", bytes(big)), "b": ("BF16", b"\0\0" * 3), "n": ("I64", b"\xff" * 8)}
    )
    report = scan_file(tmp_path / "m.safetensors")
    assert report.nonfinite == {"a": 4}
    assert (report.tensors, report.elements, report.finite) == (3, 2_500_003, False)


def test_five_megabytes_take_less_than_a_second(tmp_path: Path) -> None:
    write_safetensors(
        tmp_path / "m.safetensors", {"a": ("F32", os.urandom(5 << 20)), "b": ("BF16", os.urandom(5 << 20))}
    )
    began = time.perf_counter()
    assert not scan_file(tmp_path / "m.safetensors").finite
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_a_truncated_file_is_refused_in_a_sentence(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"w": ("F32", b"\0" * 40)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match="truncated"):
        read_header(path)


def test_half_checkpoints_are_told_from_whole_ones(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8, 10):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-4" / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-6" / "model.safetensors").unlink()
    torn = tmp_path / "checkpoint-8" / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    (tmp_path / "checkpoint-x").mkdir()
    found = scan_directory(tmp_path)
    assert [(one.step, bool(one.problem)) for one in found] == [
        (10, False),
        (8, True),
        (6, True),
        (4, True),
        (2, False),
    ]
    assert [one.step for one in newest_before(found, 10)] == [2]
    assert scan_directory(tmp_path / "nowhere") == []


def test_a_missing_shard_makes_a_checkpoint_half(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 2)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002" in scan_directory(tmp_path)[0].problem


def test_a_pinned_checkpoint_survives_rotation_and_rewriting(tmp_path: Path) -> None:
    output = tmp_path / "out"
    original = checkpoint(output, 4)
    kept = pin(scan_directory(output)[0], tmp_path / "sentinel-pinned", "t")
    with (original / "optimizer.pt").open("r+b") as file:  # as torch.save does to a path it knows
        file.write(b"other")
    shutil.rmtree(original)
    assert (kept / "optimizer.pt").read_bytes() == b"state"
    assert check_finite(kept).finite
    assert sorted(path.name for path in output.iterdir()) == []
    assert [path.name for path in kept.parent.iterdir()] == ["checkpoint-4"]


def test_a_failed_pin_leaves_nothing_that_could_pass_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    checkpoint(output, 4)
    one = scan_directory(output)[0]
    (one.path / "model.safetensors").write_bytes(b"cut short meanwhile")
    with pytest.raises(OSError, match="not whole"):
        pin(one, tmp_path / "pinned", "t")
    assert list((tmp_path / "pinned").iterdir()) == []
    assert sorted(path.name for path in output.iterdir()) == ["checkpoint-4"]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(OSError, match="free on the file system"):
        pin(one, tmp_path / "pinned", "t")


def test_weights_that_need_unpickling_are_left_unjudged(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 2)
    (path / "pytorch_model.bin").write_bytes(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19")
    report = check_finite(path)
    assert report.unchecked == ("pytorch_model.bin",)
    assert not report.finite
