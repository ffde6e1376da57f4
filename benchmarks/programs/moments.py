"""How the programs beside this file say when something happened: by files that are whole as soon as they are there."""

import json
import os


def write(directory, name, value):
    """Write a JSON file."""
    path = os.path.join(directory, name)
    with open(path + ".part", "w") as file:
        json.dump(value, file)
    os.rename(path + ".part", path)
