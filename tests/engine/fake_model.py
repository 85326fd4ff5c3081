"""A model of whole numbers that stands for a real one: a step's flat arrays go in, tokens come out, and K and V of a
token are a hash of all tokens up to it, written into pages. Whatever the engine gets wrong about pages, slots, chunks
or seats leaves a hash that cannot be right, and `launch` says which."""

import numpy as np

from labkit.engine.batch import BatchBuilder
from labkit.engine.outputs import Sampled, with_logprobs
from labkit.kernels.logprobs import COLUMNS, TOKENS, TOP, logprobs_reference

VOCABULARY = 11
END = 1  # the fake model's end of text
MASK = 2**62 - 1


def absorb(history: int, token: int) -> int:
    """The hash of a history with one token more: what the model writes for K and V of that token."""
    return hash((history, token)) & MASK


def choose(history: int, position: int, seed: int, greedy: bool, top_k: int, banned) -> int:
    """The next token, of all that the real one may depend on."""
    for attempt in range(1000):
        drawn = (history, attempt) if greedy else (history, attempt, seed, position, top_k)
        token = hash(drawn) % VOCABULARY
        if token not in banned:
            return token
    raise AssertionError("every token is banned")


def alone(request, index: int = 0) -> list[int]:
    """The output of a request, by its definition: no pages, no steps, no company."""
    params, tokens, history, output = request.params, list(request.prompt), 0, []
    for token in tokens:
        history = absorb(history, token)
    while len(tokens) < request.max_length:
        banned = request.ending if len(output) < params.min_tokens else ()
        seed = (request.seed + index) % 2**64
        token = choose(history, len(tokens), seed, params.greedy, max(params.top_k, 0), banned)
        tokens.append(token)
        output.append(token)
        history = absorb(history, token)
        if token in request.ending and len(output) > params.min_tokens:
            break
    return output


def listed(history: int, token: int, count: int | None) -> np.ndarray:
    """A row of labkit.kernels.logprobs for a token after a history; count: how many are asked for."""
    logits = np.random.default_rng(history).standard_normal((1, VOCABULARY), np.float32)
    return logprobs_reference(logits, [token], [-1 if count is None else count]).astype(np.float32)[0]


def logprobs_alone(request, tokens) -> tuple[list, list]:
    """(of the prompt, of these output tokens) by definition, each {token: (logprob, rank)}; None for the first."""
    params, history, found = request.params, 0, []
    for position, token in enumerate((*request.prompt, *tokens)):
        count = params.logprobs if position >= len(request.prompt) else params.prompt_logprobs
        row = listed(history, token, count)
        one = {token: (row[0], row[1])}
        for rank in range(1, min(count or 0, VOCABULARY) + 1):
            one.setdefault(int(row[TOKENS + rank - 1]), (row[TOP + rank - 1], rank))
        found.append(one if position and count is not None else None)
        history = absorb(history, token)
    return found[: len(request.prompt)], found[len(request.prompt) :]


def as_pairs(logprobs) -> list:
    """Logprobs as logprobs_alone returns them."""
    return [one and {token: (each.logprob, each.rank) for token, each in one.items()} for one in logprobs]


class Pending:
    """Checks that handles are asked for their tokens once, in the order of the launches."""

    def __init__(self, runner, number: int, sampled: list[Sampled], scored=()):
        self._runner, self._number, self._sampled, self._scored = runner, number, sampled, scored

    def tokens(self) -> list[Sampled]:
        assert self._runner.received == self._number, "a step's tokens were asked for out of order"
        self._runner.received += 1
        return self._sampled

    def prompt_tokens(self):
        return self._scored


class FakeRunner:
    """padded: steps are padded as captured graphs want them."""

    def __init__(self, num_pages: int, page_size: int = 4, max_num_seqs: int = 4, max_model_len: int = 64,
                 padded: bool = False, vocab_size: int = VOCABULARY):
        self.vocab_size = vocab_size
        self.num_pages, self.page_size, self.max_model_len = num_pages, page_size, max_model_len
        self.max_num_seqs, self.padded = max_num_seqs, padded
        self.builder = BatchBuilder(max_num_seqs, -(-max_model_len // page_size), page_size)
        self.cells = [[None] * page_size for _ in range(num_pages)]  # K and V: of which history
        self.last = [None] * (max_num_seqs + 1)  # the token that each seat sampled last
        self.truth = {}  # (request id, index) -> the hash of its history up to each token that the device knows
        self.launched = self.received = 0
        self.rows = 0

    def launch(self, step):
        padding = (step.tokens + 3, len(step.chunks) + len(step.samples) + 2) if self.padded else (0, 0)
        batch = self.builder.build(step, *padding)
        for source, target in batch.copies:
            self.cells[target] = list(self.cells[source])
        written = self._write(batch)
        assert written == step.tokens and (batch.slots[written:] == -1).all()
        self._check_what_attention_reads(step, batch)
        sampled = self._sample(step, batch)
        self.launched += 1
        self.rows += written
        return Pending(self, self.launched - 1, sampled, [(chunk, self._score(chunk)) for chunk in step.chunks
                                                          if chunk.scored])

    def _score(self, chunk) -> list[Sampled]:
        request = chunk.sequence.request
        histories = [0, *self._history(chunk.sequence)]
        rows = [listed(histories[place], request.prompt[place], request.params.prompt_logprobs)
                for place in chunk.scored]
        return with_logprobs(request.prompt[chunk.scored.start : chunk.scored.stop], np.array(rows))

    def _cell(self, batch, number: int, position: int):
        page, place = divmod(position, self.page_size)
        return self.cells[batch.page_table[number, page]][place]

    def _write(self, batch) -> int:
        """By position, as a model's layers do it: what a token needs of those before it may be written in this step."""
        owners = []
        for number, length in enumerate(batch.lengths.tolist()):
            assert (length == 1) if number < batch.decoding else (length <= batch.longest)
            assert not length or batch.begins[number] == len(owners)
            owners += [number] * length
        slots = batch.slots[: len(owners)].tolist()
        assert len(set(slots)) == len(slots) and min(slots) >= 0, "two tokens of a step are written at one slot"
        for row in sorted(range(len(owners)), key=lambda row: batch.positions[row]):
            number, position, token = owners[row], int(batch.positions[row]), int(batch.ids[row])
            assert position == batch.contexts[number] - batch.lengths[number] + row - batch.begins[number]
            history = self._cell(batch, number, position - 1) if position else 0
            self.cells[slots[row] // self.page_size][slots[row] % self.page_size] = absorb(
                history, self.last[-1 - token] if token < 0 else token)
        return len(owners)

    def _check_what_attention_reads(self, step, batch) -> None:
        """Each sequence reads its own history, and nothing else; sequences without rows read nothing."""
        chunks = {self._slot(chunk): chunk for chunk in step.chunks}
        assert np.count_nonzero(batch.lengths) == np.count_nonzero(batch.contexts) == len(chunks) == len(step.chunks)
        for number in range(len(chunks)):
            chunk, context = chunks.pop(int(batch.slots[batch.begins[number]])), int(batch.contexts[number])
            assert batch.lengths[number] == chunk.length
            assert batch.last[number] == batch.begins[number] + chunk.length - 1
            truth = self._history(chunk.sequence)
            assert context == chunk.begin + chunk.length <= len(truth), f"{chunk}: a token that was never sampled"
            for position in range(context):
                assert self._cell(batch, number, position) == truth[position], (
                    f"{chunk}: what it reads at position {position} is not its own history")

    def _slot(self, chunk) -> int:
        """Where the first token of a chunk belongs."""
        page, place = divmod(chunk.begin, self.page_size)
        return chunk.sequence.pages[page] * self.page_size + place

    def _history(self, sequence) -> list[int]:
        key = sequence.request.request_id, sequence.index
        if key not in self.truth:
            self.truth[key], history = [], 0
            for token in sequence.request.prompt:
                self.truth[key].append(history := absorb(history, token))
        return self.truth[key]

    def _sample(self, step, batch) -> list[Sampled]:
        drawn, rows, drawing = [], [], {number for number, _ in batch.samples}
        seats = [int(batch.seats[number]) for number in drawing]
        assert len(set(seats)) == len(seats) == len(step.samples) and max(seats, default=0) < self.max_num_seqs
        assert all(seat == self.max_num_seqs for number, seat in enumerate(batch.seats) if number not in drawing)
        assert [sequence for _, sequence in batch.samples] == step.samples
        banned, ends = dict(batch.banned()), (batch.begins + batch.lengths).tolist()
        for number, sequence in batch.samples:
            position, last = int(batch.steps[number]), int(batch.last[number])
            owner = next(at for at, end in enumerate(ends) if batch.begins[at] <= last < end)
            history = self._cell(batch, owner, position - 1)
            seed = int(batch.seeds[number, 0]) + (int(batch.seeds[number, 1]) << 32)
            token = choose(history, position, seed, batch.temperature[number] == 0, int(batch.top_k[number]),
                           banned.get(number, ()))
            truth = self._history(sequence)
            assert len(truth) == position, f"{sequence}: its token at {position} is sampled out of turn"
            truth.append(absorb(history, token))
            self.last[batch.seats[number]] = token
            drawn.append(token)
            count = int(batch.num_logprobs[number])
            rows.append(None if count < 0 else listed(history, token, count))
        if all(row is None for row in rows):
            return list(map(Sampled, drawn))
        return with_logprobs(drawn, np.array([np.zeros(COLUMNS, np.float32) if row is None else row for row in rows]))
