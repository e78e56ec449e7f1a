"""The evidence, apart from the library: published tables and figures run again, the models and the data they need."""
