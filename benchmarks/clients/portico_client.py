"""The benchmark's client on Portico."""

from measurement import main


def load():
    from portico import Client

    return Client


def open_stdio(Client, command):
    return Client(command, protocol_version="2025-11-25")


def open_http(Client, url):
    return Client(url)


if __name__ == "__main__":
    main(load, open_stdio, open_http, uvloop=True)
