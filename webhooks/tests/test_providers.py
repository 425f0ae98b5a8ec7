"""What holds for every provider, also for those that are yet to come."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

from webhooks.providers import all_providers, provider_of
from webhooks.providers.base import Provider


def _module_of(provider: Provider) -> str:
    return type(provider).__module__


@pytest.mark.parametrize("slug", all_providers())
def test_no_provider_knows_another(slug: str) -> None:
    own = _module_of(provider_of(slug))
    others = {_module_of(provider_of(other)) for other in all_providers()} - {own}

    assert not _imported(inspect.getsource(importlib.import_module(own))) & others


def test_the_check_sees_what_it_looks_for() -> None:
    source = "import webhooks.providers.a\nfrom webhooks.providers import b\nfrom c.d import e"
    found = _imported(source)

    assert {"webhooks.providers.a", "webhooks.providers.b", "c.d"} <= found


def _imported(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found
