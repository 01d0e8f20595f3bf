"""The user data of an instance: the start line for its broker, and a dead-man timer of the system's own.

The timer is no part of the broker, so that an instance whose broker hangs or was killed ends too. Every 30 s it reads a
deadline file (one line, unix seconds) that the broker moves on at authenticated calls, and shuts the system down when

- that deadline has passed,
- or the file is missing and the system has been up for longer than the lease,
- or the whole life of the instance is over: its end is written down once, at the first boot.

Shutting down terminates the instance, which its launch asks for. There is no secret in here.
"""

from __future__ import annotations

from typing import Final

from contract.guest import USER_DATA_BYTES_MAX, GuestStart, start_line

LINUX_DEADLINE: Final = "/run/autocad-bench/deadline"
WINDOWS_DEADLINE: Final = r"C:\ProgramData\autocad-bench\deadline"

_LINUX: Final = r"""#!/bin/sh
{start_line}
set -eu
mkdir -p /run/autocad-bench /var/lib/autocad-bench
# One that lies in the image is that of another instance.
rm -f {deadline}
echo $(( $(date +%s) + {lifetime_s} )) > /var/lib/autocad-bench/ends-at
cat > /usr/local/sbin/autocad-bench-deadman <<'SCRIPT'
#!/bin/sh
now=$(date +%s)
up=$(cut -d. -f1 /proc/uptime)
ends_at=$(cat /var/lib/autocad-bench/ends-at 2>/dev/null || echo 0)
deadline=$(cat {deadline} 2>/dev/null || echo $(( now - up + {lease_s} )))
case "$deadline" in ''|*[!0-9]*) deadline=$(( now - up + {lease_s} ));; esac
case "$ends_at" in ''|*[!0-9]*) ends_at=0;; esac
if [ "$now" -ge "$deadline" ] || [ "$now" -ge "$ends_at" ]; then
    systemctl poweroff --force || poweroff -f
fi
SCRIPT
chmod 755 /usr/local/sbin/autocad-bench-deadman
cat > /etc/systemd/system/autocad-bench-deadman.service <<'UNIT'
[Unit]
Description=Ends this instance when its controller is silent
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/autocad-bench-deadman
UNIT
cat > /etc/systemd/system/autocad-bench-deadman.timer <<'UNIT'
[Timer]
OnBootSec=30
OnActiveSec=30
OnUnitActiveSec=30
AccuracySec=1
[Install]
WantedBy=timers.target
UNIT
systemctl daemon-reload
systemctl enable --now autocad-bench-deadman.timer
"""

# A scheduled task repeats each minute at best, so each run of it looks twice.
_WINDOWS: Final = r"""<powershell>
{start_line}
$folder = 'C:\ProgramData\autocad-bench'
New-Item -ItemType Directory -Force -Path $folder | Out-Null
# One that lies in the image is that of another instance.
Remove-Item -Force -ErrorAction SilentlyContinue -Path '{deadline}'
$epoch = [DateTimeOffset]::UtcNow.ToUnixTimeSeconds()
Set-Content -Path "$folder\ends-at" -Value ($epoch + {lifetime_s})
$script = @'
foreach ($look in 1, 2) {{
    $now = [DateTimeOffset]::UtcNow.ToUnixTimeSeconds()
    $booted = ([DateTimeOffset](Get-CimInstance Win32_OperatingSystem).LastBootUpTime).ToUnixTimeSeconds()
    $deadline = $booted + {lease_s}
    $endsAt = 0
    try {{ $deadline = [int64](Get-Content '{deadline}' -ErrorAction Stop | Select-Object -First 1) }} catch {{ }}
    try {{ $endsAt = [int64](Get-Content '{folder}\ends-at' -ErrorAction Stop | Select-Object -First 1) }} catch {{ }}
    if ($now -ge $deadline -or $now -ge $endsAt) {{ shutdown.exe /s /t 0 /f; exit }}
    if ($look -eq 1) {{ Start-Sleep -Seconds 30 }}
}}
'@
Set-Content -Path "$folder\deadman.ps1" -Value $script
$arguments = "-NoProfile -NonInteractive -ExecutionPolicy Bypass -File $folder\deadman.ps1"
$action = New-ScheduledTaskAction -Execute 'powershell.exe' -Argument $arguments
$start = (Get-Date).AddSeconds(5)
$triggers = @(
    (New-ScheduledTaskTrigger -Once -At $start -RepetitionInterval (New-TimeSpan -Minutes 1)),
    (New-ScheduledTaskTrigger -AtStartup)
)
$settings = New-ScheduledTaskSettingsSet -MultipleInstances IgnoreNew -StartWhenAvailable `
    -AllowStartIfOnBatteries -DontStopIfGoingOnBatteries
$principal = New-ScheduledTaskPrincipal -UserId 'SYSTEM' -LogonType ServiceAccount -RunLevel Highest
Register-ScheduledTask -TaskName 'autocad-bench-deadman' -Action $action -Trigger $triggers `
    -Settings $settings -Principal $principal -Force | Out-Null
</powershell>
"""


def user_data_of(start: GuestStart) -> str:
    """The text as RunInstances takes it (before base64), under 16 KB. Equal starts give equal bytes."""
    numbers = {
        "start_line": start_line(start),
        "lease_s": int(start.lease_s),
        "lifetime_s": int(start.lifetime_s),
    }
    if start.driver == "autocad":
        text = _WINDOWS.format(**numbers, deadline=WINDOWS_DEADLINE, folder=r"C:\ProgramData\autocad-bench")
    else:
        text = _LINUX.format(**numbers, deadline=LINUX_DEADLINE)
    assert len(text.encode()) <= USER_DATA_BYTES_MAX, "the user data has a bounded length"
    return text
