"""The start of the command `fedpdm`: interrupts are heeded before anything large is imported."""

from fedpdm.cli.interrupt import heed_interrupts

__all__ = ["main"]


def main() -> None:
    """Run the command; an interrupt ends it with one line and code 130, also while Python still reads modules."""
    heed_interrupts()
    from fedpdm.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
