"""Entry point of `python -m portico`."""

from portico.cli.entry import main

if __name__ == "__main__":
    main()
