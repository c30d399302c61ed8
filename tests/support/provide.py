"""Install what the tests need and the machine lacks, where that is ours to do: ``python -m tests.support.provide``.

Only RabbitMQ can be missing, PostgreSQL comes as a wheel. It is installed as root on Debian and Ubuntu, without
starting the system's service; anywhere else the tests' last lines say what did not run and how to add it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import containers
from tests.support.rabbit import PROGRAMS_VARIABLE, find_programs
from tests.support.services import RABBIT_VARIABLES

_POLICY = Path("/usr/sbin/policy-rc.d")
_REFUSE_STARTS = "#!/bin/sh\nexit 101\n"


def main() -> int:
    """Install RabbitMQ if it is needed and can be; 0 in any case, since the tests report what is missing."""
    if any(os.environ.get(name) for name in (*RABBIT_VARIABLES, PROGRAMS_VARIABLE)) or find_programs() is not None:
        return 0
    apt = shutil.which("apt-get")
    if os.geteuid() != 0 or apt is None or containers.engine_answers():
        return 0
    print("installing rabbitmq-server with apt-get; its service is not started", flush=True)
    # Its presence keeps every package that is installed meanwhile from starting a service.
    ours = not _POLICY.exists()
    if ours:
        _POLICY.write_text(_REFUSE_STARTS)
        _POLICY.chmod(0o755)
    try:
        _install(apt)
    finally:
        if ours:
            _POLICY.unlink()
    return 0


def _install(apt: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "rabbitmq-server"]):
        done = subprocess.run(
            [apt, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            print(f"apt-get {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}", file=sys.stderr)
            return


if __name__ == "__main__":
    raise SystemExit(main())
