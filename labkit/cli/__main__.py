"""`python -m labkit.cli`: the same as `python -m labkit`."""

from labkit.cli import main

if __name__ == "__main__":
    main()
