"""Finding by words: what recall, the contracts and the faces of a server search with."""
