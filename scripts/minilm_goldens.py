"""Make tests/golden/minilm: sentences, their token ids, and what transformers makes of them with MiniLM's real weights.

    python scripts/minilm_goldens.py FOLDER      config.json, model.safetensors, tokenizer.json of all-MiniLM-L6-v2

Needs torch, transformers and sentence-transformers; the tests that read the files need none of them. The embeddings are
computed in float64 and stored in float32. The script refuses to write them if sentence-transformers, which computes in
float32, gives other ones.
"""

import json
import sys
from pathlib import Path

import numpy as np
import sentence_transformers
import tokenizers
import torch
import transformers

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden" / "minilm"
LIMIT = 256  # tokens: max_seq_length in sentence_bert_config.json
SEED = 12

WRITTEN = (
    "", " ", ".", "a", "kernel", "Why is my kernel slow?", "The kernel reads each row of the matrix twice.",
    "Each row of the matrix is read two times by the kernel.", "Penguins cannot fly, but they swim very well.",
    "A warp is 32 threads that execute together.", "Ein Warp besteht aus 32 Threads.",
    "CAFÉ, café, cafe\u0301 and Cafe", "naïve Großmütter überqueren die Straße", "日本語の文を埋め込みます。",
    "今天天气很好，我们去公园吧。", "한국어 문장도 있습니다.",
    "Привет, мир! Как дела?", "مرحبا بالعالم", "שלום עולם", "γεια σου κόσμε", "नमस्ते दुनिया",
    "🚀 blocks × threads → 🔥 (≈ 90 % of peak)", "x\u200by\u00adz\ufeff zero-width marks",
    "tabs\tand\nlines\r\nin one text", "\u0000control\u0007characters\u001b", "supercalifragilisticexpialidocious" * 4,
    "0123456789 3.14159 -1e-12 0x7fff",
    "out[i] = gelu(x @ w.T + b)  # float16, accumulators in float32", "[CLS] [SEP] [PAD] [MASK] [UNK]",
    "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG", "https://example.org/a/b?c=d&e=f#g", "a" * 300,
)  # fmt: skip
WORDS = """
    attention bank barrier block bright cache carefully coalesced column copy count cycle depth device early
    embedding every fast find float forest garden global grid half hidden history input kernel lane large latency
    launch layer light list matrix mean memory model morning mountain music never number occupancy open order output
    paper parallel pipeline position product quiet reader register result river row score sentence shared short
    simple slow softmax stage store stream street summer table teacher tensor thread tile token value vector wait
    warp water weight winter word yellow
""".split()  # noqa: SIM905
LENGTHS = (3, 7, 12, 14, 15, 16, 24, 30, 31, 62, 63, 100, 126, 127, 200, 254)  # words; the last goes beyond the limit
UNCUT = 600  # words of the longest text


def sentences() -> list[str]:
    rng = np.random.default_rng(SEED)
    return [*WRITTEN, *(" ".join(rng.choice(WORDS, count)) for count in (*LENGTHS[:-1], UNCUT))]


def token_ids(folder: Path, texts: list[str]) -> list[list[int]]:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LIMIT)
    return [tokenizer.encode(text).ids for text in texts]


@torch.no_grad()
def embeddings(folder: Path, ids: list[list[int]]) -> np.ndarray:
    """Each sentence alone, in float64: the mean of its tokens' last hidden states, of length 1."""
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).double().eval()
    rows = [model(torch.tensor([one])).last_hidden_state[0].mean(0).numpy() for one in ids]
    return np.array([row / np.linalg.norm(row) for row in rows])


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1])
    texts = sentences()
    ids = token_ids(folder, texts)
    expected = embeddings(folder, ids)
    library = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    theirs = library.encode(texts, normalize_embeddings=True)
    cosine = (expected * theirs).sum(axis=1).min()
    if cosine < 0.999999:
        raise SystemExit(f"sentence-transformers gives other embeddings: the smallest cosine is {cosine}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    np.save(FOLDER / "embeddings.npy", expected.astype(np.float32))
    (FOLDER / "sentences.json").write_text(json.dumps({
        "made_by": f"scripts/minilm_goldens.py, torch {torch.__version__}, transformers {transformers.__version__}, "
                   f"sentence-transformers {sentence_transformers.__version__}",
        "limit": LIMIT,
        "sentences": [{"text": text, "ids": one} for text, one in zip(texts, ids, strict=True)],
    }, ensure_ascii=True, separators=(",", ":")) + "\n")
    lengths = sorted(map(len, ids))
    print(f"{FOLDER}: {len(ids)} sentences of {lengths[0]} to {lengths[-1]} tokens, cosine with sentence-transformers "
          f"at least {cosine:.9f}, {sum(file.stat().st_size for file in FOLDER.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
