"""nbgrader's configuration for these exercises: copy it into your nbgrader course, beside source/.

Two warnings of `nbgrader autograde` have nothing to do with a submission, and hide what does: SQLAlchemy's about how
nbgrader adds rows, and each kernel's that it is reached by TCP, which here is this machine alone.
"""

import warnings

warnings.filterwarnings("ignore", message="Object of type <Submitted")

c = get_config()  # noqa: F821, nbgrader defines it
c.CourseDirectory.course_id = "labkit"
c.ExecutePreprocessor.timeout = 120  # seconds for a cell: a first check compiles kernels
c.ExecutePreprocessor.extra_arguments = ["--IPKernelApp.log_level=40"]  # errors
