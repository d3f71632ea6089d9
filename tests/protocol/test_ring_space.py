"""Full, missing and read-only places: an error with a remedy at the start, never a signal in the training loop."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ring_support import SMALL, Child

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol import (
    ControlReader,
    Geometry,
    RankReader,
    RankWriter,
    choose_root,
    list_segments,
    new_identity,
    run_dir,
    write_control,
)
from grpo_sentinel.records import ControlWord

LARGE = Geometry(slots=1024).total_bytes


@pytest.fixture
def tiny_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB of our own."""
    place = tmp_path / "tmpfs"
    place.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mount.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_tmpfs_without_room_is_an_error_with_a_remedy_and_leaves_nothing_behind(tiny_tmpfs):
    directory = run_dir(tiny_tmpfs, "run")
    with pytest.raises(SegmentError, match=r"No space left.*free space.*GRPO_SENTINEL_DIR"):
        RankWriter(directory, new_identity(0, 0, 1, "run"))
    assert list_segments(directory) == []
    assert os.statvfs(tiny_tmpfs).f_bavail * 4096 > 900 * 1024
    small = RankWriter(directory, new_identity(0, 0, 1, "run"), SMALL)
    small.close()


def test_a_tmpfs_that_fills_up_later_kills_no_writer(tiny_tmpfs, child):
    """The pages were reserved at the start: no SIGBUS when others take the rest."""
    process: Child = child("flood", tiny_tmpfs, "2000")
    assert process.line() == "ready"
    with open(tiny_tmpfs / "filler", "wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    assert os.statvfs(tiny_tmpfs).f_bavail == 0
    process.tell()
    assert process.line() == "done"
    assert process.wait() == 0


def test_a_full_tmpfs_is_passed_over_for_the_next_place(tiny_tmpfs, tmp_path, monkeypatch):
    monkeypatch.setattr("grpo_sentinel.protocol.places.Path", lambda text: tiny_tmpfs if "shm" in text else Path(text))
    assert choose_root({"XDG_RUNTIME_DIR": "/nowhere", "TMPDIR": str(tmp_path)}, room_bytes=LARGE) == tmp_path


def test_no_room_anywhere_names_every_place_and_the_remedy(tmp_path):
    with pytest.raises(SegmentError, match=r"/dev/shm has only .*/nowhere is not a directory.*GRPO_SENTINEL_DIR"):
        choose_root({"XDG_RUNTIME_DIR": "/nowhere", "TMPDIR": str(tmp_path)}, room_bytes=1 << 62)


def test_a_given_directory_is_created_and_nothing_else_is_tried(tmp_path):
    given = tmp_path / "a" / "b"
    assert choose_root({"GRPO_SENTINEL_DIR": str(given)}) == given
    assert given.is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(SegmentError, match="file"):
        choose_root({"GRPO_SENTINEL_DIR": str(tmp_path / "file"), "TMPDIR": str(tmp_path)})


def test_a_read_only_place_is_an_error_and_no_traceback(tiny_tmpfs):
    subprocess.run(["mount", "-o", "remount,ro", tiny_tmpfs], check=True)
    with pytest.raises(SegmentError, match="is read-only"):
        choose_root({"GRPO_SENTINEL_DIR": str(tiny_tmpfs)}, room_bytes=1)
    with pytest.raises(SegmentError, match="Read-only file system"):
        run_dir(tiny_tmpfs, "run")
    with pytest.raises(SegmentError, match="Read-only file system"):
        write_control(tiny_tmpfs, ControlWord(request_id=1))


def test_directories_are_0700_and_files_0600_whatever_the_umask(tmp_path):
    old = os.umask(0)
    try:
        directory = run_dir(tmp_path, "run")
        writer = RankWriter(directory, new_identity(0, 0, 1, "run"), SMALL)
        write_control(directory, ControlWord(request_id=1))
    finally:
        os.umask(old)
    assert directory == tmp_path / f"grpo-sentinel-{os.getuid()}" / "run"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (directory, directory.parent)] == [0o700, 0o700]
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    writer.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files to any group and become another user")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_shared_group_may_read_and_others_may_not(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    for path in (root, *[parent for parent in root.parents if str(parent).startswith("/tmp/")]):
        path.chmod(0o755)
    directory = run_dir(root, "run")
    writer = RankWriter(directory, new_identity(0, 0, 1, "run"), SMALL, group="4242")
    writer.push({"a": 1.0}, step=1)
    write_control(directory, ControlWord(request_id=7))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (directory, directory.parent)] == [0o750, 0o750]
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o640}
    assert {path.stat().st_gid for path in directory.iterdir()} == {4242}

    def look() -> int:
        reader = RankReader(writer.path)
        control = ControlReader(directory).read()
        alive = reader._probe.held()
        return len(reader.poll().records) + (2 if alive else 0) + (4 if control and control.request_id == 7 else 0)

    assert as_user(look, uid=4243, gid=4242) == 7
    assert as_user(look, uid=4243, gid=4243) == 99
    writer.close()


def as_user(look, *, uid: int, gid: int) -> int:
    """Run `look` in a forked child under another user; 99 = it was refused."""
    pid = os.fork()
    if pid == 0:
        code = 98
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            code = look()
        except SegmentError:
            code = 99
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_an_unknown_group_is_refused_by_name(tmp_path):
    with pytest.raises(SegmentError, match="no-such-group"):
        RankWriter(tmp_path, new_identity(0, 0, 1, "run"), SMALL, group="no-such-group")


def test_a_directory_that_is_a_link_or_open_to_others_is_not_trusted(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / f"grpo-sentinel-{os.getuid()}").symlink_to(real)
    with pytest.raises(SegmentError, match="not a directory"):
        run_dir(tmp_path, "run")
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o777)
    RankWriter(wide, new_identity(0, 0, 1, "run"), SMALL).close()
    assert stat.S_IMODE(wide.stat().st_mode) == 0o755


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path):
    os.chown(run_dir(tmp_path, "run"), 4242, -1)
    with pytest.raises(SegmentError, match="belongs to uid 4242"):
        run_dir(tmp_path, "run")


def test_segments_are_listed_by_rank_and_nothing_else_is(tmp_path):
    for name in ("rank-00010.ring", "rank-00002.ring", "rank-123456.ring", "rank-00002.alive", ".rank-00001.ring.new"):
        (tmp_path / name).touch()
    assert [path.name for path in list_segments(tmp_path)] == ["rank-00002.ring", "rank-00010.ring", "rank-123456.ring"]
    assert list_segments(tmp_path / "missing") == []
