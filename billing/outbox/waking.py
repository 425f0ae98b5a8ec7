def wake() -> None:
    """Tell the dispatcher to look now."""
