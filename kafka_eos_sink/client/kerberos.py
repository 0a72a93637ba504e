"""Kerberos: the SASL mechanism GSSAPI (RFC 4752) by the package ``gssapi``.

The package calls MIT Kerberos. This library fetches tickets from the KDC, and a new one from the keytab after half of a ticket's lifetime.
All connections of a process with the same keytab and principal share their tickets, in memory. A ticket cache is a file that another
program renews; each login reads it.

A login waits for the KDC on the thread of its client, as a login with OAUTHBEARER waits for the token endpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

from kafka_eos_sink.client.security import KerberosCredentials
from kafka_eos_sink.errors import AuthenticationError, peer_text

PACKAGE = "gssapi"

_KRB5_ERRORS = 2_529_638_912
"""MIT's error table of RFC 4120's codes, as an unsigned number; its own codes begin at 128."""
_TEMPORARY = (29, 33, 156)
"""A service of the KDC is not available; a ticket is not yet valid; no KDC is reachable."""
_EXPIRED = 32
_NO_CACHE = (141, 195)
"""No ticket cache is there, and no keytab with a key of the principal."""
_WAYS_OUT = {
    6: "the KDC does not know this principal: correct principal in sasl.jaas.config",
    7: "the KDC does not know this principal of a broker: correct sasl.kerberos.service.name, or the host in bootstrap.servers and "
    "advertised.listeners; rdns and dns_canonicalize_hostname in krb5.conf change the host",
    14: "the keytab has no key of a type that the KDC accepts: export it again",
    18: "the principal is locked or has expired: ask the administrator of the KDC",
    23: "the key of the principal has expired: change it, and export the keytab again",
    24: "the keytab holds an old key: export it again",
    31: "the keytab holds an old key: export it again",
    _EXPIRED: "the ticket has expired: run kinit again, or log in with useKeyTab=true, which needs no renewal",
    37: "the clocks of this machine and of the KDC differ too much: synchronise them, for example with NTP",
    68: "the KDC does not serve this realm: correct the realm in principal, or krb5.conf",
    154: "krb5.conf of this machine (KRB5_CONFIG) names no KDC of this realm: correct the realm in principal, or krb5.conf",
}
_OTHERWISE = "check principal and keytab in sasl.jaas.config, and krb5.conf of this machine (KRB5_CONFIG)"
_WITHOUT_LAYER = 1
"""The bit, in the broker's offer and the client's choice, of a connection without GSSAPI's own encryption (RFC 4752, 3.3)."""

_rejections: Counter[KerberosCredentials] = Counter()


def missing_library() -> str | None:
    """Return why ``gssapi`` cannot be imported in this process, None if it can."""
    try:
        import gssapi  # noqa: F401
    except ImportError as error:
        # Also if the package is there and libgssapi_krb5 is not.
        return str(error)
    return None


def forget(credentials: KerberosCredentials) -> None:
    """Fetch new tickets at the next login: a broker's key may have changed."""
    _rejections[credentials] += 1


def gssapi(credentials: KerberosCredentials, host: str) -> Generator[bytes, bytes, None]:
    """GSSAPI (RFC 4752) without a security layer: Kafka's encryption is TLS.

    Both sides prove that they know the key of a ticket for this host.

    Raises:
        AuthenticationError: KERBEROS_TICKET_UNAVAILABLE, if the library gets no ticket; SASL_SERVER_UNTRUSTED.
        OSError: The KDC failed for the moment; a retry may succeed.
    """
    from gssapi.exceptions import GSSError

    try:
        context = _context(credentials, host)
        token = context.step()
    except GSSError as error:
        raise _no_ticket(credentials, host, error) from None
    try:
        while not context.complete:
            token = context.step((yield token))
        # The last token may be empty. The broker sends its offer only after it.
        offer = context.unwrap((yield token or b"")).message
        choice = context.wrap(bytes((_WITHOUT_LAYER, 0, 0, 0)), False).message
    except GSSError as error:
        raise _untrusted(_text(error)) from None
    if not offer or not offer[0] & _WITHOUT_LAYER:
        raise _untrusted("it requires a security layer of GSSAPI, which Kafka's protocol does not have")
    yield choice


def _context(credentials: KerberosCredentials, host: str) -> Any:
    """Return the client's side of a login, with a ticket."""
    import gssapi

    name = None
    if credentials.principal is not None:
        name = gssapi.Name(credentials.principal, gssapi.NameType.kerberos_principal)
    store = {} if credentials.ticket_cache is None else {"ccache": credentials.ticket_cache}
    if credentials.keytab is not None:
        number = _rejections[credentials]
        cache = f"MEMORY:kafka-eos-{number}-{credentials.principal}-{credentials.keytab}"
        store = {"client_keytab": credentials.keytab, "ccache": cache}
    return gssapi.SecurityContext(
        # The library completes the name by the realm and, if krb5.conf does not switch it off, by DNS.
        name=gssapi.Name(f"{credentials.service_name}@{host}", gssapi.NameType.hostbased_service),
        creds=gssapi.Credentials(name=name, usage="initiate", store=store),
        usage="initiate",
        mech=gssapi.MechType.kerberos,
        flags=[gssapi.RequirementFlag.mutual_authentication, gssapi.RequirementFlag.integrity],
    )


def _no_ticket(credentials: KerberosCredentials, host: str, error: Any) -> Exception:
    code = (error.min_code & 0xFFFFFFFF) - _KRB5_ERRORS
    who = credentials.principal or "the principal of the ticket cache"
    place = f"ticket cache {credentials.ticket_cache or 'of this process (KRB5CCNAME)'}"
    if credentials.keytab is not None:
        place = f"keytab {credentials.keytab}"
    what = f"no Kerberos ticket of {who} ({place}) for {credentials.service_name}@{host}: {_text(error)}"
    if code == _EXPIRED and credentials.keytab is not None:
        # The library has tried the keytab, and keeps the reason why it got no new ticket to itself. The next attempt has no old ticket.
        forget(credentials)
        return OSError(what)
    if code in _TEMPORARY:
        return OSError(what)
    way_out = _WAYS_OUT.get(code, _OTHERWISE)
    if code in _NO_CACHE:
        way_out = "run kinit, or log in with useKeyTab=true"
        if credentials.keytab is not None:
            # The library gives this reason for every keytab that it cannot use.
            way_out = f"klist -k {credentials.keytab} must list this principal, with its realm"
    return AuthenticationError("KERBEROS_TICKET_UNAVAILABLE", f"{what}; {way_out}")


def _text(error: Any) -> str:
    """Return the reason that Kerberos gives, else the reason of GSSAPI."""
    texts = error.get_all_statuses(error.min_code, False) if error.min_code else ()
    return peer_text(" ".join(texts or error.get_all_statuses(error.maj_code, True)))


def _untrusted(reason: str) -> AuthenticationError:
    return AuthenticationError(
        "SASL_SERVER_UNTRUSTED", f"the broker failed its part of GSSAPI: {reason}; check kafka.bootstrap.servers"
    )
