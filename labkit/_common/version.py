"""The version of labkit: one line, so that the package, the command and the build read the same one."""

__version__ = "0.1.0"
