"""Every URL of the product."""

from django.contrib import admin
from django.urls import path

from suzent_site.health import healthz, readyz

urlpatterns = [
    path("healthz", healthz),
    path("readyz", readyz),
    path("admin/", admin.site.urls),
]
