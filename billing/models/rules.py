"""Conditions that several tables' constraints share."""

from django.db.models import Q


def finite(field: str, *, allow_zero: bool = False) -> Q:
    """NaN is greater than every number in PostgreSQL, so the upper bound refuses it as well."""
    lowest = Q(**{f"{field}__gte": 0}) if allow_zero else Q(**{f"{field}__gt": 0})
    return Q(**{f"{field}__isnull": True}) | lowest & Q(**{f"{field}__lt": 10**15})


def currency_code(field: str = "currency") -> Q:
    return Q(**{f"{field}__isnull": True}) | Q(**{f"{field}__regex": r"^[A-Z]{3}$"})
