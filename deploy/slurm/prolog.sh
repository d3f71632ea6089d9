#!/bin/bash
# Slurm's Prolog: a sidecar for the job on this node, as the job's user and outside the job, so that it outlives it.
#
#   Prolog=/etc/slurm/grpo-sentinel/prolog.sh      slurm.conf; root runs both, on every node of a job
#   Epilog=/etc/slurm/grpo-sentinel/epilog.sh
#   PrologFlags=Alloc                              before the batch script, not before the first step
#
# The job switches the agent on: `export GRPO_SENTINEL=1` in its script (or in a TaskProlog), or attach() in the trainer.
# It always exits 0: a prolog that fails drains the node, and no job may fail for the sake of its sidecar.

PROGRAM=${GRPO_SENTINEL_PROGRAM:-/opt/grpo-sentinel/bin/grpo-sentinel}
SETTINGS=${GRPO_SENTINEL_CONFIG:-/etc/grpo-sentinel/sentinel.yaml}
NOTES=${GRPO_SENTINEL_NOTES:-/run/grpo-sentinel}  # root's: one pid a job

[ -x "$PROGRAM" ] || exit 0
[ -n "${SLURM_JOB_ID:-}" ] && [ -n "${SLURM_JOB_UID:-}" ] || exit 0
user=$(getent passwd "$SLURM_JOB_UID") || exit 0
IFS=: read -r name _ uid gid _ home _ <<< "$user"
mkdir -p -m 0755 "$NOTES" || exit 0

words=(run --run-id "$SLURM_JOB_ID")
[ -r "$SETTINGS" ] && words+=(--config "$SETTINGS")
env -i HOME="$home" USER="$name" LOGNAME="$name" PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 \
    ${GRPO_SENTINEL_DIR:+GRPO_SENTINEL_DIR="$GRPO_SENTINEL_DIR"} ${XDG_STATE_HOME:+XDG_STATE_HOME="$XDG_STATE_HOME"} \
    setsid setpriv --reuid "$uid" --regid "$gid" --init-groups \
    "$PROGRAM" "${words[@]}" < /dev/null > /dev/null 2> "$NOTES/$SLURM_JOB_ID.log" &
pid=$!
echo "$pid" > "$NOTES/$SLURM_JOB_ID.pid"
for _ in $(seq 50); do  # what is not in a session of its own yet is killed with this script's process group
    read -r _ _ _ _ _ session _ 2> /dev/null < "/proc/$pid/stat" || break
    [ "$session" = "$pid" ] && break
    sleep 0.1
done
exit 0
