"""`python -m modrl`."""

from modrl.cli import main

if __name__ == "__main__":
    main()
