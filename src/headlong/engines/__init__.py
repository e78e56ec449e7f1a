"""Engines read layers: ``base`` has the contract, one file per method builds its plan, ``resolve`` is the reference."""
