"""Settings. Every knob is read from the environment here, with its unit and default, and nowhere else."""

from __future__ import annotations

import hashlib
import importlib.util
import ipaddress
import os
import re
import socket
import warnings
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import environ
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured

from suzent_site import faults
from suzent_site.data_dir import open_data_dir, secret
from suzent_site.logs import logging_config

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent


def _number(name: str, default: float, *, least: float, most: float = 10**9) -> float:
    try:
        value = float(env.str(name, default="") or default)  # env.float would read 15m as 15 and 1e3 as 13
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} must be a number.") from error
    if not least <= value <= most:
        raise ImproperlyConfigured(f"{name} must lie between {least:g} and {most:g}; it is {value:g}.")
    return value


def _field_key() -> str:
    return Fernet.generate_key().decode("ascii")


def _refuse_unfit_keys(keys: list[str]) -> None:
    try:
        for key in keys:
            Fernet(key)
    except ValueError as error:
        raise ImproperlyConfigured("SUZENT_FIELD_KEYS must be Fernet keys: 32 bytes in URL-safe base64, with commas between.") from error


def _refuse_unfit_discovery() -> None:
    if any(not isinstance(_literal(address), ipaddress.IPv4Address) for address in SUZENT_DISCOVERY_INTERFACES):
        raise ImproperlyConfigured("SUZENT_DISCOVERY_INTERFACES must be IPv4 addresses of this machine, with commas between.")
    if not SUZENT_DISCOVERY:
        return
    if importlib.util.find_spec("zeroconf") is None:
        raise ImproperlyConfigured("SUZENT_DISCOVERY needs the extra discovery: uv sync --extra discovery.")
    host = _literal(SUZENT_HOST)
    if SUZENT_HOST == "localhost" or (host is not None and host.is_loopback):
        raise ImproperlyConfigured("SUZENT_DISCOVERY needs SUZENT_HOST to be 0.0.0.0 or an address that other machines reach.")


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# --- Knobs -----------------------------------------------------------------------------------------------------
DEBUG = env.bool("DEBUG", default=False)
SUZENT_DATA_DIR = open_data_dir(Path(env.str("SUZENT_DATA_DIR", default=str(BASE_DIR / "data"))).expanduser())
SECRET_KEY = env.str("SECRET_KEY", default="") or secret(SUZENT_DATA_DIR, "secret_key")
SUZENT_FIELD_KEYS = [  # seal the secrets in the database, with commas: the first seals, each opens; see suzent_site/sealed.py
    key.strip()
    for key in (env.str("SUZENT_FIELD_KEYS", default="") or secret(SUZENT_DATA_DIR, "field_keys", make=_field_key)).split(",")
]
_refuse_unfit_keys(SUZENT_FIELD_KEYS)
SUZENT_HOST = env.str("SUZENT_HOST", default="127.0.0.1")
SUZENT_PORT = int(_number("SUZENT_PORT", 25314, least=1, most=65535))
SUZENT_PUBLIC_URL = env.str("SUZENT_PUBLIC_URL", default="")  # as others reach us, e.g. https://suzent.example
SUZENT_DEVICE_NAME = env.str("SUZENT_DEVICE_NAME", default="")  # what paired devices call us; default the machine's name
if SUZENT_PUBLIC_URL and not re.match(r"https?://[^/]", SUZENT_PUBLIC_URL):
    raise ImproperlyConfigured("SUZENT_PUBLIC_URL must begin with http:// or https:// and a host.")
SUZENT_DISCOVERY = env.bool("SUZENT_DISCOVERY", default=False)  # announce this installation on the local network, by mDNS
SUZENT_DISCOVERY_INTERFACES = env.list("SUZENT_DISCOVERY_INTERFACES", default=[])  # our IPv4 addresses there; default all
_refuse_unfit_discovery()
SUZENT_TRUSTED_PROXIES = env.list("SUZENT_TRUSTED_PROXIES", default=[])  # addresses whose X-Forwarded-* we believe
SUZENT_LEASE_SECONDS = _number("SUZENT_LEASE_SECONDS", 30, least=1)
SUZENT_TURN_CONCURRENCY = int(_number("SUZENT_TURN_CONCURRENCY", 32, least=1, most=1000))  # turns in one shift
SUZENT_TURN_TIMEOUT = _number("SUZENT_TURN_TIMEOUT", 900, least=0.1)  # seconds
SUZENT_SHUTDOWN_GRACE = _number("SUZENT_SHUTDOWN_GRACE", 30, least=0)  # seconds for running turns after SIGTERM
SUZENT_MAX_HOPS = int(_number("SUZENT_MAX_HOPS", 16, least=1))
SUZENT_LANE_LIMIT = int(_number("SUZENT_LANE_LIMIT", 1000, least=1))  # unsettled messages for one target
SUZENT_SENDER_RATE = _number("SUZENT_SENDER_RATE", 600, least=0.01)  # messages a second from one sender; 10/3 s of it at once
SUZENT_SOCIAL_QUEUE = int(_number("SUZENT_SOCIAL_QUEUE", 200, least=1, most=100_000))  # events that wait in one process
SUZENT_SOCIAL_CONCURRENCY = int(_number("SUZENT_SOCIAL_CONCURRENCY", 8, least=1, most=100))  # social turns in one process
SUZENT_WORKERS = int(_number("SUZENT_WORKERS", 3, least=2, most=64))  # django-q2 workers; one is always left free
SUZENT_PEER_BACKOFF_CAP = _number("SUZENT_PEER_BACKOFF_CAP", 4 * 3600, least=1, most=30 * 86_400)  # seconds between two tries at most
SUZENT_PEER_HORIZON = _number("SUZENT_PEER_HORIZON", 8 * 86_400, least=1, most=365 * 86_400)  # seconds that a peer's mail is tried for
SUZENT_RETENTION_DAYS = _number("SUZENT_RETENTION_DAYS", 30, least=1, most=36_500)  # settled messages, attempts, turns
SUZENT_DEDUPE_DAYS = _number("SUZENT_DEDUPE_DAYS", max(90, SUZENT_RETENTION_DAYS), least=1, most=36_500)  # their ids
if SUZENT_DEDUPE_DAYS < SUZENT_RETENTION_DAYS:
    raise ImproperlyConfigured("SUZENT_DEDUPE_DAYS must not be less than SUZENT_RETENTION_DAYS: an id outlives its message.")
SUZENT_SQLITE_SYNCHRONOUS = env.str("SUZENT_SQLITE_SYNCHRONOUS", default="NORMAL").upper()  # FULL: survives a power cut
if SUZENT_SQLITE_SYNCHRONOUS not in {"NORMAL", "FULL"}:
    raise ImproperlyConfigured("SUZENT_SQLITE_SYNCHRONOUS must be NORMAL or FULL.")
SUZENT_FAULTS = env.str("SUZENT_FAULTS", default="")  # crash points, see suzent_site/faults.py
faults.parse(SUZENT_FAULTS)  # a misspelt one is told at the start, not in the middle of a delivery
SUZENT_ALLOW_CRASH = env.bool("SUZENT_ALLOW_CRASH", default=False)  # the scripted runtime may kill its process
SUZENT_EFFECTS_FILE = env.str("SUZENT_EFFECTS_FILE", default="")  # the scripted runtime logs each executed turn
SUZENT_LOG_LEVEL = env.str("SUZENT_LOG_LEVEL", default="INFO").upper()
if SUZENT_LOG_LEVEL not in {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}:
    raise ImproperlyConfigured("SUZENT_LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL.")

# --- What each lower layer reaches in a higher one, by dotted path ---------------------------------------------
RUNTIMES = {
    "echo": "sessions_app.runtimes.echo.Echo",
    "scripted": "sessions_app.runtimes.scripted.Scripted",
}
TOOLS = "inbox_app.tools.TurnTools"  # what turn.tools is
TRANSPORTS = {  # how a message leaves, by Message.transport
    "local": "inbox_app.local.Local",
    "suzent_peer": "peers_app.transport.PeerTransport",
}
MINUTELY = {"peers": "peers_app.probe.probe"}  # scheduled beside the engine's own: name and function
READINESS = ["inbox_app.readiness.worker_answered"]  # what /readyz asks besides the database: () -> what is wrong
# Called, each in a thread, before the web server's first request and when it ends.
AT_WEB_START = ["peers_app.discovery.announce"] if SUZENT_DISCOVERY else []
AT_WEB_END = [
    *(["peers_app.discovery.fall_silent"] if SUZENT_DISCOVERY else []),
    "sessions_app.social.web.close",
    "sessions_app.direct.close_web",
]
CHILDREN_ON_DEMAND = {"social": "sessions_app.social.channels.any_active"}  # commands that `up` starts when this says so
ERRANDS = ["peers_app.tasks.see_to_answers"]  # what the cluster's supervisor has queued beside, asked twice a second: (*, now)
BENCHES = {"peers": "peers_app.bench.PeersBench"}  # what `bench --only` measures besides the engine's own: (*, runs, say)
FIGURES = ["peers_app.console.asking"]  # what the console's first page counts besides the engine's own: (*, now)
# Columns that keys rotate seals anew.
SEALED = ["sessions_app.SocialChannel.secret_sealed", "peers_app.Peer.sealed_token", "peers_app.Peer.offered_token"]
WAKE = "inbox_app.wake.wake"  # called on commit when a lane has come due
STOP_TASKS = "inbox_app.subagents.stop_tasks"  # a step of stopping or archiving a session: its tasks that wait never start

# --- Sub-agents ------------------------------------------------------------------------------------------------
_READING = ["agent_list", "agent_read", "list_files", "read_file", "search_files"]
_WEB = ["web_fetch", "web_search"]
# What ``subagent_type`` may name: instructions and tools to begin with. Ours among the tools are enforced; a runtime
# that has tools of its own is told the others.
SUBAGENT_PROFILES = {
    "explore": {
        "instructions": "Find out what is asked and report it with its sources. Change nothing.",
        "tools": _READING,
    },
    "plan": {
        "instructions": "Work out how to do what is asked: the steps, their order, what could go wrong. Change nothing.",
        "tools": _READING,
    },
    "write": {
        "instructions": "Make the change that is asked for, and nothing beyond it. Report what you changed and why.",
        "tools": [*_READING, "agent_send", "edit_file", "write_file", "run_command"],
    },
    "verify": {
        "instructions": "Check the claim or change you are given: try to prove it wrong. Report what you ran and what you saw.",
        "tools": [*_READING, "run_command"],
    },
    "web": {
        "instructions": "Answer from the web, with the address of each source. Say what you could not find.",
        "tools": ["agent_list", "agent_read", *_WEB],
    },
}
SUBAGENT_ISOLATIONS = ("none",)  # what the runtimes here can keep; one that works in a directory of its own adds its way

# --- Django ----------------------------------------------------------------------------------------------------
INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_q",
    "suzent_site",
    "sessions_app",
    "inbox_app",
    "peers_app",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "suzent_site.urls"
ASGI_APPLICATION = "suzent_site.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
FORMAT_MODULE_PATH = "suzent_site.formats"
APPEND_SLASH = False
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024  # bytes; a larger body is 413, see asgi.py and errors.BodyTooLarge

# --- Who may call, and from where ------------------------------------------------------------------------------


def _own_names() -> list[str]:
    names = {SUZENT_HOST, "localhost", "127.0.0.1", "[::1]", socket.gethostname()}
    if SUZENT_PUBLIC_URL:
        names.add(urlsplit(SUZENT_PUBLIC_URL).hostname or "")
    if SUZENT_HOST in {"0.0.0.0", "::"}:  # we only ask whether the operator opened it
        names |= {_in_a_url(entry[4][0]) for entry in _addresses_of(socket.gethostname())}  # often of loopback only
        names |= {_address_towards_others(), *SUZENT_DISCOVERY_INTERFACES}
    return sorted(name for name in names if name)


def _addresses_of(name: str) -> list[tuple]:  # type: ignore[type-arg]  # the socket module's own shape
    try:
        return socket.getaddrinfo(name, None)
    except OSError:
        return []


def _address_towards_others() -> str:
    """Ours on the network that leads out, by which others are told to call us; empty without one. No packet leaves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of nobody, kept for examples
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _in_a_url(address: str) -> str:
    return f"[{address}]" if ipaddress.ip_address(address.split("%")[0]).version == 6 else address


ALLOWED_HOSTS = env.list("SUZENT_ALLOWED_HOSTS", default=_own_names())
_secure = SUZENT_PUBLIC_URL.startswith("https://")
CSRF_TRUSTED_ORIGINS = [SUZENT_PUBLIC_URL.rstrip("/")] if SUZENT_PUBLIC_URL else []
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _secure
SESSION_COOKIE_HTTPONLY = True
SECURE_HSTS_SECONDS = 31_536_000 if _secure else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = _secure
SECURE_SSL_REDIRECT = False  # TLS ends at the operator's proxy, which redirects; uvicorn speaks plain HTTP
# No SECURE_PROXY_SSL_HEADER: it would believe anybody's X-Forwarded-Proto. The web command has uvicorn read these headers,
# from the trusted proxies alone, and hand on the scheme.
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
SILENCED_SYSTEM_CHECKS = ["security.W008"] + ([] if _secure else ["security.W004", "security.W012", "security.W016"])

# --- Database, broker, cache -----------------------------------------------------------------------------------
DATABASE_URL = env.str("DATABASE_URL", default="") or f"sqlite:///{SUZENT_DATA_DIR / 'suzent.sqlite3'}"
DATABASES = {"default": env.db_url_config(DATABASE_URL)}
_database = DATABASES["default"]
_engine = _database.get("ENGINE", "")  # there is none where the URL is no URL
_database["CONN_MAX_AGE"] = None
_database["CONN_HEALTH_CHECKS"] = True
if _engine.endswith("sqlite3"):
    _database["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",  # a deferred read-then-write ignores the time-out and fails at once
        "timeout": 20,  # seconds
        "init_command": f"PRAGMA journal_mode=WAL; PRAGMA synchronous={SUZENT_SQLITE_SYNCHRONOUS}; PRAGMA foreign_keys=ON;",
    }
    _database["TEST"] = {"NAME": str(SUZENT_DATA_DIR / f"test-{os.getpid()}.sqlite3")}
elif _engine.endswith("postgresql"):
    _database["OPTIONS"] = {  # a server that went away without a word is noticed within 20 s, not after hours
        "connect_timeout": 5,
        "tcp_user_timeout": 20_000,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 2,
        **_database.get("OPTIONS", {}),
    }
else:
    raise ImproperlyConfigured("DATABASE_URL must be sqlite:///… or postgres://….")

REDIS_URL: str = env.str("REDIS_URL", default="")


def _redis_with(**timeouts: float) -> str:
    return REDIS_URL + ("&" if "?" in REDIS_URL else "?") + urlencode(timeouts)


# Installations that share a Redis number must not take each other's tasks, which they could not even read.
_installation = f"suzent-{hashlib.sha256(SECRET_KEY.encode()).hexdigest()[:8]}"
WAKE_REDIS_URL = _redis_with(socket_timeout=0.5, socket_connect_timeout=0.5) if REDIS_URL else ""  # for who cannot wait
CACHES = {
    "default": (
        {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": WAKE_REDIS_URL, "KEY_PREFIX": _installation}
        if REDIS_URL
        else {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "suzent_cache"}
    ),
    "nowhere": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
}

# django-q2 only wakes and schedules: a task is never worth repeating, its contents are ids, its result is not kept.
Q_CLUSTER = {
    "name": _installation,
    "label": "Task queue",
    "workers": SUZENT_WORKERS,
    "timeout": None,
    "retry": 7 * 24 * 3600,  # seconds: q2 would repeat a task that still runs; a shift is found by its heartbeat
    "max_attempts": 0,
    "queue_limit": 1,
    "bulk": 1,
    "save_limit": -1,
    "ack_failures": True,
    "recycle": 1_000_000,
    "guard_cycle": 0.5,  # seconds
    "poll": 0.1,  # seconds between looks at the ORM broker
    "catch_up": False,
    "log_level": "WARNING",
    "cache": "nowhere",  # q2 would write figures about itself, which nobody reads, to the database twice a second
    # q2's pusher blocks for 1 s on Redis, so the socket must wait longer than that; wake.py has its own, shorter one
    **({"redis": _redis_with(socket_timeout=5, socket_connect_timeout=0.5)} if REDIS_URL else {"orm": "default"}),
}
warnings.filterwarnings("ignore", message="Retry and timeout are misconfigured")  # timeout None is on purpose

# --- REST ------------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["sessions_app.authentication.BearerToken", "sessions_app.authentication.OperatorSession"],
    "DEFAULT_PERMISSION_CLASSES": ["sessions_app.permissions.IsCaller"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["sessions_app.parsers.StrictJSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "sessions_app.exceptions.as_response",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Suzent",
    "DESCRIPTION": "The message system that AI agents are trusted with.",
    "VERSION": "0.1.0",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SERVE_INCLUDE_SCHEMA": False,
    "OAS_VERSION": "3.1.0",  # its schemas are plain JSON Schema, so answers can be checked against them
    "COMPONENT_SPLIT_REQUEST": True,  # what is sent may not be empty where what is answered may
    "PREPROCESSING_HOOKS": ["sessions_app.schema.one_of_each"],
    "ENUM_NAME_OVERRIDES": {
        "CronAnnouncement": "sessions_app.cron.models.CronRun.Announcement",
        "CronRunStatus": "sessions_app.cron.models.CronRun.Status",
        "MessageKind": "inbox_app.models.Message.Kind",
        "MessageStatus": "inbox_app.models.Message.Status",
        "SubagentTaskStatus": "inbox_app.models.SubagentTask.Status",
        "SessionKind": "sessions_app.models.Session.Kind",
        "SessionStatus": "sessions_app.pages.STATUSES",
    },
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
}

# --- Static files, admin theme, logs ---------------------------------------------------------------------------
STATIC_URL = "/static/"
STATIC_ROOT = open_data_dir(SUZENT_DATA_DIR / "static")  # WhiteNoise warns of one that is not there
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True  # nothing to collect before the first start
LOGIN_URL = "admin:login"
UNFOLD = {
    "SITE_TITLE": "Suzent",
    "SITE_HEADER": "Suzent",
    "SITE_SYMBOL": "forum",
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": "suzent_site.console.icon"}],
    "STYLES": ["suzent_site.console.stylesheet"],
    "DASHBOARD_CALLBACK": "inbox_app.console.dashboard",
    "SIDEBAR": {"navigation": "inbox_app.console.navigation"},
}
LOGGING_CONFIG = None
logging_config(SUZENT_LOG_LEVEL)
