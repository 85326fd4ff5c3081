"""Predict: where a tensor begins

A safetensors file has a header of 248 bytes. Its three tensors are float16 and follow one another in this order: `bias`
with 77 elements, `weight` with 77 × 50, and `scale` with 5. At which byte of the file does `weight` begin, counted from
0 at the first byte of the file? And how long is the file, in bytes?

On the device the tensors are in one buffer, in the same order but as float32, and each begins at a multiple of 16
bytes, as in the lesson. At which byte of the buffer does `weight` begin?

Last, the embedding. A block of 256 threads copies a row of 1,000 columns, and each thread copies every 256th column,
beginning with its index. How many columns does thread 250 copy?
"""

HINTS = ("What comes before the data in the file? And how many bytes is an element there, and on the device?",
         "In the file: 8 bytes, the header, the bias with 2 bytes per element, the weight, the scale. On the device an "
         "element takes 4 bytes, and each tensor begins at the next multiple of 16. The columns of thread 250 are 250, "
         "250 + 256, and so on, below 1,000.",
         "8 + 248 + 2 * 77; that plus 2 * (77 * 50 + 5); 308 rounded up to a multiple of 16; and 250, 506 and 762.")
POINTS = 1
NEEDS = ("read_tensor",)

# %%
file_begin = None  # where weight begins in the file
file_bytes = None
buffer_begin = None  # where weight begins on the device
columns = None  # of thread 250
### BEGIN SOLUTION
file_begin = 8 + 248 + 2 * 77
file_bytes = 410 + 2 * (77 * 50 + 5)
buffer_begin = 320  # 4 * 77 = 308, and the next multiple of 16
columns = 3  # 250, 506, 762
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _places():
    bias, weight, scale = 77, 77 * 50, 5
    begin = 8 + 248 + 2 * bias
    return {"file_begin": begin, "file_bytes": begin + 2 * (weight + scale), "buffer_begin": -(-4 * bias // 16) * 16,
            "columns": len(range(250, 1000, 256))}


EXERCISE = PredictionExercise(
    name="predict_places",
    truth=_places,
    how={"file_begin": "8 bytes, 248 of header, and 77 elements of the bias at 2 bytes each: 8 + 248 + 154.",
         "file_bytes": "The weight has 3,850 elements and the scale 5, 2 bytes each: 410 + 7,700 + 10, and no gaps.",
         "buffer_begin": "The bias takes 77 * 4 = 308 bytes on the device; the next multiple of 16 is 320.",
         "columns": "Columns 250, 506 and 762; the next one would be 1,018, and the last column is 999."},
    wrong={"the 8 bytes before the header are not counted": {"file_begin": 402, "file_bytes": 8112},
           "the offsets are counted from the first byte of the file": {"file_begin": 154, "file_bytes": 7864},
           "4 bytes per element in the file; float16 has 2": {"file_begin": 564, "file_bytes": 15984},
           "the weight follows the bias directly, not at a multiple of 16": {"buffer_begin": 308},
           "the bias keeps its 2 bytes per element on the device": {"buffer_begin": 160},
           "the row's length is no multiple of 256: the last round has no column for this thread": {"columns": 4}},
)
