"""Tokens for Amazon MSK with IAM.

AWS's own package signs them with the AWS credentials of this process. A token is a signed address, so signing needs no network.
Finding the credentials may: credentials of an instance or a pod come from AWS's endpoints.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass

from kafka_eos_sink.errors import AuthenticationError

PREFIX = "msk-iam:"
PACKAGE = "aws-msk-iam-sasl-signer-python"
# The region becomes a part of a host name. Nothing but a region may pass.
REGION = re.compile(r"[a-z]+(-[a-z]+)+-[0-9]{1,2}")


def is_installed() -> bool:
    """Return whether AWS's package can be imported in this process."""
    return importlib.util.find_spec("aws_msk_iam_sasl_signer") is not None


@dataclass(frozen=True, slots=True)
class MskIamTokens:
    """A region's token provider. Equal providers of one region share a token."""

    region: str

    def __call__(self) -> tuple[str, float]:
        """Return a token and its expiry in seconds since 1970.

        Raises:
            AuthenticationError: TOKEN_UNAVAILABLE, if this process has no AWS credentials.
        """
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

        try:
            token, expiry_ms = MSKAuthTokenProvider.generate_auth_token(self.region)
        except AttributeError:
            # Without credentials the package reads the access key of None.
            raise AuthenticationError(
                "TOKEN_UNAVAILABLE",
                f"no token for OAUTHBEARER: {PREFIX}{self.region} finds no AWS credentials in this process; give it a role, a profile "
                "(AWS_PROFILE), or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, on the driver and on every executor",
            ) from None
        return token, expiry_ms / 1000
