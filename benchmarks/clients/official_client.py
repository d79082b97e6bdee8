"""The benchmark's client on the official SDK."""

from measurement import main


def load():
    from mcp import Client

    return Client


def open_stdio(Client, command):
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    return Client(stdio_client(StdioServerParameters(command=command[0], args=command[1:])), mode="legacy")


def open_http(Client, url):
    return Client(url)


if __name__ == "__main__":
    main(load, open_stdio, open_http)
