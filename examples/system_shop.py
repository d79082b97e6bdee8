"""The system service for one application: its log, its directory, a writable registry, without pseudonyms.

portico serve examples/system_shop.py
"""

import atexit
import shutil
from pathlib import Path
from tempfile import mkdtemp

from portico import Server
from portico_services.system import System

LINES = """\
2026-03-01T09:00:00Z shop7 web[310]: started
2026-03-01T09:14:05Z shop7 web[310]: order 4711 of alice paid
2026-03-01T09:20:41Z shop7 web[310]: error: the printer does not answer
2026-03-01T09:20:44Z shop7 stock[311]: 3 scarves left
"""

# A real application has a directory already.
shop = Path(mkdtemp(prefix="shop-")).resolve()
atexit.register(shutil.rmtree, shop, ignore_errors=True)
(shop / "shop.log").write_text(LINES)
(shop / "orders").mkdir()
(shop / "orders" / "4711.txt").write_text("2 scarves\n1 shirt\n")

server = Server("shop", version="1.0.0")
server.add(
    System(
        allowed_paths=[shop / "orders"],
        logs={"shop": shop / "shop.log"},
        platform_logs=False,
        access_levels={"registry": "read-write", "processes": "disabled"},
        privacy="off",
        deny=["*.draft"],
    )
)

if __name__ == "__main__":
    server.run()
