"""What engines had before continuous batching and pages: batches that are filled once, and a contiguous KV cache.

    blocks = partial(ContiguousBlocks, longest=2_048)
    llm = LLM(runner, scheduler=StaticScheduler, blocks=blocks, enable_prefix_caching=False)
"""

from __future__ import annotations

import heapq

from labkit.engine.block_manager import BlockManager
from labkit.engine.scheduler import Scheduler, Step
from labkit.engine.sequence import Request, Sequence
from labkit.kernels.attention.pages import PAGE


class StaticScheduler(Scheduler):
    """Static batching: a batch is filled once, over as many steps as its prompts take, and the next
    one begins when all of it have ended. The slots of those that end early stay empty until then."""

    _open = True  # the batch is not full yet

    def _admit(self, budget: int, step: Step) -> None:
        self._open = self._open or not self.running
        if self._open:
            super()._admit(budget, step)
            # With tokens left in the budget, it was slots, pages or requests that ran out.
            self._open = step.tokens == self.max_num_batched_tokens


class ContiguousBlocks(BlockManager):
    """Each sequence owns one piece of memory, as long as the longest sequence may be: pages that lie side by side, so
    the same kernels read it. A sequence of n tokens holds longest - n places that nothing is written to, and no two
    sequences can share the beginning of a prompt: a memory of 4,096 pages has places for 32 sequences of up to 2,048
    tokens, however short they are.

    longest: in tokens, of any sequence. Pages that make no whole piece are never used.
    """

    watermark = 0  # whoever runs has all that it may need

    def __init__(self, num_pages: int, page_size: int = PAGE, prefix_caching: bool = False, *, longest: int):
        super().__init__(num_pages, page_size, prefix_caching=False)
        self.longest, self.piece = longest, self.pages_for(longest)
        if not 1 <= self.piece <= num_pages:
            raise ValueError(f"longest is {longest:,} tokens, {self.piece:,} pages; from 1 to {num_pages:,} are there")
        self._pieces = list(range(num_pages // self.piece))  # a heap of those that are free

    @property
    def num_free(self) -> int:
        return len(self._pieces) * self.piece

    def needed(self, sequence: Sequence, tokens: int, prefix: list[int]) -> int:
        return self.piece

    def check(self, request: Request) -> None:
        if request.max_length > self.longest:
            raise ValueError(f"request {request.request_id} may become {request.max_length:,} tokens long; longest is "
                             f"{self.longest:,}")
        if len(request.sequences) > 1:
            raise ValueError(f"request {request.request_id} has n > 1; without pages outputs cannot share a prompt")

    def take(self, sequence: Sequence, prefix: list[int]) -> None:
        self.check(sequence.request)
        start = heapq.heappop(self._pieces) * self.piece
        sequence.pages = list(range(start, start + self.piece))
        for page in sequence.pages:
            self._references[page] = 1

    def missing(self, sequence: Sequence, tokens: int) -> int:
        return 0

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """There are places for all of its tokens already."""

    def release(self, sequence: Sequence) -> None:
        heapq.heappush(self._pieces, sequence.pages[0] // self.piece)
        for page in sequence.pages:
            self._references[page] = 0
        sequence.pages, sequence.computed, sequence.registered = [], 0, 0
