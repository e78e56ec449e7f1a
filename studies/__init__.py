"""Four published studies run again: ``python -m studies list`` says what each printed and what became of it here."""
