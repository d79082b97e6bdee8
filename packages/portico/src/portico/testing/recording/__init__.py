"""Recording of conversations, and a server that replays them."""
