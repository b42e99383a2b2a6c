"""The product's URLs and one that crashes."""

from django.urls import path

from suzent_site import urls


def crash(request):
    raise RuntimeError


urlpatterns = [path("api/crash", crash), *urls.urlpatterns]
handler404 = urls.handler404
handler500 = urls.handler500
