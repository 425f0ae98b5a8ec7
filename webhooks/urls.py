from django.urls import re_path

from webhooks.views import HealthView, WebhookView

# With and without the trailing slash: a redirect would turn a provider's POST into a GET.
urlpatterns = [
    re_path(r"^health/?$", HealthView.as_view(), name="health"),
    re_path(r"^(?P<slug>.*?)/?$", WebhookView.as_view(), name="webhook"),
]
