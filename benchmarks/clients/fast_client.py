"""The benchmark's client on FastMCP."""

from measurement import main


def load():
    from fastmcp import Client

    return Client


def open_stdio(Client, command):
    from fastmcp.client.transports import StdioTransport

    return Client(StdioTransport(command=command[0], args=command[1:], keep_alive=False), mode="legacy")


def open_http(Client, url):
    return Client(url)


if __name__ == "__main__":
    main(load, open_stdio, open_http)
