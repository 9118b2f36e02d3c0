"""Write the page of ``/openapi.json`` to standard output; see `page`. The server does not import this module."""

from __future__ import annotations

import sys

from fastapi.responses import JSONResponse

from pyllmcancel.config import EngineConfig
from pyllmcancel.server.app import create_app
from pyllmcancel.server.config import ApiKey, ServerConfig


def main() -> None:
    ui, asks_for_keys = (option == "1" for option in sys.argv[1:])
    keys = (ApiKey.unnamed("none"),) if asks_for_keys else ()
    app = create_app(ServerConfig(engine=EngineConfig(), api_keys=keys, ui=ui))
    sys.stdout.buffer.write(bytes(JSONResponse(app.openapi()).body))


if __name__ == "__main__":
    main()
