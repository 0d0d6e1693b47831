"""TLS on the server's own port, by real certificates: an edge over wss, uploads, and mutual TLS."""

import socket
import ssl
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import trustme

from crossdraft.edge.tls import TlsFiles
from crossdraft.edge.upload import uploaded
from crossdraft.errors import CrossdraftError
from crossdraft.serve.settings import read_settings
from crossdraft.serve.tls import server_context


class Certificates:
    """An authority, the server's certificate and an edge's, as files."""

    def __init__(self, folder: Path) -> None:
        authority, self.folder = trustme.CA(), folder
        self.ca, self.server, self.edge = folder / "ca.pem", folder / "server.pem", folder / "edge.pem"
        authority.cert_pem.write_to_path(self.ca)
        for path, name in ((self.server, "127.0.0.1"), (self.edge, "edge.example")):
            authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(path)
        self.expired, past = folder / "expired.pem", datetime.now(UTC) - timedelta(days=1)
        expired = authority.issue_cert("127.0.0.1", not_before=past - timedelta(days=9), not_after=past)
        expired.private_key_and_cert_chain_pem.write_to_path(self.expired)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def wss(running) -> str:
    return "wss://{}:{}".format(*running.address)


def test_an_edge_is_answered_over_tls_and_may_upload(start, edge, alone, certificates, media):
    running = start(tls_cert=certificates.server)
    files = TlsFiles(certificates.ca)
    with edge.client(wss(running), tls=files) as client:
        answer = edge.ask(client)
    assert answer.tokens == alone
    assert answer.frames["draft"] > 0
    with uploaded(wss(running), None, media / "clip.mp4", files) as kept:
        assert kept.startswith("file-")
    assert running.service.uploads.of("") == []


def test_connections_end_without_a_word_in_the_log(start, edge, certificates, caplog):
    """The client ends some, the server others; a WebSocket's end was asked for twice."""
    running = start(tls_cert=certificates.server)
    address, trusted = running.address, ssl.create_default_context(cafile=str(certificates.ca))
    assert httpx.get("https://{}:{}/health".format(*address), verify=trusted).status_code == 200
    for head in ("GET /health HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n", "nonsense\r\n\r\n"):
        with trusted.wrap_socket(socket.create_connection(address, 20), server_hostname=address[0]) as connection:
            connection.sendall(head.encode())
            while connection.recv(65536):
                pass
    with edge.client(wss(running), tls=TlsFiles(certificates.ca)) as client:
        client.open()
    time.sleep(0.3)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_server_that_is_not_believed_is_not_asked(start, edge, certificates):
    running = start(tls_cert=certificates.server)
    with edge.client(wss(running)) as client, pytest.raises(CrossdraftError, match=r"not believed.*--ca"):
        client.open()
    with pytest.raises(httpx.ConnectError):
        httpx.get("https://{}:{}/health".format(*running.address))


def test_with_mutual_tls_who_has_no_certificate_gets_nothing(start, edge, alone, certificates):
    running = start(tls_cert=certificates.server, tls_client_ca=certificates.ca)
    files = TlsFiles(certificates.ca)
    address = "https://{}:{}/health".format(*running.address)
    with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
        httpx.get(address, verify=ssl.create_default_context(cafile=str(certificates.ca)))
    with edge.client(wss(running), tls=files) as client, pytest.raises(ConnectionError, match="--cert"):
        client.open()
    with edge.client(wss(running), tls=replace(files, cert=certificates.edge)) as client:
        assert edge.ask(client).tokens == alone


def test_what_is_wrong_with_a_certificate_has_its_own_remedy(start, edge, certificates):
    plain = "ws://{}:{}".format(*start(tls_cert=certificates.server).address)
    with edge.client(plain) as client, pytest.raises(ConnectionError, match="wss"):
        client.open()
    for cert, words in ((certificates.edge, "by an address"), (certificates.expired, "expired.*a new one")):
        files = TlsFiles(certificates.ca)
        with edge.client(wss(start(tls_cert=cert)), tls=files) as client, pytest.raises(CrossdraftError, match=words):
            client.open()


def test_whoever_must_have_a_certificate_needs_no_key(certificates):
    open_to_all = {"host": "0.0.0.0"}
    with pytest.raises(CrossdraftError, match="--tls-client-ca"):
        read_settings(None, {**open_to_all, "tls_cert": certificates.server})
    both = {"tls_cert": certificates.server, "tls_client_ca": certificates.ca}
    context = server_context(read_settings(None, {**open_to_all, **both}))
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.num_tickets == 0  # a client's two threads race on them


@pytest.mark.parametrize("bad", ["tls_cert", "tls_client_ca"])
def test_files_that_are_no_certificates_are_refused_before_anything_is_loaded(certificates, tmp_path, bad):
    (tmp_path / "bad.pem").write_text("no certificate")
    given = {"tls_cert": certificates.server, bad: tmp_path / "bad.pem"}
    with pytest.raises(CrossdraftError, match="PEM"):
        server_context(read_settings(None, given))


def test_a_key_alone_is_refused(certificates):
    with pytest.raises(CrossdraftError, match="without a certificate"):
        read_settings(None, {"tls_key": certificates.server})


def test_certificates_are_for_wss(certificates):
    with pytest.raises(CrossdraftError, match="wss"):
        TlsFiles(certificates.ca).context("ws://127.0.0.1:1")
    with pytest.raises(CrossdraftError, match="--cert"):
        TlsFiles(certificates.ca, key=certificates.edge).context("wss://127.0.0.1:1")
    with pytest.raises(CrossdraftError, match="PEM"):
        TlsFiles(certificates.ca, certificates.ca).context("wss://127.0.0.1:1")


def test_a_handshake_that_does_not_come_is_not_waited_for(start, certificates):
    """asyncio would wait a minute, and each that waits is a connection."""
    running = start(tls_cert=certificates.server, header_seconds=0.3)
    began = time.monotonic()
    with socket.create_connection(running.address, timeout=20) as silent:
        assert silent.recv(1) == b""
    assert 0.2 < time.monotonic() - began < 10
