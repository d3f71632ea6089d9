"""A Slurm of one node on loopback from Debian's packages, all of it below one folder; ended by its pids."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "scancel", "setpriv")

_CONF = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={ctld}
SlurmdPort={d}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,sched_min_interval=100000,batch_sched_delay=0,requeue_delay=1
KillWait=20
JobRequeue=1
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=p Nodes={host} Default=YES MaxTime=10 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=urgent Nodes={host} MaxTime=10 State=UP PriorityTier=10 PreemptMode=OFF
"""


def usable() -> str:
    """Say why no Slurm can be started here; "" when one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "a Slurm of one's own needs root"


def until(look: Callable[[], object], seconds: float, what: str) -> object:
    limit = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > limit:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.1)


class Slurm:
    """The cluster; `SLURM_CONF` leads every client to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(parents=True)
        host = socket.gethostname().partition(".")[0]
        conf = _CONF.format(folder=folder, host=host, ctld=_free_port(), d=_free_port())
        (folder / "slurm.conf").write_text(conf)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        }

    def __enter__(self) -> Slurm:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        munge, key = self.folder / "munge", self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        munge.chmod(0o700)
        for path in (munge, key):
            shutil.chown(path, "munge", "munge")
        for parent in self.folder.parents:  # munged runs as its own user and has to come through
            if parent.stat().st_uid == 0 and str(parent).startswith("/tmp/"):
                parent.chmod(parent.stat().st_mode | 0o711)
        self.folder.chmod(0o755)
        self._run(
            "setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--force", f"--key-file={key}",
            f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
        )  # fmt: skip
        self._run("slurmctld", "-f", str(self.folder / "slurm.conf"))
        self._run("slurmd", "-f", str(self.folder / "slurm.conf"))
        until(lambda: "idle" in self.say("sinfo", "-h", "-o", "%T"), 60, "an idle node")

    def __exit__(self, *_: object) -> None:
        for name in ("d.pid", "ctld.pid", "munge/pid"):
            try:
                pid = int((self.folder / name).read_text())
                os.kill(pid, signal.SIGTERM)
            except (OSError, ValueError):
                continue
            limit = time.monotonic() + 10
            while os.path.exists(f"/proc/{pid}") and time.monotonic() < limit:
                time.sleep(0.05)

    def _run(self, *argv: str) -> None:
        # slurmd leaves its pipes open in what it starts: output goes to a file
        with (self.folder / "start.log").open("ab") as log:
            subprocess.run(argv, env=self.environment, check=True, timeout=60, stdout=log, stderr=log)

    def say(self, *argv: str) -> str:
        done = subprocess.run(
            argv,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout + done.stderr

    def submit(self, script: str, *options: str) -> str:
        """Give a job to the cluster; gives its id."""
        file = self.folder / f"job-{time.monotonic_ns()}.sh"
        file.write_text("#!/bin/bash\n" + script)
        said = self.say("sbatch", "--parsable", f"--output={file}.out", "--open-mode=append", *options, str(file))
        assert said.strip().isdigit(), said
        return said.strip()

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` tells."""
        words = self.say("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def output(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.folder.glob("job-*.out"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
