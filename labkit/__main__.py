"""`python -m labkit`: the command, where its script is not on the PATH."""

from labkit.cli import main

if __name__ == "__main__":
    main()
