"""Pages of the KV cache: which sequence holds which, which are free, and which hold a cached prefix.

The device's memory is cut into pages of 16 tokens; a sequence holds as many as its tokens need, anywhere in memory, and
its page table says where. A page may be held by several sequences, which then only read it: they have the same tokens
up to its end. Pages that no sequence holds keep their contents until they are needed, so that a prompt with the same
beginning finds them: the prefix cache.

    blocks = BlockManager(1_000)
    blocks.take(sequence, blocks.cached_prefix(sequence))
    copy = blocks.grow(sequence, 100)     # places for 100 more tokens
    blocks.release(sequence)

Every operation costs the same for each page that it touches, however many there are.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict

from labkit.engine.sequence import Request, Sequence
from labkit.kernels.attention.pages import PAGE


class BlockManager:
    """prefix_caching: whether pages are found again by their contents."""

    # Pages that must be free, for each sequence that runs, when another one begins: else it would soon be preempted.
    watermark = 1

    def __init__(self, num_pages: int, page_size: int = PAGE, prefix_caching: bool = True):
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"num_pages is {num_pages} and page_size is {page_size}; both must be 1 or more")
        self.num_pages, self.page_size, self.prefix_caching = num_pages, page_size, prefix_caching
        self._references = [0] * num_pages
        # Pages without references in the order in which they are used again: those that are not in the prefix cache,
        # then the others, the one released longest ago first.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))
        self._cached: dict[bytes, int] = {}  # digest of all tokens up to a page's end -> the page
        self._digest_of: list[bytes | None] = [None] * num_pages

    @property
    def num_free(self) -> int:
        """Pages that no sequence holds, those of the prefix cache among them."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages that a prompt may find, held or not."""
        return len(self._cached)

    def references(self, page: int) -> int:
        """How many sequences hold the page."""
        return self._references[page]

    def is_cached(self, page: int) -> bool:
        """Whether a prompt may find the page, held or not."""
        return self._digest_of[page] is not None

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def check(self, request: Request) -> None:
        """Raise ValueError for a request that could not run even alone."""
        pages = self.pages_for(request.max_length - 1)  # the last token's K and V are never needed
        if pages > self.num_pages:
            raise ValueError(f"request {request.request_id} may become {request.max_length:,} tokens long; its K and V "
                             f"need {pages:,} pages, and there are {self.num_pages:,}")

    # --- A sequence's pages ------------------------------------------------------------------------------------------

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """The pages that hold the beginning of the sequence's tokens already. Its last token is never among these: the
        next one is drawn from its logits, so it must be computed. So must be all of a prompt whose logprobs are wanted:
        the first output finds nothing then."""
        pages: list[int] = []
        if self.prefix_caching and (sequence.index or sequence.request.params.prompt_logprobs is None):
            for index in range((len(sequence.tokens) - 1) // self.page_size):
                page = self._cached.get(self._digest(sequence, index))
                if page is None:
                    break
                pages.append(page)
        return pages

    def needed(self, sequence: Sequence, tokens: int, prefix: list[int]) -> int:
        """How many of the free pages a sequence without pages takes for its first `tokens` tokens, if it begins with
        the cached pages `prefix`: those of them that are free count too."""
        return self.pages_for(tokens) - sum(self._references[page] > 0 for page in prefix)

    def take(self, sequence: Sequence, prefix: list[int]) -> None:
        """Gives a sequence without pages those of cached_prefix; their tokens are computed."""
        for page in prefix:
            if not self._references[page]:
                del self._free[page]
            self._references[page] += 1
        sequence.pages = list(prefix)
        sequence.computed = len(prefix) * self.page_size
        sequence.registered = len(prefix)

    def missing(self, sequence: Sequence, tokens: int) -> int:
        """How many free pages grow(sequence, tokens) takes."""
        new = self.pages_for(sequence.computed + tokens) - len(sequence.pages)
        return new + self._writes_shared(sequence)

    def grow(self, sequence: Sequence, tokens: int) -> tuple[int, int] | None:
        """Gives the sequence places for so many tokens behind its computed ones.

        Returns (from, to) if a page must be copied first: the sequence is about to write into one that others hold.
        Raises IndexError if there are not enough free pages; `missing` says how many it takes.
        """
        missing = self.missing(sequence, tokens)
        if missing > self.num_free:
            raise IndexError(f"{sequence!r} needs {missing} more pages; {self.num_free} are free")
        copy = None
        if self._writes_shared(sequence):
            index = sequence.computed // self.page_size
            shared, own = sequence.pages[index], self._pop_free()
            self._references[shared] -= 1  # others hold it still
            sequence.pages[index] = own
            copy = shared, own
        while len(sequence.pages) * self.page_size < sequence.computed + tokens:
            sequence.pages.append(self._pop_free())
        return copy

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Gives a sequence without pages all those of another, whose tokens it has."""
        for page in parent.pages:
            self._references[page] += 1
        child.pages, child.computed = list(parent.pages), parent.computed
        child.digests, child.registered = list(parent.digests), parent.registered

    def release(self, sequence: Sequence) -> None:
        """Free the sequence's pages. Their contents stay cached until they are reused, last pages first, since a prompt
        can share a page only together with those before it."""
        self.register(sequence)
        for page in reversed(sequence.pages):
            self._references[page] -= 1
            if not self._references[page]:
                self._free[page] = None
                if self._digest_of[page] is None:
                    self._free.move_to_end(page, last=False)
        sequence.pages, sequence.computed, sequence.registered = [], 0, 0

    def _writes_shared(self, sequence: Sequence) -> bool:
        index = sequence.computed // self.page_size
        return index < len(sequence.pages) and self._references[sequence.pages[index]] > 1

    def _pop_free(self) -> int:
        page, _ = self._free.popitem(last=False)
        digest = self._digest_of[page]
        if digest is not None:
            del self._cached[digest]
            self._digest_of[page] = None
        self._references[page] = 1
        return page

    # --- The prefix cache --------------------------------------------------------------------------------------------

    def register(self, sequence: Sequence) -> None:
        """Lets others find the sequence's pages that are full of tokens which are computed and known. If two sequences
        computed the same, the first one's page is found."""
        if not self.prefix_caching:
            return
        full = min(sequence.computed, len(sequence.tokens)) // self.page_size
        for index in range(sequence.registered, full):
            digest, page = self._digest(sequence, index), sequence.pages[index]
            if digest not in self._cached:
                self._cached[digest] = page
                self._digest_of[page] = digest
        sequence.registered = max(sequence.registered, full)

    def _digest(self, sequence: Sequence, index: int) -> bytes:
        """Of all tokens up to the end of a page, chained: of the digest of the page before and of the page's tokens.
        The digests of a sequence's pages are kept with it."""
        while len(sequence.digests) <= index:
            begin = len(sequence.digests) * self.page_size
            tokens = array("q", sequence.tokens[begin : begin + self.page_size])
            previous = sequence.digests[-1] if sequence.digests else b""
            sequence.digests.append(hashlib.blake2b(previous + tokens.tobytes(), digest_size=16).digest())
        return sequence.digests[index]

    def forget(self) -> None:
        """Empties the prefix cache. Sequences keep their pages."""
        for page in self._cached.values():
            self._digest_of[page] = None
            if page in self._free:
                self._free.move_to_end(page, last=False)
        self._cached.clear()
