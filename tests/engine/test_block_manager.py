"""Pages: found again by all the tokens before them, used again in the right order, copied before they are written."""

import random
from collections import OrderedDict

import pytest

from labkit.engine.block_manager import PAGE, BlockManager
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.sequence import Request


def sequence(tokens):
    return Request("", tokens, SamplingParams(), max_length=1 << 20).sequences[0]


def computed(blocks, tokens):
    """A sequence whose tokens are all computed, from the cached prefix on. Returns it and how much was cached."""
    one = sequence(tokens)
    blocks.take(one, blocks.cached_prefix(one))
    cached = one.computed
    assert blocks.grow(one, len(tokens) - cached) is None
    one.computed = len(tokens)
    blocks.register(one)
    return one, cached


def test_a_page_is_found_by_all_tokens_up_to_its_end():
    blocks = BlockManager(20, 4)
    first, _ = computed(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert computed(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 9])[1] == 8
    assert computed(blocks, [1, 2, 3, 4, 5, 6, 7, 9, 9])[1] == 4
    assert computed(blocks, [0, 2, 3, 4, 5, 6, 7, 8, 9])[1] == 0  # the same second page after another first one
    assert computed(blocks, [5, 6, 7, 8, 1, 2, 3, 4, 9])[1] == 0
    assert computed(blocks, [1, 2, 3, 4])[1] == 0  # the last token is computed in any case
    assert computed(blocks, [1, 2, 3, 4, 9])[1] == 4
    blocks.forget()
    assert computed(blocks, [1, 2, 3, 4, 9])[1] == 0 and blocks.num_cached == 1


def test_without_prefix_caching_nothing_is_found():
    blocks = BlockManager(20, 4, prefix_caching=False)
    computed(blocks, list(range(9)))
    assert computed(blocks, list(range(9)))[1] == 0 and blocks.num_cached == 0


def test_the_page_released_longest_ago_is_used_first_and_no_longer_found():
    blocks = BlockManager(6, 4)
    a, b, c = ([k] * 8 for k in (1, 2, 3))
    for tokens in (a, b, c):
        blocks.release(computed(blocks, tokens)[0])
    blocks.release(computed(blocks, a + [0])[0])  # a was used last; its third page, which is not full, took one of b's
    # b's second page goes before its first: a page can only be found through those before it.
    assert [len(blocks.cached_prefix(sequence([*tokens, 0]))) for tokens in (a, b, c)] == [2, 1, 2]
    held = computed(blocks, [9] * 4)[0]  # takes the page that holds nothing
    assert [len(blocks.cached_prefix(sequence([*tokens, 0]))) for tokens in (a, b, c)] == [2, 1, 2]
    computed(blocks, [8] * 8)
    assert [len(blocks.cached_prefix(sequence([*tokens, 0]))) for tokens in (a, b, c)] == [2, 0, 1]
    assert len(held.pages) == 1 and blocks.num_free == 3


def test_a_cached_page_that_is_held_is_never_used_for_others():
    blocks = BlockManager(5, 4)
    first, _ = computed(blocks, [1] * 9)
    blocks.release(first)
    again, cached = computed(blocks, [1] * 9)
    assert cached == 8 and blocks.num_free == 2
    other = sequence([2] * 12)
    blocks.take(other, [])
    assert blocks.missing(other, 12) == 3
    with pytest.raises(IndexError, match="needs 3 more pages; 2 are free"):
        blocks.grow(other, 12)
    blocks.grow(other, 8)
    assert not set(other.pages) & set(again.pages)


def test_a_shared_page_is_copied_by_whoever_writes_first_and_the_last_one_keeps_it():
    blocks = BlockManager(8, 4)
    parent, _ = computed(blocks, [1] * 6)
    child = sequence([1] * 6)
    blocks.fork(parent, child)
    shared = list(parent.pages)
    assert [blocks.references(page) for page in shared] == [2, 2] and blocks.num_free == 6
    assert blocks.missing(child, 1) == 1 and blocks.missing(child, 3) == 2
    assert blocks.grow(child, 1) == (shared[1], child.pages[1])
    assert [blocks.references(page) for page in shared] == [2, 1] and child.pages[0] == shared[0]
    assert blocks.missing(parent, 1) == 0 and blocks.grow(parent, 1) is None and parent.pages == shared
    for number, one in enumerate((parent, child)):
        one.tokens += [number, 2, 3]
        one.computed = 9
        if len(one.pages) < 3:
            blocks.grow(one, 0)
        blocks.register(one)
    for number, one in enumerate((parent, child)):  # the pages that they filled by themselves are found, too
        assert blocks.cached_prefix(sequence([1] * 6 + [number, 2, 3])) == one.pages[:2]
        blocks.release(one)
    assert blocks.num_free == 8


def test_of_two_that_computed_the_same_the_first_ones_page_is_found():
    blocks = BlockManager(8, 4)
    one, other = sequence([1] * 5), sequence([1] * 5)
    for each in (one, other):  # both before either is computed
        blocks.take(each, blocks.cached_prefix(each))
        blocks.grow(each, 5)
    for each in (one, other):
        each.computed = 5
        blocks.register(each)
    assert blocks.num_cached == 1 and blocks.cached_prefix(sequence([1] * 5)) == one.pages[:1]
    blocks.release(other)
    assert blocks.cached_prefix(sequence([1] * 5)) == one.pages[:1]


def test_pages_are_those_of_a_plain_model():
    """Against a model that keeps the tokens of each page and looks through all of them."""
    rng = random.Random(0)
    blocks, free, contents, held = BlockManager(24, 2), OrderedDict.fromkeys(range(24)), {}, []
    for _ in range(1500):
        if held and (rng.random() < 0.5 or len(free) < 8):
            one = held.pop(rng.randrange(len(held)))
            for page in reversed(one.pages):
                if not any(page in other.pages for other in held):
                    free[page] = None
                    free.move_to_end(page, last=page in contents)
            blocks.release(one)
        else:
            tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 12))]
            prefix = []
            for end in range(2, len(tokens), 2):
                found = [page for page, content in contents.items() if content == tuple(tokens[:end])]
                if not found:
                    break
                prefix += found
            one, cached = computed(blocks, tokens)
            for page in prefix:
                free.pop(page, None)
            taken = [free.popitem(last=False)[0] for _ in range(-(-len(tokens) // 2) - len(prefix))]
            assert one.pages == prefix + taken and cached == 2 * len(prefix)
            for page in taken:
                contents.pop(page, None)
            for number, page in enumerate(one.pages):
                end = 2 * number + 2
                if end <= len(tokens) and tuple(tokens[:end]) not in contents.values():
                    contents[page] = tuple(tokens[:end])
            held.append(one)
        assert list(blocks._free) == list(free)
        assert {page: blocks._digest_of[page] is not None for page in range(24)} == {
            page: page in contents for page in range(24)}


def test_a_page_has_as_many_tokens_as_the_kernels_say():
    assert BlockManager(1).page_size == PAGE == 16
    for wrong in ((0, 16), (4, 0)):
        with pytest.raises(ValueError, match="both must be 1 or more"):
            BlockManager(*wrong)
