"""One POST to an HTTPS server, for OAuth token endpoints."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from kafka_eos_sink.client.security import TlsConfig
from kafka_eos_sink.client.tls import tls_error, trust

_MAX_BODY_BYTES = 256 * 1024


def https_post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    tls: TlsConfig,
    *,
    connect_timeout_ms: int,
    read_timeout_ms: int,
) -> tuple[int, bytes]:
    """Send a POST and return status and body of the response; blocks.

    The client follows no redirect, uses no proxy and shows no certificate. It trusts the authorities of the system
    and those of ``tls``.

    Raises:
        TlsError: the TLS handshake failed.
        OSError: no connection, no response in time, or a response that is not HTTP.
    """
    context = ssl.create_default_context()
    if tls.trusted_certificates is not None:
        trust(context, tls.trusted_certificates)
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, timeout=connect_timeout_ms / 1000, context=context
    )
    # The socket timeout restarts with every byte, so a slow sender needs a limit on the whole exchange.
    give_up_at = time.monotonic() + (connect_timeout_ms + read_timeout_ms) / 1000
    try:
        connection.connect()
        connection.sock.settimeout(read_timeout_ms / 1000)
        connection.request("POST", target, body, dict(headers))
        response = connection.getresponse()
        received = bytearray()
        while chunk := response.read1(16_384):
            received += chunk
            if len(received) > _MAX_BODY_BYTES or time.monotonic() > give_up_at:
                raise OSError(f"its response is too long or too slow ({len(received)} bytes so far)")
        return response.status, bytes(received)
    except ssl.SSLError as error:
        raise tls_error(error) from None
    except http.client.HTTPException as error:
        raise OSError(f"its response is not HTTP: {type(error).__name__}") from None
    finally:
        connection.close()
