"""The cache of tokens keeps to its budget and to what was used last."""

from indexer.blocks import HashSpace
from router.tokens.cache import TokenCache, TokenizedPrompt
from router.tokens.limits import CHAINS_PER_ENTRY, ENTRY_BYTES, HASH_BYTES


def entry_of(num_tokens):
    return TokenizedPrompt(bytes(4 * num_tokens))


def seed(i):
    return HashSpace("m", 16), i


def test_the_least_recently_used_go_first():
    cache = TokenCache(capacity_bytes=2 * (ENTRY_BYTES + 400))
    entries = {name: entry_of(100) for name in (b"a", b"b", b"c")}
    cache.put(b"a", entries[b"a"])
    cache.put(b"b", entries[b"b"])
    assert cache.get(b"a") is entries[b"a"]
    cache.put(b"c", entries[b"c"])
    assert cache.get(b"b") is None
    assert cache.get(b"a") is entries[b"a"]
    assert cache.get(b"c") is entries[b"c"]


def test_an_entry_beyond_the_budget_is_not_kept():
    cache = TokenCache(capacity_bytes=ENTRY_BYTES)
    cache.put(b"a", entry_of(1))
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_putting_twice_counts_once():
    cache = TokenCache()
    entry = entry_of(10)
    cache.put(b"a", entry)
    cache.add_chains(b"a", entry, {seed(0): [1, 2]})
    cache.put(b"a", entry)
    cache.put(b"a", entry_of(3))
    assert cache.num_bytes == ENTRY_BYTES + 12


def test_chains_count_and_may_push_others_out():
    cache = TokenCache(capacity_bytes=2 * ENTRY_BYTES + 8 + 10 * HASH_BYTES)
    first, second = entry_of(1), entry_of(1)
    cache.put(b"a", first)
    cache.put(b"b", second)
    cache.add_chains(b"b", second, {seed(0): list(range(10))})
    assert len(cache) == 2
    cache.add_chains(b"b", second, {seed(1): [1]})
    assert cache.get(b"a") is None
    assert cache.get(b"b") is second
    assert cache.num_bytes == ENTRY_BYTES + 4 + 11 * HASH_BYTES


def test_ever_new_salts_do_not_pile_up():
    cache = TokenCache()
    entry = entry_of(1)
    cache.put(b"a", entry)
    for salt in range(100):
        cache.add_chains(b"a", entry, {seed(salt): [salt]})
        assert entry.chains[seed(salt)] == [salt]
        assert len(entry.chains) <= CHAINS_PER_ENTRY
    assert cache.num_bytes == entry.num_bytes()


def test_chains_of_an_entry_that_left_are_harmless():
    cache = TokenCache()
    entry = entry_of(1)
    cache.add_chains(b"gone", entry, {seed(0): [1]})
    assert (len(cache), cache.num_bytes) == (0, 0)
    assert entry.chains == {seed(0): [1]}
