"""Every URL of the product."""

from django.contrib import admin
from django.urls import URLPattern, include, path

from inbox_app.urls import urlpatterns as inbox_urls
from peers_app.urls import urlpatterns as peers_urls
from sessions_app.cron.urls import urlpatterns as cron_urls
from sessions_app.social.urls import urlpatterns as social_urls
from sessions_app.urls import urlpatterns as sessions_urls
from sessions_app.views import Docs, Schema, to_admin
from suzent_site.health import healthz, readyz

api = [*inbox_urls, *sessions_urls, *cron_urls]


def _with_slash(pattern: URLPattern) -> URLPattern:
    return path(f"{pattern.pattern}/", pattern.callback)


urlpatterns = [
    path("", to_admin),
    path("admin", to_admin),
    path("admin/", admin.site.urls),
    path("api/", include(api)),
    path("api/", include([_with_slash(pattern) for pattern in api])),
    path("channels/social/", include(social_urls)),
    *peers_urls,
]
for slash in ("", "/"):
    urlpatterns += [
        path(f"healthz{slash}", healthz),
        path(f"readyz{slash}", readyz),
        path(f"api/schema{slash}", Schema.as_view(), name=f"schema{slash}"),
        path(f"api/docs{slash}", Docs.as_view(url_name="schema")),
    ]

handler400 = "sessions_app.exceptions.bad_request"
handler403 = "sessions_app.exceptions.permission_denied"
handler404 = "sessions_app.exceptions.page_not_found"
handler500 = "sessions_app.exceptions.server_error"
