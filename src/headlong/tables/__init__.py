"""Vectors where they lie: columns of Arrow, Parquet, Lance and PostgreSQL's binary COPY, as arrays; answers as tables."""
