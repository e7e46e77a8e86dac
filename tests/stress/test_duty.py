"""Work and rest come to the level that was asked for, by a clock that is made up."""

from __future__ import annotations

import pytest

from lowtide.stress.loads import SLICE_S, keep_level


class Toy:
    """A load on a machine that others use for part of the time."""

    def __init__(self, piece_s: float, *, stolen: float = 0.0) -> None:
        self.piece_s = piece_s
        self.stolen = stolen
        self.now = 100.0
        self.worked_s = 0.0
        self.idle: list[tuple[float, float]] = []

    def busy_s(self) -> float:
        return self.worked_s

    def work(self) -> float:
        self.worked_s += self.piece_s
        self.now += self.piece_s / (1 - self.stolen)
        return 3.0

    def sleep(self, seconds: float) -> None:
        self.idle.append((self.now, self.now + seconds))
        self.now += seconds

    def keep(self, share: float, *, start: float = 100.0, length_s: float = 0.5) -> float:
        worked_s, done = keep_level(
            self,
            share,
            start=start,
            end=start + length_s,
            clock=lambda: self.now,
            sleep=self.sleep,
        )
        assert worked_s == pytest.approx(done / 3 * self.piece_s)
        return worked_s / length_s


@pytest.mark.parametrize("share", [0.0, 0.01, 0.25, 0.5, 0.731, 0.99, 1.0])
@pytest.mark.parametrize("piece_s", [0.0001, 0.001, 0.007])
def test_a_level_is_kept_to_half_a_piece_of_work(share: float, piece_s: float) -> None:
    toy = Toy(piece_s)
    assert toy.keep(share) == pytest.approx(share, abs=piece_s / 0.5)
    assert toy.now == pytest.approx(100.5, abs=piece_s)


def test_nothing_is_done_at_level_zero_and_no_rest_is_taken_at_full_level() -> None:
    toy = Toy(0.0001)
    assert toy.keep(0.0) == 0.0
    toy = Toy(0.0001)
    toy.keep(1.0)
    assert sum(end - begin for begin, end in toy.idle) < 0.002


def test_work_is_spread_over_the_step() -> None:
    toy = Toy(0.0001)
    toy.keep(0.4)
    assert len(toy.idle) == 20
    assert max(end - begin for begin, end in toy.idle) < SLICE_S


def test_a_busy_machine_is_made_up_for_as_far_as_there_is_time() -> None:
    assert Toy(0.0001, stolen=0.5).keep(0.4) == pytest.approx(0.4, abs=0.001)
    assert Toy(0.0001, stolen=0.5).keep(0.9) == pytest.approx(0.5, abs=0.001)


def test_nothing_begins_before_its_time() -> None:
    toy = Toy(0.0001)
    toy.keep(1.0, start=102.0)
    assert toy.idle[0] == (100.0, 102.0)
    assert toy.now == pytest.approx(102.5, abs=0.001)


def test_a_late_start_does_not_move_the_end() -> None:
    toy = Toy(0.0001)
    # It had begun 0.3 s ago.
    assert toy.keep(0.5, start=99.7) == pytest.approx(0.4, abs=0.01)
    assert toy.now == pytest.approx(100.2, abs=0.001)


def test_one_long_stall_costs_no_more_than_itself() -> None:
    toy = Toy(0.6)
    toy.keep(0.5)
    assert toy.worked_s == 0.6
    toy.piece_s = 0.001
    assert toy.keep(0.5, start=toy.now) == pytest.approx(0.5, abs=0.01)
