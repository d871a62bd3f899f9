"""`python -m debiaser`."""

from debiaser.cli import main

if __name__ == "__main__":
    main()
