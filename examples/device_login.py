"""Log in with a code that the user enters on another device."""

import asyncio

from portico import Client
from portico.auth import DeviceCode


async def main() -> None:
    async with Client("https://mcp.example.com/mcp", auth=DeviceCode()) as client:
        print(await client.list_tools())


if __name__ == "__main__":
    asyncio.run(main())
