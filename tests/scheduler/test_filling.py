"""How long a sweep becomes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling import FakeModel, Times, numbers, overlapped, ticket

from estream.engine.batch import BatchShape
from estream.engine.head import HeadShape
from estream.scheduler.filling import FREE, GAINING, Filler, coarse, longest


def filled(model: FakeModel, tickets, plain_tokens: int = 1 << 40, now: float = 0.0) -> int:
    chosen = Filler(model, plain_tokens).fill(tickets, now)
    assert chosen == tickets[: len(chosen)]
    return len(chosen)


def test_all_go_where_reading_hides_them():
    assert filled(FakeModel(expect=overlapped(1000, 10.0)), [ticket(i, tokens=90) for i in range(100)]) == 100


def test_a_batch_grows_until_sweeps_no_longer_wait_for_reading():
    expect = overlapped(1000, 1.0)
    tickets = [ticket(i, tokens=10) for i in range(2000)]
    count = filled(FakeModel(expect=expect), tickets)
    free = max(n for n in range(1, 2000) if expect(BatchShape((10 * n,), 1)).ttft_s <= FREE * 1.0)
    shortest = expect(BatchShape((10 * count,), 1))
    assert count >= free * 15 // 16
    assert shortest.ttft_s <= (GAINING + 0.1) * shortest.compute_s
    # Twice as many would have taken nearly twice as long.
    assert expect(BatchShape((20 * count,), 1)).ttft_s / shortest.ttft_s > 1.85


def test_where_sweeps_wait_for_reads_whatever_was_expected_they_grow():
    tickets = [ticket(i, tokens=100) for i in range(64)]
    # Computing was taken for a hundred times slower than it is.
    filler, counts = Filler(FakeModel(expect=overlapped(10, 1.0)), 1), []
    for _ in range(6):
        chosen = filler.fill(tickets, 0.0)
        counts.append(len(chosen))
        requests = [each for one in chosen for each in one.prepared.requests]
        tokens = sum(len(each.prompt) for each in requests)
        filler.note(requests, Times(max(1.0, tokens / 1000), tokens / 1000, 1.0))
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert 10 <= counts[-1] <= 20


def test_what_computes_long_alone_goes_alone():
    assert filled(FakeModel(expect=overlapped(1000, 1.0)), [ticket(i, tokens=20_000) for i in range(5)]) == 1


def test_beyond_the_free_point_a_deadline_stops_the_growth():
    expect = overlapped(1000, 1.0)
    patient = [ticket(i, tokens=100) for i in range(15)]
    hurried = [ticket(99, deadline=1.12, tokens=100), *patient]
    assert filled(FakeModel(expect=expect), patient) == 15
    count = filled(FakeModel(expect=expect), hurried)
    assert 9 <= count <= 10
    assert expect(BatchShape((100 * count,), 1)).ttft_s <= 1.12


def test_a_deadline_that_is_lost_anyway_stops_nothing():
    lost = [ticket(99, deadline=0.5, tokens=100), *[ticket(i, tokens=100) for i in range(14)]]
    assert filled(FakeModel(expect=overlapped(1000, 1.0)), lost) == 15


def test_no_more_than_memory_has_room_for():
    assert filled(FakeModel(room=75), [ticket(i, tokens=10) for i in range(100)]) == 7


def test_what_does_not_fit_lets_nobody_pass():
    tickets = [ticket(0, tokens=10), ticket(1, tokens=90), ticket(2, tokens=10)]
    assert filled(FakeModel(room=100), tickets[:2]) == 2
    assert filled(FakeModel(room=99), tickets) == 1


def test_without_estimates_a_bound_of_tokens_holds():
    assert filled(FakeModel(), [ticket(i, tokens=10) for i in range(100)], plain_tokens=105) == 10
    assert filled(FakeModel(), [ticket(i, tokens=200) for i in range(3)], plain_tokens=105) == 1


def test_one_that_must_be_alone_is():
    tickets = [ticket(i) for i in range(4)]
    tickets[2].alone = True
    assert numbers(Filler(FakeModel(), 100).fill(tickets, 0.0)) == [0, 1]
    assert numbers(Filler(FakeModel(), 100).fill(tickets[2:], 0.0)) == [2]


def test_estimates_are_remembered():
    asked = []
    expect = overlapped(1000, 1.0)
    filler = Filler(FakeModel(expect=lambda shape: asked.append(shape) or expect(shape)), 1)
    tickets = [ticket(i, tokens=10) for i in range(500)]
    first = filler.fill(tickets, 0.0)
    before = len(asked)
    assert before == len(set(asked))
    again = filler.fill(tickets, 0.0)
    assert len(asked) - before <= 4
    assert abs(len(again) - len(first)) <= len(first) // 8


@given(st.integers(1, 300), st.integers(1, 400), st.integers(1, 700))
def test_the_longest_is_found_to_one_part_in_sixteen_and_is_good(count: int, bound: int, guess: int):
    asked = []

    def good(n: int) -> bool:
        assert 1 <= n <= count
        asked.append(n)
        return n <= bound

    found, true = longest(count, good, guess), min(count, bound)
    assert found <= true < found + max(1, found // 16)
    assert len(asked) <= 20
    assert len(set(asked)) == len(asked)


def test_the_longest_is_found_at_once_where_all_are_good():
    asked = []
    assert longest(12, lambda n: asked.append(n) or True, 16) == 12
    assert asked == [12]


SHAPES = st.builds(
    lambda lengths, wanted: BatchShape(tuple(lengths), min(wanted, sum(lengths))),
    st.lists(st.integers(1, 5000), min_size=1, max_size=60),
    st.integers(1, 60),
)


@given(SHAPES)
def test_a_coarse_shape_is_little_smaller_and_stands_for_many(shape: BatchShape):
    found = coarse(shape)
    # A sequence has a whole number of tokens.
    assert shape.tokens * 7 // 8 - len(shape.lengths) <= found.tokens <= max(shape.tokens, len(found.lengths))
    assert len(shape.lengths) * 7 // 8 <= len(found.lengths) <= len(shape.lengths)
    assert coarse(found).tokens <= found.tokens


@pytest.mark.parametrize(("ids", "rows", "reads"), [(frozenset(), 0, False), (frozenset({5}), 3, True), (None, 3, True)])
def test_a_coarse_head_is_read_wholly_or_not_at_all(ids, rows: int, reads: bool):
    assert coarse(BatchShape((9,), 3, HeadShape(rows, ids=ids))).head.reads(100, 10) is reads
