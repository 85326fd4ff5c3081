"""Grading a class: `labkit grade FOLDER`. No verdict is reached in the process in which a submission's code runs.

collect.py   submissions in whatever layout a learning platform exports them; the roster
answers.py   what a notebook answers: its check cells, the program of an answer, what of it may run beside the grader
wire.py      arrays and messages between the two sides, as plain bytes, never pickle
isolate.py   namespaces, mounts and limits around the code of a submission
child.py     the isolated side: starts once, then forks a process of its own for each answer
sandbox.py   the trusted side of child.py: starts it, asks it, stops it
remote.py    an answer in another process, which labkit.course.check takes for a kernel or a function
device_proxy.py   the device as a function's process sees it: everything is asked of the grader
device_server.py  the grader's device, on which that is done and observed
judge.py     one answer: secret inputs, the isolated run, the verdict
notes.py     what a teacher should know, one line a kind and student
tasks.py     all answers of a class, as they wait to be judged; which of them are equal
journal.py   the verdicts that have been reached, and one grader at a time
workers.py   those who judge: processes of this machine, workers of a dask cluster
batch.py     a run: the journal's verdicts, then the workers', and a row of the scores for each
similar.py   which answers are alike: pairs for a teacher to look at
feedback.py  scores, pages, nbgrader's gradebook
"""
