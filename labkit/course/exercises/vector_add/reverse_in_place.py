"""From a blank page: reversed, in place

Reverse a vector without a second vector, so that its first element becomes its last: (1, 2, 3, 4, 5) becomes
(5, 4, 3, 2, 1). The only parameter is `x`. One thread is started per element, in blocks of 128, plus the usual few
extra.

In the lesson every element had one owner. Here elements trade positions in pairs, and a thread that moves one element
of a pair also overwrites the other. First decide which threads do the work and what each of them owns.
"""

HINTS = ("How many pairs trade positions in a vector of 6, and in one of 7? How many threads does that need?",
         "Let thread i of the first half own both x[i] and its partner, and let all other threads do nothing. A swap "
         "has to keep one of the two values in a variable.",
         "The guard is if i < x.size // 2. Keep x[i] in a variable, store x[x.size - 1 - i] at x[i], then the kept "
         "value at x[x.size - 1 - i].")
POINTS = 3
NEEDS = ("saxpy",)

from labkit import cuda

# %%
reverse_in_place = None  # write the kernel here: def reverse_in_place(x)
### BEGIN SOLUTION
@cuda.jit
def reverse_in_place(x):
    i = cuda.grid(1)
    if i < x.size // 2:  # one thread for each pair; a middle element stays where it is
        partner = x.size - 1 - i
        mine = x[i]
        x[i] = x[partner]
        x[partner] = mine


### END SOLUTION

# %% [check]
from labkit.course.exercises import MOVED, Edit, KernelExercise, of, uniform
from labkit.course.exercises.vector_add import BLOCK, blocks_of


@cuda.jit
def reverse_by_one_thread(x):
    if cuda.grid(1) == 0:
        for i in range(x.size // 2):
            mine = x[i]
            x[i] = x[x.size - 1 - i]
            x[x.size - 1 - i] = mine


EXERCISE = KernelExercise(
    name="reverse_in_place",
    reference=lambda x: x[::-1],
    inputs=lambda rng, n: (uniform(rng, n),),
    shape=lambda n: (n,),
    start=lambda x: x,
    arguments=lambda inputs, out, size: (out,),
    # Wrong kernels race, and between blocks a race has no certain outcome: enough sizes fit into one block.
    sizes=tuple({"n": n} for n in (1, 2, 33, 64, 101, 127, 1001, 9_999)),
    launch=lambda n: (blocks_of(n), BLOCK),
    domain=of(0, MOVED),
    wrong={
        "all threads swap, so each pair is swapped by two threads": Edit("x.size // 2", "x.size"),
        "all threads copy without a temporary variable, and read elements that others have overwritten":
            Edit("x.size // 2", "x.size", "x[partner] = mine", ""),
        "the first of the two stores destroys the value that the second should move":
            Edit("x[partner] = mine", "x[partner] = x[i]"),
        "the partner of i is taken to be size - i, which is one too far":
            Edit("x[i] = x[partner]", "x[i] = x[x.size - i]",
                 "x[partner] = mine", "x[x.size - i] = mine"),
        "the first thread goes through the whole vector, and the others do nothing": reverse_by_one_thread,
    },
)

AFTER = """
If your kernel was wrong in one order of the threads and right in another, you have met a *race*. Two threads that swap
the same pair undo each other's work, or half of it, and which half is up to the hardware.

Next: the exercises of **02 · The machine**.
"""
