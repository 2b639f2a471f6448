"""The way in of the command `leasehold`, and of `python -m service`."""

from __future__ import annotations

from service.importing import importing


def main() -> None:
    with importing():
        from service.cli import main as command
    command()


if __name__ == "__main__":
    main()
