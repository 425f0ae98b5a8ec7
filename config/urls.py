from django.conf import settings
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from webhooks.views import metrics_view

admin.site.site_header = "Tollgate"
admin.site.site_title = "Tollgate"
admin.site.index_title = "Back office"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("webhooks/", include("webhooks.urls")),
    path("api/", include("webhooks.api.urls")),
]
if settings.METRICS_ON_WEB:
    urlpatterns.append(path("metrics", metrics_view))
