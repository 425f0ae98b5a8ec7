from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django_prometheus.middleware import PrometheusAfterMiddleware


class BoundedPrometheusAfterMiddleware(PrometheusAfterMiddleware):  # type: ignore[misc]
    """Callers may invent HTTP methods; they must not invent labels. The original bounds the method
    in some of its metrics only."""

    def label_metric(
        self, metric: Any, request: HttpRequest, response: Any = None, **labels: Any
    ) -> Any:
        if "method" in labels:
            labels["method"] = self._method(request)
        return super().label_metric(metric, request, response, **labels)
