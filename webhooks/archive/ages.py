from argparse import ArgumentTypeError
from datetime import timedelta

_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_LONGEST = timedelta(days=36_500)


def parse_age(text: str) -> timedelta:
    """90d, 12w or 24h; for a command's argument."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) < 7 and unit in _UNITS):
        raise ArgumentTypeError(f"{text!r} is not an age: say 90d, 12w or 24h")
    age = int(number) * _UNITS[unit]
    if not timedelta() < age <= _LONGEST:
        raise ArgumentTypeError(f"{text!r} is not between an hour and a hundred years")
    return age
