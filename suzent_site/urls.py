"""Every URL of the product."""

from django.contrib import admin
from django.urls import URLPattern, include, path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView

from inbox_app.urls import urlpatterns as inbox_urls
from sessions_app.urls import urlpatterns as sessions_urls
from sessions_app.views import AlwaysJSON, to_admin

api = [*inbox_urls, *sessions_urls]
described = [path("api/", include(api))]


def _with_slash(pattern: URLPattern) -> URLPattern:
    return path(f"{pattern.pattern}/", pattern.callback)


urlpatterns = [
    path("", to_admin),
    path("admin/", admin.site.urls),
    *described,
    path("api/", include([_with_slash(pattern) for pattern in api])),
]
for slash in ("", "/"):
    urlpatterns += [
        path(
            f"api/schema{slash}",
            SpectacularJSONAPIView.as_view(patterns=described, content_negotiation_class=AlwaysJSON),
            name=f"schema{slash}",
        ),
        path(f"api/docs{slash}", SpectacularSwaggerView.as_view(url_name="schema")),
    ]

handler400 = "sessions_app.exceptions.bad_request"
handler403 = "sessions_app.exceptions.permission_denied"
handler404 = "sessions_app.exceptions.page_not_found"
handler500 = "sessions_app.exceptions.server_error"
