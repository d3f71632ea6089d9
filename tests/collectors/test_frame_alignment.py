"""Records of several ranks become frames: complete, in order, once; the late and the dead hold nobody up."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grpo_sentinel.collectors.frames import MAX_PENDING_STEPS, FrameAligner
from grpo_sentinel.records import Frame, Kind, Mode, StepRecord

SECOND = 1_000_000_000
LATE = 2.0


def record(
    rank: int, step: int, kind: Kind = Kind.STEP, mode: Mode = Mode.TRAIN, micro_batch: int = 0, **values: float
) -> StepRecord:
    named = {name.replace("__", "."): value for name, value in values.items()} or {"policy.entropy": float(rank)}
    return StepRecord(
        run_id="run",
        rank=rank,
        sequence=0,
        step=step,
        kind=kind,
        mode=mode,
        micro_batch=micro_batch,
        generation=0,
        monotonic_ns=0,
        wall_ns=step * 10 + rank,
        values=named,
    )


class Node:
    """An aligner with the ranks it waits for and a clock moved by hand."""

    def __init__(self, *ranks: int) -> None:
        self.aligner = FrameAligner(LATE)
        self.alive = set(ranks)
        self.expected = set(ranks)
        self.now = 0.0

    def add(self, *records: StepRecord) -> list[Frame]:
        for each in records:
            self.aligner.add(each, round(self.now * SECOND))
        return self.take()

    def take(self, after: float = 0.0) -> list[Frame]:
        self.now += after
        return self.aligner.take(round(self.now * SECOND), self.alive, self.expected)

    def leave(self, rank: int, died: bool) -> list[Frame]:
        self.alive.discard(rank)
        if not died:
            self.expected.discard(rank)
        self.aligner.leave(rank, died=died, now_ns=round(self.now * SECOND))
        return self.take()


def test_a_frame_waits_for_every_rank_and_then_goes_out_at_once() -> None:
    node = Node(0, 1)

    assert node.add(record(0, 1)) == []
    (frame,) = node.add(record(1, 1))
    assert (frame.step, frame.mode, frame.missing, frame.wall_ns) == (1, Mode.TRAIN, (), 11)
    assert frame.ranks == {0: {"policy.entropy": 0.0}, 1: {"policy.entropy": 1.0}}
    assert node.take(after=100) == []


def test_all_kinds_of_record_of_a_step_merge_into_one_row() -> None:
    node = Node(0)
    assert not node.add(record(0, 1, Kind.DATA, data__samples=8), record(0, 1, Kind.GENERATION, reward__mean=0.5))
    assert not node.add(record(0, 1, Kind.MEMORY, memory__rss_bytes=5e9))
    (frame,) = node.add(record(0, 1, Kind.STEP, gradient__norm_preclip=1.5))

    assert frame.ranks[0] == {
        "data.samples": 8,
        "reward.mean": 0.5,
        "memory.rss_bytes": 5e9,
        "gradient.norm_preclip": 1.5,
    }


def test_a_step_without_its_step_record_waits_as_long_as_it_takes() -> None:
    node = Node(0, 1)

    assert node.add(record(0, 1, Kind.DATA), record(1, 1, Kind.DATA)) == []
    assert node.take(after=3600) == []  # a step may last an hour
    assert len(node.add(record(0, 1), record(1, 1))) == 1


def test_a_late_rank_is_named_missing_after_the_wait_and_its_record_counts_as_late() -> None:
    node = Node(0, 1)
    assert node.add(record(0, 1)) == []
    assert node.take(after=LATE - 0.01) == []
    (frame,) = node.take(after=0.02)

    assert frame.missing == (1,)
    assert node.add(record(1, 1)) == []
    assert node.aligner.late_records == 1
    assert [frame.step for frame in node.add(record(0, 2), record(1, 2))] == [2]


def test_a_late_rank_that_sent_its_data_is_in_the_frame_and_not_missing() -> None:
    node = Node(0, 1)
    node.add(record(1, 1, Kind.DATA, data__samples=4), record(0, 1))
    (frame,) = node.take(after=LATE)

    assert frame.ranks[1] == {"data.samples": 4}
    assert frame.missing == ()


def test_frames_go_out_in_order_even_when_a_later_step_is_the_overdue_one() -> None:
    node = Node(0, 1)
    node.add(record(0, 1, Kind.DATA), record(0, 2))
    frames = node.take(after=LATE)

    assert [frame.step for frame in frames] == [1, 2]


def test_a_step_that_every_rank_has_passed_goes_out_with_what_it_has() -> None:
    node = Node(0, 1)
    node.add(record(0, 1, Kind.DATA), record(1, 1, Kind.DATA), record(0, 2))
    frames = node.add(record(1, 2))

    assert [frame.step for frame in frames] == [1, 2]


def test_the_data_of_a_rank_that_died_in_its_forward_go_out_as_evidence() -> None:
    node = Node(0, 1)
    node.add(record(0, 7, Kind.DATA, data__out_of_vocabulary=0), record(1, 7, Kind.DATA, data__out_of_vocabulary=3))
    assert node.take(after=100) == []
    (frame,) = node.leave(1, died=True)

    assert frame.ranks[1] == {"data.out_of_vocabulary": 3}
    assert frame.ranks[0] == {"data.out_of_vocabulary": 0}


def test_the_survivors_of_a_death_are_not_held_up_and_the_dead_stay_named() -> None:
    node = Node(0, 1)
    node.leave(1, died=True)
    (frame,) = node.add(record(0, 8))

    assert frame.missing == (1,)


def test_a_rank_that_finished_is_not_missing_and_the_others_get_their_time() -> None:
    node = Node(0, 1)
    node.add(record(0, 5))
    assert node.leave(0, died=False) == []
    (frame,) = node.add(record(1, 5))
    assert set(frame.ranks) == {0, 1}
    (frame,) = node.add(record(1, 6))
    assert frame.missing == ()


def test_a_rank_that_closed_in_the_middle_of_a_step_leaves_its_data_after_the_wait() -> None:
    node = Node(0, 1)
    node.add(record(0, 5, Kind.DATA), record(1, 5, Kind.DATA))
    assert node.leave(0, died=False) == []
    (frame,) = node.take(after=LATE)
    assert set(frame.ranks) == {0, 1}


def test_when_nobody_is_left_everything_goes_out() -> None:
    node = Node(0)
    node.add(record(0, 1, Kind.DATA))

    assert [frame.step for frame in node.leave(0, died=False)] == [1]


def test_training_and_evaluation_never_meet() -> None:
    node = Node(0, 1)
    node.add(record(0, 1), record(0, 1, mode=Mode.EVALUATION, reward__mean=9))
    (evaluation,) = node.add(record(1, 1, mode=Mode.EVALUATION, reward__mean=7))
    (training,) = node.add(record(1, 1))

    assert evaluation.mode is Mode.EVALUATION
    assert evaluation.ranks == {0: {"reward.mean": 9}, 1: {"reward.mean": 7}}
    assert training.mode is Mode.TRAIN
    assert "reward.mean" not in training.ranks[0]


def test_a_run_that_goes_back_to_a_checkpoint_is_followed() -> None:
    node = Node(0, 1)
    for step in range(1, 26):
        node.add(record(0, step), record(1, step))
    node.add(record(0, 26, Kind.DATA))
    left_over = node.add(record(0, 21, Kind.DATA), record(0, 21))
    assert [(frame.step, set(frame.ranks)) for frame in left_over] == [(26, {0})]
    (frame,) = node.add(record(1, 21))
    assert (frame.step, set(frame.ranks)) == (21, {0, 1})
    assert node.aligner.late_records == 0


def test_memory_records_of_the_step_before_do_not_look_like_going_back() -> None:
    node = Node(0)
    node.add(record(0, 1))
    node.add(record(0, 2))
    assert node.add(record(0, 1, Kind.MEMORY)) == []
    assert [frame.step for frame in node.add(record(0, 3))] == [3]


def test_pending_steps_are_bounded_and_the_oldest_goes_first() -> None:
    node = Node(0, 1)
    out = [frame.step for step in range(1, 1001) for frame in node.add(record(0, step))]

    assert out == list(range(1, 1001 - MAX_PENDING_STEPS))
    assert len(node.aligner._lanes[Mode.TRAIN]._pending) == MAX_PENDING_STEPS


def test_the_newest_data_record_counts_since_it_speaks_for_all_micro_batches_so_far() -> None:
    node = Node(0)
    node.add(
        record(0, 1, Kind.DATA, micro_batch=0, data__samples=4, data__out_of_vocabulary=3),
        record(0, 1, Kind.DATA, micro_batch=1, data__samples=8, data__out_of_vocabulary=3),
    )
    (frame,) = node.add(record(0, 1))

    assert frame.ranks[0] == {"data.samples": 8, "data.out_of_vocabulary": 3, "policy.entropy": 0}


ranks_and_steps = st.tuples(st.integers(1, 4), st.integers(1, 12))


@given(ranks_and_steps, st.randoms(use_true_random=False))
def test_any_interleaving_gives_every_step_once_in_order_and_complete(size: tuple[int, int], random: Any) -> None:
    ranks, steps = size
    queues = {
        rank: [record(rank, step, kind) for step in range(1, steps + 1) for kind in (Kind.DATA, Kind.STEP)]
        for rank in range(ranks)
    }
    node = Node(*queues)
    frames: list[Frame] = []
    while any(queues.values()):
        rank = random.choice([rank for rank, queue in queues.items() if queue])
        frames += node.add(queues[rank].pop(0))

    assert [frame.step for frame in frames] == list(range(1, steps + 1))
    assert all(len(frame.ranks) == ranks and frame.missing == () for frame in frames)
    assert node.aligner.late_records == 0


moves = st.lists(st.tuples(st.sampled_from(["step", "data", "wait", "die", "close"]), st.integers(0, 3)), max_size=80)


@given(moves)
def test_whatever_happens_frames_stay_in_order_and_no_record_is_lost_or_doubled(script: list[tuple[str, int]]) -> None:
    node = Node(0, 1, 2, 3)
    at = dict.fromkeys(range(4), 1)
    sent: set[tuple[int, int]] = set()
    frames: list[Frame] = []
    for move, rank in script:
        if move == "wait":
            frames += node.take(after=0.7)
        elif rank not in node.alive:
            continue
        elif move in ("die", "close"):
            frames += node.leave(rank, died=move == "die")
        else:
            sent.add((rank, at[rank]))
            frames += node.add(record(rank, at[rank], Kind.STEP if move == "step" else Kind.DATA))
            at[rank] += move == "step"
    for rank in list(node.alive):
        frames += node.leave(rank, died=True)

    steps = [frame.step for frame in frames]
    assert steps == sorted(set(steps))
    shown = [(rank, frame.step) for frame in frames for rank in frame.ranks]
    assert len(shown) == len(set(shown))
    assert set(shown) <= sent
    assert len(sent - set(shown)) <= node.aligner.late_records
