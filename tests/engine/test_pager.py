"""Slots of the arena used out of turn: each way is refused. That pages lie where they should is test_pager_bytes.py."""

import pytest
from pagers import ATTENTION, PINNED_ADDRESS, RING_ADDRESS, ROUTER, TAPE, FakeReader, begin, make_pager

from estream.engine.slots import SlotError
from estream.errors import CancelledError, ReadError


def test_a_page_is_lent_where_it_lies():
    pager = make_pager(FakeReader(), pinned=[ROUTER])
    begin(pager)
    with pager.page(ATTENTION) as address:
        assert address == RING_ADDRESS
    with pager.page(ROUTER) as address:
        assert address == PINNED_ADDRESS + ROUTER.offset


def test_a_sweep_cannot_begin_while_pages_of_another_are_in_the_ring():
    pager = make_pager(FakeReader())
    begin(pager)
    with pytest.raises(SlotError, match="a sweep begins while pages of the last one are in the ring"):
        begin(pager)


def test_a_page_cannot_lose_its_slot_while_it_is_computed():
    pager = make_pager(FakeReader(), pinned=[ATTENTION])
    begin(pager)
    lost = pytest.raises(SlotError, match="layer 0 attention: its slot became ready while it was computed")
    with lost, pager.page(ATTENTION):
        pager.abort()


def test_a_sweep_cannot_end_while_pages_are_in_the_ring():
    pager = make_pager(FakeReader())
    begin(pager)
    with pytest.raises(SlotError, match=r"\d+ bytes are still in the ring after the sweep"):
        pager.end()


def test_a_page_that_the_schedule_leaves_out_cannot_be_lent():
    pager = make_pager(FakeReader())
    begin(pager, resident=[ATTENTION.index])
    with pytest.raises(SlotError, match="layer 0 attention: not in the arena and cannot be read"), pager.page(ATTENTION):
        pass


def test_a_page_cannot_be_lent_twice_at_once():
    pager = make_pager(FakeReader())
    begin(pager)
    twice = pytest.raises(SlotError, match="layer 0 attention: taken while computing")
    with pager.page(ATTENTION), twice, pager.page(ATTENTION):
        pass


def test_a_page_cannot_be_asked_for_while_it_is_there():
    pager = make_pager(FakeReader(), pinned=[ATTENTION])
    begin(pager)
    pager.abort()
    assert pager.resident == {ATTENTION.index}
    with pytest.raises(SlotError, match="layer 0 attention: asked for twice"):
        begin(pager, resident=())


def test_after_a_failed_sweep_another_can_begin():
    reader = FakeReader(outcomes={0: ("checksum", 0, 0)})
    pager = make_pager(reader)
    begin(pager)
    with pytest.raises(ReadError, match=r"pages\.bin: layer 0 attention at offset 0: wrong checksum"), pager.page(ATTENTION):
        pass
    pager.abort()
    assert reader.cancelled == 1
    begin(pager)
    with pager.page(ATTENTION) as address:
        assert address == RING_ADDRESS


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (("io", 5, 77), r"at offset 77: the system could not read it \(Input/output error\)"),
        (("short", 0, 0), "the file ends before the page does"),
        (("cancelled", 0, 0), "the read was cancelled"),
    ],
)
def test_what_the_reader_says_reaches_the_caller(outcome: tuple[str, int, int], message: str):
    pager = make_pager(FakeReader(outcomes={0: outcome}))
    begin(pager)
    with pytest.raises(ReadError, match=message), pager.page(ATTENTION):
        pass


def test_who_waits_for_a_read_that_does_not_end_can_be_cancelled():
    pager = make_pager(FakeReader(outcomes={0: ("pending", 0, 0)}))
    begin(pager)
    reads = pager._reads
    original = reads.native.wait
    reads.native.wait = lambda ticket, timeout_s: (reads.cancel(), original(ticket, timeout_s))[1]
    with pytest.raises(CancelledError), pager.page(ATTENTION):
        pass


def test_pages_behind_the_first_are_lent_with_it_where_they_are_there():
    """At most sixteen at once, and none behind one that is still being read."""
    experts = [p for p in TAPE if p.spec.kind == "expert" and p.spec.layer == 0]
    reader = FakeReader()
    pager = make_pager(reader)
    begin(pager, spare=100 * experts[0].padded_bytes)
    for page in (ATTENTION, ROUTER):
        with pager.page(page):
            pass
    reader.outcomes[reader.tickets + 20] = ("pending", 0, 0)
    pager.routed(0, frozenset(range(64)), experts)
    with pager.run(experts) as addresses:
        assert len(addresses) == 16
    with pager.run(experts[16:]) as addresses:
        assert len(addresses) == 4
