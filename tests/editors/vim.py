"""Vim with llama.vim on a terminal, and a user at its keys."""

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.support.http_process import until

KEYS_PER_SECOND = 8.0
# What the plugin calls: it names the request, keeps its body, and becomes curl.
CURL = """#!{python} -IS
import os, sys
body = sys.stdin.buffer.read()
name = f"vim-{{os.getpid()}}"
with open(f"{folder}/{{name}}.json", "wb") as file:
    file.write(body)
read, write = os.pipe()
if os.fork() == 0:
    os.close(read)
    with open(write, "wb") as file:
        file.write(body)
    os._exit(0)
os.close(write)
os.dup2(read, 0)
os.execv("{curl}", ["curl", *sys.argv[1:], "--header", f"X-Request-Id: {{name}}"])
"""
VIMRC = """
set nocompatible noswapfile nobackup viminfo= hidden nomore shortmess+=I encoding=utf-8
set runtimepath^={plugin}
filetype plugin on
let g:llama_config = {{
  \\ 'endpoint_fim': '{url}/infill',
  \\ 'endpoint_inst': '{url}/v1/chat/completions',
  \\ 'ring_chunk_size': 16,
  \\ 'n_prefix': 64,
  \\ 'n_suffix': 16,
  \\ }}
"""


class Vim(AbstractContextManager["Vim"]):
    def __init__(self, program: str, plugin: Path, folder: Path, url: str, files: Sequence[Path]) -> None:
        vimrc, bin_folder, self.bodies = folder / "vimrc", folder / "bin", folder / "bodies"
        bin_folder.mkdir()
        self.bodies.mkdir()
        vimrc.write_text(VIMRC.format(plugin=plugin, url=url))
        curl = bin_folder / "curl"
        curl.write_text(CURL.format(python=sys.executable, folder=self.bodies, curl=shutil.which("curl")))
        curl.chmod(0o755)
        self._terminal, screen = pty.openpty()
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
        environment = os.environ | {"TERM": "xterm", "PATH": f"{bin_folder}:{os.environ['PATH']}"}
        command, ends = [program, "-u", vimrc, "-i", "NONE", "-N", *files], ("stdin", "stdout", "stderr")
        options = dict.fromkeys(ends, screen) | {"env": environment, "cwd": folder, "start_new_session": True}
        self._process = subprocess.Popen(command, **options)
        os.close(screen)
        self._screen = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self._screen += os.read(self._terminal, 65_536)
            except OSError:
                return  # Vim is gone

    def start(self) -> None:
        """Wait until a file is shown. The plugin asks for Vim 9.1, and wants to be told that its warning was read."""
        self._until_drawn("Warning", "class Circle")
        self.press("\r")
        self._until_drawn("class Circle")

    def _until_drawn(self, *texts: str) -> None:
        until(lambda: self._screen.decode("utf-8", "replace"), lambda drawn: any(text in drawn for text in texts))

    def type(self, text: str) -> None:
        for key in text:
            os.write(self._terminal, key.encode())
            time.sleep(1 / KEYS_PER_SECOND)

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())
        time.sleep(0.2)

    def command(self, text: str) -> None:
        self.press(f"\x1b:{text}\r")

    def sent(self) -> dict[str, dict[str, Any]]:
        return {file.stem: json.loads(file.read_text()) for file in self.bodies.glob("*.json") if file.stat().st_size}

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        os.close(self._terminal)


def kind_of(body: dict[str, Any]) -> str:
    what = "edit" if "messages" in body else "suggestion"
    return f"warm-up of {what}s" if body.get("n_predict") == 0 else what
