"""The tree of prompts that begin alike, and where its branches keep keys, values and states."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from estream import _native
from estream.engine.batch import Batch
from estream.engine.branch_layout import KeyLayout, StateLayout
from estream.engine.prefixes import SHORTEST_SHARED, Branch, PrefixTree


@st.composite
def prompts_that_branch(draw) -> list[list[int]]:
    """Prompts that continue a beginning of an earlier one."""
    prompts: list[list[int]] = []
    for number in range(draw(st.integers(1, 12))):
        stem = draw(st.sampled_from([[], *prompts]))
        kept = draw(st.integers(0, len(stem)) | st.sampled_from([16, 63, 64, 65, 128, len(stem)]))
        tail = draw(st.integers(0, 40) | st.sampled_from([16, 64]))
        prompts.append((stem[:kept] + [number + 1 + i % 3 for i in range(tail)]) or [7])
    return prompts


@given(prompts_that_branch(), st.data())
def test_every_prompt_is_a_path(prompts: list[list[int]], data):
    ids = [np.array(p, np.int32) for p in prompts]
    sides = data.draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))
    tree = PrefixTree.of(ids, sides)
    for number, (prompt, side) in enumerate(zip(prompts, sides, strict=True)):
        path = [tree.branches[i] for i in tree.path(tree.last[number])]
        assert [b.start for b in path] == [0, *(b.end for b in path[:-1])]
        assert [int(t) for b in path for t in ids[b.prompt][b.start : b.end]] == prompt
        assert {sides[b.prompt] for b in path} == {side}
    for index, branch in enumerate(tree.branches):
        assert branch.tokens > 0
        # All that continues a branch lies behind it, before anything that does not.
        assert branch.parent < index
        if 0 <= branch.parent < index - 1:
            inside = range(branch.parent + 1, index)
            assert all(branch.parent in tree.path(i) for i in inside)
    # What two prompts share is computed once, unless it is too little; up to that much more for each branch above.
    for i, one in enumerate(prompts):
        for j in range(i):
            if sides[i] == sides[j]:
                common = next((k for k, (a, b) in enumerate(zip(one, prompts[j], strict=False)) if a != b), None)
                common = min(len(one), len(prompts[j])) if common is None else common
                both = set(tree.path(tree.last[i])) & set(tree.path(tree.last[j]))
                shared = max((tree.branches[b].end for b in both), default=0)
                assert common - SHORTEST_SHARED < shared <= common


@given(prompts_that_branch())
def test_every_branch_finds_the_keys_of_its_prompt(prompts: list[list[int]]):
    batch = Batch.of(prompts, sides=[0] * len(prompts))
    keys, tree = batch.key_layout, batch.tree
    stored = np.full(batch.kv_capacity, -1)
    # Nothing is stored over anything else.
    targets = np.concatenate([keys.rows, keys.copies])
    assert len(np.unique(targets)) == len(targets)
    stored[keys.rows] = np.arange(batch.tokens)
    stored[keys.copies] = keys.copied
    assert (np.diff(keys.copied) >= 0).all()
    assert (keys.blocks % _native.KEY_RUN == 0).all()
    for last, prompt in zip(tree.last, prompts, strict=True):
        row = tree.first_rows[last] + tree.branches[last].tokens - 1
        table = keys.blocks[keys.sequences[row] :]
        at = [table[p // _native.KEY_BLOCK] + p % _native.KEY_BLOCK for p in range(len(prompt))]
        assert batch.ids[stored[at]].tolist() == prompt
        assert batch.positions[stored[at]].tolist() == list(range(len(prompt)))


@given(prompts_that_branch())
def test_states_are_taken_back_where_their_branch_ended(prompts: list[list[int]]):
    tree = PrefixTree.of([np.array(p, np.int32) for p in prompts], [0] * len(prompts))
    layout = StateLayout.of(tree)
    ends = np.cumsum([b.tokens for b in tree.branches])
    held: dict[int, int] = {}
    state = -1  # the branch whose last token was seen
    for index, branch in enumerate(tree.branches):
        row = ends[index] - branch.tokens
        if row in layout.restored:
            state = held[layout.restored[row]]
        assert state == branch.parent or branch.parent == -1
        state = index
        if ends[index] in layout.saved:
            held[layout.saved[ends[index]]] = index
    assert all(place < layout.places for place in layout.saved.values())


def test_few_tokens_in_common_are_not_shared():
    stem = list(range(100))
    tree = PrefixTree.of([np.array([*stem[:15], 500 + i]) for i in range(3)], [0] * 3)
    assert [b.parent for b in tree.branches] == [-1] * 3
    tree = PrefixTree.of([np.array([*stem, 1]), np.array(stem), np.array([*stem, 2])], [0] * 3)
    assert tree.branches == (Branch(-1, 0, 100, 1), Branch(0, 100, 101, 0), Branch(0, 100, 101, 2))
    assert tree.last == (1, 0, 2)


def test_a_layout_without_branches_is_one_prompt_after_another():
    tree = PrefixTree.apart([np.arange(70), np.arange(3)])
    keys = KeyLayout.of(tree)
    assert keys.rows.tolist() == [*range(70), 96, 97, 98]
    assert keys.blocks.tolist() == [0, 64, 96]
    assert StateLayout.of(tree) == StateLayout(0, {}, {})
