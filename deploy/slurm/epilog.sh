#!/bin/bash
# Slurm's Epilog: ends the sidecar that prolog.sh started for the job, after it has read the last words of its ranks.
# It always exits 0, after at most 20 seconds.

NOTES=${GRPO_SENTINEL_NOTES:-/run/grpo-sentinel}
note=$NOTES/${SLURM_JOB_ID:-none}.pid
[ -r "$note" ] || exit 0
pid=$(< "$note")
rm -f "$note"

ours() {  # the pid may have been given to another process since
    tr '\0' ' ' 2> /dev/null < "/proc/$pid/cmdline" | grep -q -- "run --run-id $SLURM_JOB_ID "
}

ours && kill -TERM "$pid"
for _ in $(seq 200); do
    ours || break
    sleep 0.1
done
ours && kill -KILL "$pid"
rm -f "$NOTES/$SLURM_JOB_ID.log"
exit 0
