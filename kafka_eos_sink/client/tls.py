"""TLS over TCP: a client's context, a connection's transport, and error texts."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.key_stores import validity
from kafka_eos_sink.client.security import TlsConfig
from kafka_eos_sink.client.transport import Address, Transport, closed_by_broker
from kafka_eos_sink.errors import ConfigurationError

# A TLS record holds at most 16 KiB, and OpenSSL reads one record at a time from the kernel. A read of this size leaves
# no bytes in OpenSSL, where the poller would not see them.
_RECEIVE_BYTES = 16 * 1024
_SEND_BYTES = 64 * 1024
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

# The name by which other modules know the context: only this module and the token endpoint import `ssl`.
TlsContext = ssl.SSLContext


class TlsError(OSError):
    """TLS failed: no common version or cipher, or no trust. A retry also fails."""


def tls_context(config: TlsConfig) -> TlsContext:
    """Return the context that all TLS connections of a client share.

    Raises:
        ConfigurationError: TLS_SETTINGS, if OpenSSL rejects certificates, key or cipher suites.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.minimum_version = _VERSIONS[config.minimum_version]
    context.maximum_version = _VERSIONS[config.maximum_version]
    context.check_hostname = config.verify_host_name
    trust(context, config.trusted_certificates)
    if config.cipher_suites:
        # First one by one: in a list OpenSSL silently ignores unknown names if it knows at least one.
        for names in (*config.cipher_suites, ":".join(config.cipher_suites)):
            try:
                # Anonymous suites need no certificate, null suites do not encrypt. ALL:@SECLEVEL=0 would allow anonymous ones.
                context.set_ciphers(f"{names}:!aNULL:!eNULL")
            except ssl.SSLError:
                raise ConfigurationError(
                    "TLS_SETTINGS",
                    f"ssl.cipher.suites: OpenSSL has no {names}, or the suite does not authenticate or encrypt; remove it",
                ) from None
    if config.certificate_chain is not None and config.private_key is not None:
        _load_own_certificate(context, config)
    return context


def trust(context: ssl.SSLContext, certificates: str | None) -> None:
    """Trust the PEM ``certificates``; None: the operating system's."""
    if certificates is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    try:
        context.load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError("TLS_SETTINGS", f"the trusted certificates cannot be read: {_reason(error)}") from None
    # As in Java, every certificate of the trust store is an anchor: also an intermediate, or a single broker's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _load_own_certificate(context: ssl.SSLContext, config: TlsConfig) -> None:
    assert config.private_key is not None
    password = "" if config.private_key_password is None else config.private_key_password.reveal()
    pem = f"{config.private_key.reveal()}\n{config.certificate_chain}\n"
    try:
        with _as_file(pem) as path:
            # Always pass a password. Without one OpenSSL prompts on the terminal for the password of an encrypted key.
            context.load_cert_chain(path, password=password)
    except (ssl.SSLError, ValueError) as error:
        reason = _reason(error)
        if "MISMATCH" in reason:
            reason = "the private key is not the one of the first certificate"
        raise ConfigurationError(
            "TLS_SETTINGS",
            f"the client's certificate and private key cannot be used: {reason}; check ssl.keystore.*; "
            "ssl.key.password must be the key's own",
        ) from None


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield the path of a private, temporary file with ``text``: on Linux in memory."""
    # Python's ssl loads private keys only from files. A key should not touch a disk where that can be avoided.
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("kafka-eos-key")
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        yield file.name


def _reason(error: Exception) -> str:
    # Only OpenSSL's reason: the rest of the text is a line number in OpenSSL's source.
    return getattr(error, "reason", None) or str(error)


def certificate_name(host: str) -> str:
    """Return the host name for SNI and the certificate check, without a final dot.

    The dot makes a name absolute for the resolver. SNI (RFC 6066, 3) and certificates hold names without it.
    """
    return host.removesuffix(".")


class TlsTransport(Transport):
    """TLS over TCP, connected once the certificate proves that the broker is ``host``.

    Raises TlsError for a failure of TLS, OSError for a closed connection as without TLS.
    """

    def __init__(self, address: Address, config: ClientConfig, tls: TlsContext, host: str) -> None:
        super().__init__(address, config)
        self._tls = tls
        self._own = config.security.tls
        self._host = host
        self._secured: ssl.SSLSocket | None = None
        self._handshake_wants_write = True
        self._unsent = b""

    @property
    def wants_write(self) -> bool:
        if not self.connected:
            return self._handshake_wants_write
        return bool(self._unsent or self._output)

    def continue_connect(self, writable: bool) -> bool:
        if self._secured is None:
            if not writable:
                return False
            self._finish_tcp_connect()
            try:
                self._secured = self._socket = self._tls.wrap_socket(
                    self._socket,
                    server_hostname=certificate_name(self._host),
                    do_handshake_on_connect=False,
                    suppress_ragged_eofs=False,
                )
            except ValueError as error:
                raise TlsError(f"{self._host!r} is no host name for a certificate: {error}") from None
        try:
            self._secured.do_handshake()
        except ssl.SSLWantReadError:
            # An idle socket is always writable: the poller would spin until the broker responds.
            self._handshake_wants_write = False
        except ssl.SSLWantWriteError:
            self._handshake_wants_write = True
        except ssl.SSLError as error:
            raise tls_error(error, " during the TLS handshake", self._own) from None
        else:
            self.connected = True
        return self.connected

    def flush(self) -> None:
        if not self.connected or self._secured is None:
            return
        while self._unsent or self._output:
            if not self._unsent:
                self._unsent = self._next_bytes()
            try:
                # After SSL_WANT_WRITE OpenSSL requires the same bytes again, so they stay in `_unsent`.
                self._unsent = self._unsent[self._secured.send(self._unsent) :]
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except ssl.SSLError as error:
                raise tls_error(error, own=self._own) from None

    def _next_bytes(self) -> bytes:
        """Join the first queued buffers: one TLS record per small buffer is slow."""
        parts: list[memoryview] = []
        size = 0
        while self._output and size < _SEND_BYTES:
            view = self._output.popleft()
            room = _SEND_BYTES - size
            if len(view) > room:
                self._output.appendleft(view[room:])
                view = view[:room]
            parts.append(view)
            size += len(view)
        return b"".join(parts)

    def read(self) -> bytes | None:
        assert self._secured is not None
        try:
            data = self._secured.recv(_RECEIVE_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLError as error:
            raise tls_error(error, own=self._own) from None
        if not data:
            raise closed_by_broker()
        return data

    def close(self) -> None:
        if self.connected and self._secured is not None:
            # close_notify shows the broker that the stream was not truncated (RFC 8446, 6.1). The client does not wait
            # for the broker's close_notify, because `close` must not block.
            with contextlib.suppress(OSError, ValueError):
                self._secured.unwrap()
        self._unsent = b""
        super().close()


_NOT_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
_ABOUT_OWN_CERTIFICATE = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAME = (62, 64)
_UNKNOWN_ISSUER = (2, 18, 19, 20, 21)
"""OpenSSL's X509_V_ERR codes. An issuer is also unknown if the broker sends its certificate without the intermediate ones."""


def tls_error(error: ssl.SSLError, when: str = "", own: TlsConfig | None = None) -> OSError:
    """Translate an OpenSSL error: which side rejected what, and what to change.

    Args:
        own: Holds this client's certificate, if it has one to show.
    """
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return closed_by_broker(when)
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(_why_untrusted(error))
    reason = error.reason or str(error)
    if reason in _NOT_TLS:
        return TlsError(f"the listener does not speak TLS ({reason}); check security.protocol and the port")
    if "ALERT" in reason:
        return TlsError(f"it rejected TLS ({reason})" + _advice_on_alert(reason, own))
    return TlsError(f"TLS failed ({reason})")


def _why_untrusted(error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message.rstrip(".")
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if error.verify_code == _EXPIRED:
        return (
            "its certificate, or one of its issuers' certificates, has expired; renew the expired one (an issuer's also in "
            f"ssl.truststore.* or ssl.ca.location), and check this machine's clock, which shows {now}"
        )
    if error.verify_code == _NOT_YET_VALID:
        return f"its certificate is not valid yet; check this machine's clock, which shows {now}, and the certificate's first day"
    if error.verify_code in _OTHER_NAME:
        return f"{reason}; connect to a host that the certificate names, or issue a certificate with this name"
    if error.verify_code in _UNKNOWN_ISSUER:
        return f"its certificate is not trusted: {reason}; add its issuer to ssl.truststore.* (or ssl.ca.location)"
    return f"its certificate is not accepted: {reason}; issue another one"


def _advice_on_alert(reason: str, own: TlsConfig | None) -> str:
    if "PROTOCOL_VERSION" in reason:
        return "; it speaks other versions of TLS: check ssl.enabled.protocols"
    if not any(word in reason for word in _ABOUT_OWN_CERTIFICATE):
        return ""
    # A broker sends HANDSHAKE_FAILURE for many reasons.
    suites = "; or check ssl.enabled.protocols and ssl.cipher.suites" if "HANDSHAKE_FAILURE" in reason else ""
    if own is None or own.certificate_chain is None:
        return f"; it requires a client certificate, and none is configured: set ssl.keystore.*{suites}"
    now, (first, last) = datetime.now(UTC), validity(own.certificate_chain)
    # Java's brokers send the same alert for an expired certificate as for one of an unknown issuer.
    if now > last:
        return f"; the client's certificate in ssl.keystore.* expired on {last:%Y-%m-%d}: renew it"
    if now < first:
        return f"; the client's certificate in ssl.keystore.* is not valid before {first:%Y-%m-%d}: check it and the clocks"
    return (
        f"; it does not trust the client's certificate in ssl.keystore.* (valid until {last:%Y-%m-%d}): use one of an issuer that the "
        f"broker trusts, or add its issuer to the broker's truststore{suites}"
    )
