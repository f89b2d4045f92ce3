"""A command."""


def hello(name: str = "you") -> None:
    """Greet somebody."""
    print(f"Hello {name}.")
