"""Engines read layers: ``base`` has the contract, ``factory`` makes them, each folder holds one family."""
