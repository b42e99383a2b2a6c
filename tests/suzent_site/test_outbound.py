"""The one door to other machines, over real sockets."""

import io
import socket
import ssl
import threading
import time
import traceback
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from suzent_site import outbound
from suzent_site.addresses import AddressRefused, Reach, check_url
from suzent_site.outbound import Timeouts, TooLarge, Unreachable
from tests.wire import answer, answers, request_from, wire

QUICK = Timeouts(connect=2, read=0.3, total=1)


def call(url, method="GET", **options):
    return outbound.call(method, url, reach=Reach.OPERATOR, **options)


def test_an_answer_of_any_status_comes_back_whole():
    with wire(answers(418, b'{"error": "teapot"}', "Retry-After: 7")) as server:
        got = call(f"{server.url}/a/b?c=d", "POST", json={"x": "ü"}, headers={"Authorization": "Bearer abc"})

    assert (got.status, got.json(), got.headers["retry-after"]) == (418, {"error": "teapot"}, "7")
    head, _, body = server.heard[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /a/b?c=d HTTP/1.1\r\n") and b"\r\nAuthorization: Bearer abc\r\n" in head
    assert body == b'{"x": "\\u00fc"}'


def test_a_redirect_is_an_answer_and_is_not_followed():
    with wire(answers(200)) as elsewhere, wire(answers(302, b"", f"Location: {elsewhere.url}/")) as server:
        got = call(server.url, headers={"Authorization": "Bearer abc"})

    assert got.status == 302
    assert elsewhere.heard == []


def test_neither_proxy_nor_netrc_of_the_environment_is_used(monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    (tmp_path / ".netrc").chmod(0o600)
    with wire(answers(200)) as proxy, wire(answers(200)) as server:
        for name, value in {"HTTP_PROXY": proxy.url, "http_proxy": proxy.url, "HOME": str(tmp_path), "NETRC": str(tmp_path / ".netrc")}.items():
            monkeypatch.setenv(name, value)
        call(server.url)

    assert proxy.heard == []
    assert b"uthorization" not in server.heard[0]


def test_what_was_certainly_not_sent_is_told_from_what_may_have_arrived():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening
        with pytest.raises(Unreachable) as refused:
            call(f"http://127.0.0.1:{unused.getsockname()[1]}/secret-in-the-path")
    with wire(lambda connection, request: None) as server, pytest.raises(Unreachable) as cut:  # closes without an answer
        call(f"{server.url}/secret-in-the-path")
    with wire(answers(202, b"{", length=9)) as server, pytest.raises(Unreachable) as torn:
        call(f"{server.url}/secret-in-the-path")

    assert [(error.value.maybe_sent, error.value.answered) for error in (refused, cut, torn)] == [
        (False, False), (True, False), (True, True),
    ]  # fmt: skip
    told = ["".join(traceback.format_exception_only(error.value)) for error in (refused, cut, torn)]
    assert not any("secret" in text for text in told)
    shown_with_them = [error.value.__context__ for error in (refused, cut, torn) if not error.value.__suppress_context__]
    assert shown_with_them == [None]  # the libraries' own words would have the URL


def test_an_answer_above_the_limit_is_not_read_on():
    def endless(connection, request):
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")

    with wire(endless) as server, pytest.raises(TooLarge) as too_large:
        call(server.url, limit=100_000)

    assert too_large.value.maybe_sent and too_large.value.answered


@pytest.mark.parametrize(
    ("said", "answered"), [(b"", False), (b"HTTP/1.1 200 O", False), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", True)],
    ids=["nothing", "half-a-head", "half-a-body"],
)  # fmt: skip
def test_silence_ends_with_the_read_time_out(said, answered):
    def mute(connection, request):
        connection.sendall(said)
        server.released.wait(10)

    with wire(mute) as server, pytest.raises(Unreachable, match="within 0.3 seconds") as silent:
        call(server.url, timeouts=QUICK)

    assert (silent.value.maybe_sent, silent.value.answered) == (True, answered)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "], ids=["body", "head"])
def test_a_trickle_of_bytes_ends_with_the_total_time_out(head):
    def trickle(connection, request):
        connection.sendall(head)
        while not server.released.wait(0.1):
            connection.sendall(b"x")

    started = time.monotonic()
    with wire(trickle) as server, pytest.raises(Unreachable, match="longer than 1 seconds"):
        call(server.url, timeouts=QUICK)

    assert time.monotonic() - started < 8


def test_a_download_goes_to_the_file_within_its_limit():
    with wire(answers(200, b"x" * 70_000, "Content-Type: image/png")) as server:
        whole, part = io.BytesIO(), io.BytesIO()
        got = outbound.download(server.url, reach=Reach.OPERATOR, to=whole, limit=70_000)
        with pytest.raises(TooLarge):
            outbound.download(server.url, reach=Reach.OPERATOR, to=part, limit=69_999)

    assert (got.status, got.headers["content-type"], len(whole.getvalue())) == (200, "image/png", 70_000)
    assert len(part.getvalue()) <= 69_999


def test_a_download_of_another_status_writes_nothing():
    with wire(answers(404, b"not here")) as server:
        file = io.BytesIO()
        got = outbound.download(server.url, reach=Reach.OPERATOR, to=file, limit=100)

    assert (got.status, file.getvalue()) == (404, b"")


def test_tls_must_prove_the_name_before_anything_is_sent():
    with wire(lambda connection, request: connection.sendall(b"no TLS here")) as server, pytest.raises(Unreachable) as untrusted:
        call(f"https://127.0.0.1:{server.port}/", headers={"Authorization": "Bearer abc"}, timeouts=Timeouts(2, 2, 4))

    assert not untrusted.value.maybe_sent
    assert not any(b"abc" in heard for heard in server.heard)


def test_tls_with_a_proven_name_carries_the_call(monkeypatch, tmp_path):
    certificate = self_signed("localhost", tmp_path)
    monkeypatch.setattr("requests.adapters.DEFAULT_CA_BUNDLE_PATH", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def secure(connection, request):
        with context.wrap_socket(connection, server_side=True) as inside:
            heard.append(request_from(inside))
            inside.sendall(answer(200, b"[1]"))

    heard = []
    with wire(secure, tls=True) as server:
        assert call(f"https://localhost:{server.port}/").json() == [1]
        with pytest.raises(Unreachable, match="who it is"):
            call(f"https://127.0.0.1:{server.port}/")  # another name than the certificate's

    assert heard[0].startswith(b"GET / HTTP/1.1")


def self_signed(name, folder):
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    start = datetime.now(UTC) - timedelta(hours=1)
    built = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(start + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )  # fmt: skip
    file = folder / "both.pem"
    unlocked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(unlocked + built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return file


# --- Addresses (PER-17) ----------------------------------------------------------------------------------------
NEVER = [
    "http://169.254.169.254/", "http://[::ffff:169.254.169.254]/", "http://[::ffff:127.0.0.1]/", "http://[fe80::1]/", "http://[::127.0.0.1]/",
    "http://0.0.0.0/", "http://[::]/", "http://224.0.0.1/", "http://[ff02::1]/", "http://255.255.255.255/", "http://[fd00:ec2::254]/",
    "http://100.100.100.200/", "http://[64:ff9b::a9fe:a9fe]/", "http://[2002:7f00:1::]/",
    "http://0x7f000001/", "http://2130706433/", "http://127.1/", "http://0177.0.0.1/",
    "file:///etc/passwd", "gopher://example.com/", "ftp://example.com/", "example.com:80", "//example.com/", "http://", "http:///x",
    "http://user@example.com/", "http://user:word@example.com/", "http://@example.com/", "http://example.com/#part", "http://example.com/#",
    "http://exa mple.com/", "http://example.com/\r\nX: y", "http://example.com/\n", "http://example.com\\@127.0.0.1/", "http://example.com/\x00",
    "http://example.com:0/", "http://example.com:99999/", "http://[fe80::1%25eth0]/", "http://[::1", "http://exam%70le.com/", f"http://{'a' * 64}é.com/",
]  # fmt: skip
INNER = ["http://127.0.0.1/", "http://[::1]/", "http://10.1.2.3/", "http://192.168.0.1/", "http://172.16.0.1/", "http://100.64.0.1/", "http://[fd00::1]/", "http://[fec0::1]/"]


@pytest.mark.parametrize("url", NEVER)
def test_per_17_what_nobody_may_have_us_call(url):
    with pytest.raises(AddressRefused):
        check_url(url, reach=Reach.OPERATOR)


@pytest.mark.parametrize("url", INNER)
def test_per_17_an_inner_address_takes_an_operator(url):
    check_url(url, reach=Reach.OPERATOR)
    with pytest.raises(AddressRefused):
        check_url(url, reach=Reach.PUBLIC)


@pytest.mark.parametrize("url", ["http://example.com", "https://93.184.215.14:8443/x?y", "http://[2606:4700::1111]/", "HTTP://EXAMPLE.com/"])
def test_a_public_address_may_be_called(url):
    check_url(url, reach=Reach.PUBLIC)


@pytest.mark.parametrize("name", ["localhost", "localhost.", "LOCALHOST"])
def test_per_17_a_name_is_judged_by_what_it_resolves_to(name):
    with wire(answers(200)) as server:
        with pytest.raises(AddressRefused, match="not a public address"):
            outbound.call("GET", f"http://{name}:{server.port}/", reach=Reach.PUBLIC)
        assert outbound.call("GET", f"http://{name}:{server.port}/", reach=Reach.OPERATOR).status == 200

    assert len(server.heard) == 1


def test_per_17_a_name_that_changes_its_address_is_judged_at_the_moment_of_connecting(monkeypatch):
    def resolve(*args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))]

    with wire(answers(200)) as server:
        url = f"http://rebound.example:{server.port}/"
        check_url(url, reach=Reach.PUBLIC)  # a name looks public
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        with pytest.raises(AddressRefused):
            outbound.call("GET", url, reach=Reach.PUBLIC)

    assert server.heard == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.9"])
def test_per_17_we_do_not_call_ourselves(settings, host):
    with wire(answers(200)) as server:
        settings.SUZENT_PORT = server.port
        with pytest.raises(AddressRefused, match="this installation"):
            call(f"http://{host}:{server.port}/")

    assert server.heard == []


def test_an_address_in_brackets_is_called():
    with wire(answers(200), host="::1") as server:
        assert call(f"http://[::1]:{server.port}/").status == 200
        assert f"Host: [::1]:{server.port}".encode() in server.heard[0]


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "tökén", "a\x00", "a\x7f", " a"])
def test_a_header_that_would_leave_its_line_is_not_sent(value):
    with wire(answers(200)) as server, pytest.raises(AddressRefused):
        call(server.url, headers={"Authorization": value})

    assert server.heard == []


def test_calls_of_many_threads_share_no_connection():
    with wire(answers(200, b"x" * 1000)) as server:
        got = []
        threads = [threading.Thread(target=lambda: got.append(call(server.url))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert [len(one.body) for one in got] == [1000] * 8
    assert len(server.heard) == 8


@pytest.mark.parametrize("body", [b"[" * 20_000, b"{", b"\xff", b"9" * 5_000])
def test_a_body_that_is_no_json_of_ours_is_one_error(body):
    with pytest.raises(ValueError):
        outbound.Answer(200, {}, body).json()
