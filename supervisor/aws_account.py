"""The operator's AWS credentials: found where the AWS tools find them, read and never written.

botocore is imported only by those who ask.
"""

from __future__ import annotations

from typing import Any

from supervisor.issues import did_you_mean


class AwsCredentialsMissing(Exception):
    """No credentials that could be used; `message` says what is, `hint` what to do. Neither holds a secret."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def session_for(profile: str | None) -> Any:
    """A botocore session whose credentials are there. Raises `AwsCredentialsMissing`.

    Looks like every AWS tool does: environment, shared files, SSO cache, and the metadata of the machine. What has
    expired is renewed where that needs nobody.
    """
    import botocore.session
    from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound

    session = botocore.session.Session(profile=profile)
    named = f"the AWS profile {profile!r}" if profile else "the default AWS credential chain"
    try:
        credentials = session.get_credentials()
        if credentials is None:
            hint = "Set AWS_PROFILE or keys in the environment of this command, or name a profile in `aws.profile`."
            raise AwsCredentialsMissing(f"{named} has no credentials", hint)
        credentials.get_frozen_credentials()
    except ProfileNotFound:
        near = did_you_mean(profile or "", session.available_profiles)
        hint = f"Name a profile of your AWS configuration in `aws.profile`.{near}"
        raise AwsCredentialsMissing(f"{named} does not exist", hint) from None
    except (BotoCoreError, ClientError) as error:
        kind = type(error).__name__
        command = f"aws sso login{f' --profile {profile}' if profile else ''}"
        hint = f"Log in again (`{command}` for SSO), or correct the profile, then plan again."
        raise AwsCredentialsMissing(f"{named} gives no credentials ({kind})", hint) from None
    return session
