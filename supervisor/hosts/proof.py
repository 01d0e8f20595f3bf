"""The proof that a broker runs on the host that we launched: two answers, each bound to a nonce of its own."""

from __future__ import annotations

from contract.broker_api import Identity
from contract.errors import HostError
from contract.phases import Cause
from supervisor.hosts.lease import Host, HostBroker


async def prove_twice(host: Host, broker: HostBroker) -> Identity:
    """The second of two answers that agree with the host. Raises `HostError` (`host_identity`) or `BrokerError`.

    A host whose boot is not known yet is held to the boot that its first answer names.
    """
    identity = await broker.identity()
    boot_id = host.boot_id or identity.boot_id
    for found in (identity, await broker.identity()):
        if (found.host_id, found.boot_id) != (host.host_id, boot_id):
            raise HostError(
                f"host {found.host_id!r} in boot {found.boot_id!r} answers for {host.host_id!r} in {boot_id!r}",
                cause=Cause.HOST_IDENTITY,
                hint="Another broker took over its address, or the host has rebooted; end both.",
            )
        identity = found
    return identity
