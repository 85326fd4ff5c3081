"""What single lessons draw: the modules in notebooks/drawings/, each named after its lesson.

    from labkit.course.drawings import the_machine as pictures
"""

from labkit._common.paths import find_root

__path__ = [str(find_root() / "notebooks" / "drawings")]  # makes this module a package of the files in that folder
