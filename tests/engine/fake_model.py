"""A model of whole numbers that stands for a real one: a step's flat arrays go in, tokens come out, and K and V of a
token are a hash of all tokens up to it, written into pages. Whatever the engine gets wrong about pages, slots, chunks
or seats leaves a hash that cannot be right, and `launch` says which."""

from labkit.engine.batch import BatchBuilder
from labkit.engine.outputs import Sampled

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


class Pending:
    """Checks that handles are asked for their tokens once, in the order of the launches."""

    def __init__(self, runner, number: int, sampled: list[Sampled]):
        self._runner, self._number, self._sampled = runner, number, sampled

    def tokens(self) -> list[Sampled]:
        assert self._runner.received == self._number, "a step's tokens were asked for out of order"
        self._runner.received += 1
        return self._sampled


class FakeRunner:
    """padded: steps are padded as captured graphs want them."""

    def __init__(self, num_pages: int, page_size: int = 4, max_num_seqs: int = 4, max_model_len: int = 64,
                 padded: bool = False):
        self.num_pages, self.page_size, self.max_model_len = num_pages, page_size, max_model_len
        self.max_num_seqs, self.padded = max_num_seqs, padded
        self.builder = BatchBuilder(max_num_seqs, -(-max_model_len // page_size), page_size)
        self.cells = [[None] * page_size for _ in range(num_pages)]  # K and V: of which history
        self.last = [None] * (max_num_seqs + 1)  # the token that each seat sampled last
        self.truth = {}  # (request id, index) -> the hash of its history up to each token that the device knows
        self.launched = self.received = 0
        self.rows = 0

    def launch(self, step):
        padding = (step.tokens + 3, len(step.chunks) + 2, len(step.samples) + 1) if self.padded else (0, 0, 0)
        batch = self.builder.build(step, *padding)
        for source, target in batch.copies:
            self.cells[target] = list(self.cells[source])
        count = self._write(step, batch)
        for number, chunk in enumerate(step.chunks):
            self._check_what_attention_reads(chunk, batch, number)
        assert (batch.slots[count:] == -1).all() and (batch.lengths[len(step.chunks) :] == 0).all()
        sampled = self._sample(step, batch)
        self.launched += 1
        self.rows += count
        return Pending(self, self.launched - 1, sampled)

    def _cell(self, batch, number: int, position: int):
        page, place = divmod(position, self.page_size)
        return self.cells[batch.page_table[number, page]][place]

    def _write(self, step, batch) -> int:
        written, row = set(), 0
        for number, chunk in enumerate(step.chunks):
            assert batch.begins[number] == row and batch.lengths[number] == chunk.length >= 1
            for position in range(batch.contexts[number] - chunk.length, batch.contexts[number]):
                token, slot = int(batch.ids[row]), int(batch.slots[row])
                token = self.last[-1 - token] if token < 0 else token
                assert batch.positions[row] == position
                assert slot not in written, f"two tokens of a step are written at slot {slot}"
                history = self._cell(batch, number, position - 1) if position else 0
                self.cells[slot // self.page_size][slot % self.page_size] = absorb(history, token)
                written.add(slot)
                row += 1
        return row

    def _check_what_attention_reads(self, chunk, batch, number: int) -> None:
        sequence = chunk.sequence
        truth = self._history(sequence)
        context = int(batch.contexts[number])
        assert context == chunk.begin + chunk.length <= len(truth), f"{sequence}: a token that was never sampled"
        for position in range(context):
            assert self._cell(batch, number, position) == truth[position], (
                f"{sequence}: what it reads at position {position} is not its own history")

    def _history(self, sequence) -> list[int]:
        key = sequence.request.request_id, sequence.index
        if key not in self.truth:
            self.truth[key], history = [], 0
            for token in sequence.request.prompt:
                self.truth[key].append(history := absorb(history, token))
        return self.truth[key]

    def _sample(self, step, batch) -> list[Sampled]:
        drawn, last = [], list(self.last)
        for number, sequence in enumerate(batch.samples):
            (at,) = (at for at, chunk in enumerate(step.chunks) if sequence in chunk.samples)
            row = int(batch.rows[number])
            assert row == batch.begins[at] + batch.lengths[at] - 1
            position = int(batch.draws[number])
            history = self._cell(batch, at, position - 1)
            seed = int(batch.seeds_low.view("u4")[number]) + (int(batch.seeds_high.view("u4")[number]) << 32)
            token = choose(history, position, seed, batch.temperature[number] == 0, int(batch.top_k[number]),
                           batch.banned[number])
            truth = self._history(sequence)
            assert len(truth) == position, f"{sequence}: its token at {position} is sampled out of turn"
            truth.append(absorb(history, token))
            assert last[batch.seats[number]] is not NotImplemented, "two tokens of a step are put at one seat"
            last[batch.seats[number]] = NotImplemented
            self.last[batch.seats[number]] = token
            drawn.append(Sampled(token))
        return drawn
