"""Properties of the ring."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estream.engine.ring import Place, Ring


@given(st.integers(8, 64), st.lists(st.tuples(st.integers(1, 8), st.integers(0, 5)), max_size=200))
def test_places_never_overlap_and_an_empty_ring_takes_anything(size: int, steps: list[tuple[int, int]]):
    ring, live = Ring(size), []
    for want, free in steps:
        place = ring.take(want)
        if place is None:
            assert live
        else:
            assert place.offset >= 0
            assert place.offset + place.size <= size
            assert all(place.offset + place.size <= p.offset or p.offset + p.size <= place.offset for p in live)
            live.append(place)
        if live and free < len(live):
            ring.give_back(live.pop(free))
        assert ring.used == sum(p.size for p in live)
    for place in live:
        ring.give_back(place)
    assert ring.take(size) == Place(0, size)


@given(st.integers(20, 60), st.lists(st.integers(1, 8), min_size=2, max_size=60), st.data())
def test_one_place_held_for_long_leaves_half_of_the_rest_contiguous(size: int, wants: list[int], data):
    """Whatever came and went beside a page that is held, the largest page finds room in a ring of twice its size."""
    ring, held, live = Ring(size), None, []
    for want in wants:
        place = ring.take(want)
        if place is None:
            if not live:
                break
            ring.give_back(live.pop(data.draw(st.integers(0, len(live) - 1))))
        elif held is None:
            held = place
        else:
            live.append(place)
    for place in live:
        ring.give_back(place)
    assert ring.take((size - held.size) // 2) is not None


def test_a_place_is_given_back_once():
    ring = Ring(4)
    place = ring.take(4)
    ring.give_back(place)
    with pytest.raises(ValueError, match="twice"):
        ring.give_back(place)
    with pytest.raises(ValueError, match="does not fit"):
        ring.take(5)
