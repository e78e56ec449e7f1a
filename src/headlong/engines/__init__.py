"""Engines read layers: ``contract`` says what each has, ``method_choice`` which one is taken, ``build`` makes it."""
